"""Sketches of vectors in a file beside the data: FILE.sketch, opened by the first search.

An exact search reads the sketch, a byte for each number, and compares only those rows exactly whose
bounds show that they may be among the best. Bounds that do not hold would hide rows. A sketch is
therefore used only for data with the size and the modification time that it was made from. If the
data file may have changed since, a digest of the whole file decides. Every block of the sketch is
compared with its checksum before its first use, and every row that a search compares exactly must
lie within its bounds.

docs/search.md describes the format for other implementations.
"""

from __future__ import annotations

import os
import struct
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from embmap.errors import EmbmapError, StaleIndexError, StaleIndexWarning
from embmap.forking import process_lock
from embmap.io.atomic_write import replacing
from embmap.io.backends import open_mapped
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.search.sketch import MOST_COLUMNS, Columns, Rows, encode, find_wrong, measure_columns
from embmap.threads import in_parallel
from embmap.vectors.dense import dense_matrix
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix
from embmap.words.index_file import digest

__all__ = ["SUFFIX", "SketchFile", "SketchSource", "build_sketch"]

SUFFIX = ".sketch"
MAGIC = b"EMBS\r\n\x1a\n"
VERSION = 1
BLOCK = 1 << 20
_ALIGN = 64
_PADDED = 16  # a row of codes has a multiple of this many bytes, which one operation multiplies
# magic, version, dim, rows, bytes of a length; size, time and digest of the data; second at which
# reading it began; checksum of this
_HEADER = struct.Struct("<8sIIQQQq16sQQ")
_BODY = 4096
_SAMPLE = 1 << 12  # rows that centers and widths are made from
_ENCODED = 1 << 14  # rows encoded at a time
_PIECE_NBYTES = 1 << 19  # of these, rows that stay in the cache
_SECOND = 10**9
_TICK_NS = 2 * _SECOND  # the coarsest time stamps of a file system, FAT


class _Offsets:
    """Where the parts of a sketch lie; they follow from its shape."""

    def __init__(self, n_rows: int, dim: int, itemsize: int) -> None:
        self.width = -(-dim // _PADDED) * _PADDED
        self.columns = _BODY
        self.codes = _aligned(self.columns + 8 * dim)
        self.scales = _aligned(self.codes + n_rows * self.width)
        self.errors = _aligned(self.scales + 4 * n_rows)
        self.lengths = _aligned(self.errors + 4 * n_rows)
        self.sums = _aligned(self.lengths + itemsize * n_rows)
        self.n_blocks = -(-(self.sums - _BODY) // BLOCK)
        self.end = self.sums + 8 * self.n_blocks


def _dtype_of_lengths(matrix: Matrix) -> np.dtype[Any]:
    return np.result_type(matrix.dtype, np.float32)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


class SketchFile:
    """An open sketch of the first rows of a matrix of the file `data`. Threads may share it.

    It is mapped if its data is mapped, else read.
    """

    def __init__(
        self, path: Path, data: ByteSource, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self._path = path
        self._data = data
        n_rows, dim = shape
        offsets = self._offsets = _Offsets(n_rows, dim, dtype.itemsize)
        try:
            self._file = open_mapped(path, backend="mmap" if data.zero_copy else "read")
            if self._file.nbytes != offsets.end:
                raise self._stale("it belongs to other data, or is damaged")
            self._parse(n_rows, dim, dtype)
            self._checked = np.zeros(offsets.n_blocks, np.bool_)
            self._check(_BODY, offsets.codes - _BODY)
            self._check(offsets.scales, offsets.sums - offsets.scales)
            columns = self._file.array(offsets.columns, "<f4", (2, dim))
            self.columns = Columns(columns[0], columns[1])
            self.width = offsets.width
            self.zero_copy = self._file.zero_copy
            self._codes = dense_matrix(self._file, offsets.codes, (n_rows, offsets.width), np.int8)
            self._scales = self._file.array(offsets.scales, "<f4", n_rows)
            self._errors = self._file.array(offsets.errors, "<f4", n_rows)
            self._lengths = self._file.array(offsets.lengths, dtype.newbyteorder("<"), n_rows)
        except StaleIndexError:
            raise
        except (OSError, EmbmapError) as error:
            raise self._stale(str(error)) from error

    def _parse(self, n_rows: int, dim: int, dtype: np.dtype[Any]) -> None:
        """Check the header, and that the data is what the sketch was made from."""
        head = self._file.read(0, _HEADER.size)
        magic, version, *own, nbytes, mtime, hashed, began, checksum = _HEADER.unpack(head)
        if magic != MAGIC:
            raise self._stale("not a sketch of embmap")
        if version != VERSION:
            raise self._stale(f"version {version}; this embmap reads version {VERSION}")
        if xxhash.xxh3_64_intdigest(head[:-8]) != checksum:
            raise self._stale("the checksum of its header does not match")
        data = self._data
        if (*own, nbytes) != (dim, n_rows, dtype.itemsize, data.nbytes):
            raise self._stale("it belongs to other data")
        # A later change leaves a later time, unless it is in the same tick of the clock.
        settled = mtime == data.mtime_ns and data.changed_ns + _TICK_NS < began * _SECOND
        if not settled and digest(data, 0, data.nbytes) != hashed:
            raise self._stale("the data changed")

    def _stale(self, why: str) -> StaleIndexError:
        return StaleIndexError(f"{self._path}: {why}; build it again with build_sketch()")

    def _check(self, offset: int, nbytes: int) -> None:
        """Compare the blocks that contain a range with their checksums."""
        first, last = (offset - _BODY) // BLOCK, (offset + max(nbytes, 1) - 1 - _BODY) // BLOCK
        self._check_blocks(np.arange(first, last + 1))

    def _check_blocks(self, blocks: npt.NDArray[np.int64]) -> None:
        """Compare blocks with their checksums, each block once."""
        if self._checked[blocks].all():
            return
        for block in np.unique(blocks[~self._checked[blocks]]).tolist():
            start = _BODY + block * BLOCK
            nbytes = min(BLOCK, self._offsets.sums - start)
            found = xxhash.xxh3_64_digest(self._file.array(start, np.uint8, nbytes).data)
            if found[::-1] != self._file.read(self._offsets.sums + 8 * block, 8):
                raise self._stale(f"the checksum of its block {block} does not match")
            self._checked[block] = True

    def rows(self, rows: range | npt.NDArray[np.int64]) -> Rows:
        """Return some rows, which all exist; without a copy if they lie together in a map."""
        offsets, n = self._offsets, len(rows)
        first, last = int(rows[0]), int(rows[-1])
        part: Any = rows
        if last - first + 1 == n:
            part = slice(first, last + 1)
        try:
            self._file.check_whole()
            if last - first + 1 == n:
                self._check(offsets.codes + first * offsets.width, n * offsets.width)
            else:
                starts = offsets.codes - _BODY + np.asarray(rows) * offsets.width
                ends = starts + (offsets.width - 1)
                self._check_blocks(np.concatenate((starts // BLOCK, ends // BLOCK)))
            codes = self._codes[part]
        except (OSError, EmbmapError) as error:
            raise self._stale(str(error)) from error
        return Rows(codes, self._scales[part], self._errors[part], self._lengths[part]).locked()

    def check_all(self, matrix: Matrix) -> None:
        """Check every block against its checksum, and every bound against the rows themselves."""
        try:
            self._check(_BODY, self._offsets.sums - _BODY)
        except EmbmapError as error:
            raise self._stale(str(error)) from error
        n_rows = len(self._scales)
        for start in range(0, n_rows, _ENCODED):
            stop = min(start + _ENCODED, n_rows)
            wrong = find_wrong(matrix[start:stop], self.columns, self.rows(range(start, stop)))
            if wrong is not None:
                raise self._stale(f"the bounds of row {start + wrong} do not hold")


class SketchSource:
    """The sketch of an open file: FILE.sketch if it exists and is valid, opened once and kept."""

    def __init__(self, path: Path, data: ByteSource, matrix: Matrix, n_rows: int) -> None:
        self.path = path
        self._data = data
        self._matrix = matrix
        self.n_rows = n_rows
        self._file: SketchFile | None = None
        self._looked = False
        self._lock = process_lock()

    def exists(self) -> bool:
        """Whether there is a sketch, valid or not, that was not refused before."""
        return self._file is not None or (not self._looked and os.path.exists(self.path))  # noqa: PTH110 (Path.exists raises for long names)

    def file(self) -> SketchFile | None:
        """Return the sketch to search with, which exists; None if it is not valid."""
        if not self._looked:
            with self._lock:
                if not self._looked:
                    try:
                        self.use(self.path)
                    except StaleIndexError as error:
                        self.drop(error)
        return self._file

    def build(self, path: Path, progress: Progress | None) -> None:
        """Write a sketch, and search with it from now on."""
        build_sketch(path, self._data, self._matrix, self.n_rows, progress=progress)
        self.use(path)

    def check_all(self) -> None:
        """Check the sketch, if it exists, against its checksums and the rows of its matrix."""
        if os.path.exists(self.path):  # noqa: PTH110 (as above)
            self._opened(self.path).check_all(self._matrix)

    def use(self, path: Path) -> None:
        """Open a sketch and search with it from now on."""
        self._file, self._looked = self._opened(path), True

    def _opened(self, path: Path) -> SketchFile:
        shape = self.n_rows, self._matrix.shape[1]
        return SketchFile(path, self._data, shape, _dtype_of_lengths(self._matrix))

    def drop(self, error: StaleIndexError) -> None:
        """Go on without the sketch, with a warning."""
        self._file, self._looked = None, True
        warnings.warn(f"sketch ignored: {error}", StaleIndexWarning, stacklevel=2)


def build_sketch(
    path: Path, data: ByteSource, matrix: Matrix, n_rows: int, *, progress: Progress | None
) -> None:
    """Write a sketch of the first rows of a matrix; 12 bytes a row are in memory until then."""
    dim = matrix.shape[1]
    if isinstance(matrix, ProductMatrix):
        raise ValueError("quantized vectors are compared by their codes; they need no sketch")
    if dim > MOST_COLUMNS:
        raise ValueError(f"a sketch needs vectors of at most {MOST_COLUMNS} numbers, not {dim}")
    dtype = _dtype_of_lengths(matrix)
    offsets = _Offsets(n_rows, dim, dtype.itemsize)
    numbers = Rows(
        np.zeros((_ENCODED, offsets.width), np.int8),
        np.empty(n_rows, "<f4"),
        np.empty(n_rows, "<f4"),
        np.empty(n_rows, dtype.newbyteorder("<")),
    )
    with replacing(path) as out:
        # The clock of a network disk is another one; the earlier time is the safe one.
        now = min(os.fstat(out.fileno()).st_mtime_ns, time.time_ns())
        # The digest comes first: it then shows any change while rows are read.
        hashed = digest(data, 0, data.nbytes)
        sample = np.unique(np.linspace(0, n_rows - 1, min(_SAMPLE, n_rows)).astype(np.int64))
        columns = measure_columns(matrix.take(sample).astype(dtype))
        out.seek(offsets.codes)
        for start in range(0, n_rows, _ENCODED):
            stop = min(start + _ENCODED, n_rows)
            _encode_block(matrix[start:stop], columns, numbers, start)
            out.write(numbers.codes[: stop - start].data)
            if progress is not None:
                progress("sketching rows", stop, n_rows)
        parts = (*columns, *numbers[1:])
        places = (
            offsets.columns,
            offsets.columns + 4 * dim,
            offsets.scales,
            offsets.errors,
            offsets.lengths,
        )
        for place, part in zip(places, parts, strict=True):
            out.seek(place)
            out.write(part.data)
        out.truncate(offsets.sums)
        out.seek(0)
        identity = dim, n_rows, dtype.itemsize, data.nbytes, data.mtime_ns, hashed
        head = _HEADER.pack(MAGIC, VERSION, *identity, max(now // _SECOND, 0), 0)
        out.write(head[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(head[:-8])))
        sums = b"".join(_block_sums(out, offsets))
        out.write(sums)


def _encode_block(rows: npt.NDArray[Any], columns: Columns, numbers: Rows, start: int) -> None:
    """Encode rows from `start`: codes to the first rows of `numbers`, the rest to their places."""
    at_once = max(_PIECE_NBYTES // max(rows[:1].nbytes, 1), 16)

    def work(first: int) -> None:
        last = min(first + at_once, len(rows))
        own = slice(start + first, start + last)
        part = Rows(numbers.codes[first:last], *(each[own] for each in numbers[1:]))
        encode(np.require(rows[first:last], numbers.lengths.dtype.newbyteorder("=")), columns, part)

    in_parallel(work, range(0, len(rows), at_once))


def _block_sums(out: BinaryIO, offsets: _Offsets) -> Iterator[bytes]:
    """Yield the checksums of the blocks; the file is at the end of the last one afterwards."""
    out.seek(_BODY)
    for start in range(_BODY, offsets.sums, BLOCK):
        yield xxhash.xxh3_64_digest(out.read(min(BLOCK, offsets.sums - start)))[::-1]
