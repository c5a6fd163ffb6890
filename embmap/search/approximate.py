"""Approximate search: a graph over the rows in FILE.usearch beside the data, opened on first use.

usearch writes the graph. The 64 bytes that follow it identify its data by size, modification time
and number of rows, so that the index of other data is refused, and hold a checksum of the graph:
usearch follows a damaged graph out of its memory. The graph only proposes rows, which are then
compared exactly. Needs the extra "ann".
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import xxhash

from embmap.errors import EmbmapError, StaleIndexError, UnsupportedError
from embmap.forking import process_lock
from embmap.io.atomic_write import replacing
from embmap.io.backends import open_mapped
from embmap.io.mapping import Backend, ByteSource
from embmap.progress import Progress
from embmap.threads import away_from_signals, n_threads
from embmap.vectors.matrix import Matrix
from embmap.vectors.segments import normalize

__all__ = ["SUFFIX", "ApproximateIndex", "ApproximateSource", "build_index"]

SUFFIX = ".usearch"
MAGIC = b"EMBU\r\n\x1a\n"
VERSION = 2
# magic, version, dim, size, time, rows, bytes of the graph, checksums of the graph and of this
_TRAILER = struct.Struct("<8sIIQqQQQQ")
_AT_ONCE = 1 << 14  # rows passed to usearch together
_PROPOSED = 4  # proposed rows for each result
_FILLED = 1 << 20  # zeros per write, to see the error of a failed write
_LEAST = 64  # smallest number of proposed rows
_READ = 1 << 22  # bytes read at a time
_MOST_LINKS = 1 << 10  # bytes of a row's links: 150 on average
_MOST_HEAD = 1 << 12  # bytes of the graph that belong to no row


class _GraphFile:
    """An index file whose last 64 bytes match the data; its graph is not read yet."""

    def __init__(
        self, path: Path, data: ByteSource, shape: tuple[int, int], backend: Backend
    ) -> None:
        self._path = path
        try:
            self._file = open_mapped(path, backend=backend)
        except FileNotFoundError:
            raise StaleIndexError(
                f"{path}: there is no approximate index; build it with build_ann()"
            ) from None
        except OSError as error:
            raise _stale(path, f"cannot be opened: {error.strerror}") from None
        except UnsupportedError as error:
            raise _stale(path, error.message) from None
        self.nbytes = self._file.nbytes
        try:
            trailer = self._file.read(
                max(self.nbytes - _TRAILER.size, 0), min(self.nbytes, _TRAILER.size)
            )
        except EmbmapError as error:
            raise _stale(path, str(error)) from None
        if len(trailer) < _TRAILER.size or not trailer.startswith(MAGIC):
            raise _stale(path, "it is not an approximate index of embmap")
        _, version, dim, size, mtime, n_rows, nbytes, graph, checksum = _TRAILER.unpack(trailer)
        if version != VERSION:
            raise _stale(path, f"version {version}; this embmap reads {VERSION}")
        whole = nbytes == self.nbytes - len(trailer)
        if xxhash.xxh3_64_intdigest(trailer[:-8]) != checksum or not whole:
            raise _stale(path, "it is damaged")
        if (size, mtime, n_rows, dim) != (data.nbytes, data.mtime_ns, *shape):
            raise _stale(path, "it belongs to other data")
        if nbytes > n_rows * (2 * dim + _MOST_LINKS) + _MOST_HEAD:
            raise _stale(path, "it is larger than its rows require")
        self._trailer, self._graph_nbytes, self._checksum = trailer, nbytes, graph

    def _parts(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the graph in parts; raise StaleIndexError at its end if it is damaged."""
        checksum = xxhash.xxh3_64()
        try:
            self._file.check_whole()
            for start in range(0, self._graph_nbytes, _READ):
                nbytes = min(_READ, self._graph_nbytes - start)
                part = self._file.array(start, np.uint8, nbytes)
                checksum.update(part.data)
                yield part
        except EmbmapError as error:
            raise _stale(self._path, str(error)) from None
        if checksum.intdigest() != self._checksum:
            raise _stale(self._path, "it is damaged")

    def graph(self) -> npt.NDArray[np.uint8]:
        """Return the graph, which was compared with its checksum: mapped, or in memory."""
        if self._file.zero_copy:
            for _ in self._parts():
                pass
            return self._file.array(0, np.uint8, self._graph_nbytes)
        found = np.empty(self._graph_nbytes, np.uint8)
        done = 0
        for part in self._parts():
            found[done : done + part.size] = part
            done += part.size
        return found

    def copy_to(self, out: BinaryIO) -> None:
        """Write a copy while comparing it with its checksum."""
        out.writelines(part.data for part in self._parts())
        out.write(self._trailer)


def _stale(path: Path, why: str) -> StaleIndexError:
    return StaleIndexError(f"{path}: {why}; build it again with build_ann()")


class ApproximateSource:
    """The approximate index of an open file: FILE.usearch, opened on the first search and kept.

    It is mapped if its data is mapped. Otherwise it is read into memory, because the caller chose
    that no file is mapped.
    """

    def __init__(self, path: Path, data: ByteSource, shape: tuple[int, int]) -> None:
        self.path = path
        self._data = data
        self._shape = shape
        self._backend: Backend = "mmap" if data.zero_copy else "read"
        self._index: ApproximateIndex | None = None
        self._ask: Callable[[ApproximateSource], ApproximateIndex] | None = None

    def index(self) -> ApproximateIndex:
        """Return the index to search now."""
        if self._ask is not None:
            return self._ask(self)
        if self._index is None:
            self.use(self.path)
        return cast(ApproximateIndex, self._index)

    def build(self, path: Path, matrix: Matrix, progress: Progress | None) -> None:
        """Write an index over the first rows of a matrix, and search it from now on."""
        build_index(path, self._data, matrix, self._shape[0], progress=progress)
        self.use(path)

    def use(self, path: Path) -> None:
        """Open an index and search it from now on."""
        self._index = self.opened(path, self._backend)

    def ask(self, choose: Callable[[ApproximateSource], ApproximateIndex]) -> None:
        """Ask a function at each search which index to search."""
        self._ask = choose

    def opened(self, path: Path, backend: Backend = "mmap") -> ApproximateIndex:
        """Return the index in a file, mapped by default."""
        return ApproximateIndex(path, self._data, self._shape, backend)

    def copy_to(
        self, path: str | os.PathLike[str], check_size: Callable[[int], None] | None = None
    ) -> None:
        """Write a copy of FILE.usearch, which is read, not mapped; a damaged one is refused.

        `check_size` is called with the number of bytes before they are copied, and may refuse.
        """
        _usearch()  # nothing could search the copy
        file = _GraphFile(self.path, self._data, self._shape, "read")
        if check_size is not None:
            check_size(file.nbytes)
        with replacing(path) as out:
            file.copy_to(out)


class ApproximateIndex:
    """A graph over the first `shape[0]` rows of the file `data`. Threads may share it."""

    def __init__(
        self, path: Path, data: ByteSource, shape: tuple[int, int], backend: Backend = "mmap"
    ) -> None:
        usearch = _usearch()
        self._path = path
        self._n_rows = shape[0]
        # The graph is searched in our own map, because usearch cannot open every path.
        buffer = _GraphFile(path, data, shape, backend).graph()
        try:
            graph = usearch.Index.restore(buffer, view=True)
        except (RuntimeError, ValueError) as error:
            raise _stale(path, f"usearch cannot read it: {error}") from None
        if graph is None or graph.ndim != shape[1] or len(graph) > shape[0]:
            raise _stale(path, "its graph covers other rows")
        self._graph = graph
        self._buffer = buffer
        self._lock = process_lock()  # each search sets how many rows the graph visits

    def candidates(
        self,
        units: npt.NDArray[Any],
        n: int,
        excluded: list[npt.NDArray[np.int64]],
        among: npt.NDArray[np.int64] | None = None,
    ) -> list[npt.NDArray[np.int64]] | None:
        """Return, for each unit vector (m, dim), rows that are probably among the `n` nearest.

        Rows are int64, each once, without the excluded ones; usually more than `n`. None if all the
        rows in `among` are to be compared: they are few, or too few of them were found.
        """
        wanted = max(_PROPOSED * n, _LEAST)
        if among is not None:
            wanted = wanted * self._n_rows // among.size
            if wanted >= among.size:
                return None
        numbers = [min(wanted + len(each), max(len(self._graph), 1)) for each in excluded]
        found = []
        for keys, left_out in zip(self._search(units, numbers), excluded, strict=True):
            if keys.size and int(keys.max()) >= self._n_rows:
                raise _stale(self._path, f"it names row {int(keys.max())} of {self._n_rows}")
            rows = np.setdiff1d(np.unique(keys.astype(np.int64)), left_out, assume_unique=True)
            if among is not None:
                rows = np.intersect1d(rows, among, assume_unique=True)
                if rows.size < min(n, among.size - left_out.size):
                    return None
            found.append(rows)
        return found

    def _search(self, units: npt.NDArray[Any], numbers: list[int]) -> list[npt.NDArray[np.uint64]]:
        """Return the keys of as many rows for each unit vector, in no order."""

        def search() -> list[npt.NDArray[np.uint64]]:
            found = []
            for unit, wanted in zip(units.astype(np.float32), numbers, strict=True):
                with self._lock:
                    self._graph.expansion_search = max(wanted, _LEAST)
                    keys = self._graph.search(unit, wanted).keys
                found.append(np.asarray(keys, np.uint64))
            return found

        return away_from_signals(search)  # usearch turns every interrupt into a RuntimeError


def build_index(
    path: Path, data: ByteSource, matrix: Matrix, n_rows: int, *, progress: Progress | None
) -> None:
    """Write an approximate index over the first rows of a matrix.

    Rows of zeros and rows that are not finite are left out. The graph stores rows in half precision
    and stays in memory until it is written.
    """
    dim = matrix.shape[1]
    graph = _usearch().Index(ndim=dim, metric="cos", dtype="f16")
    for start in range(0, n_rows, _AT_ONCE):
        stop = min(start + _AT_ONCE, n_rows)
        with np.errstate(all="ignore"):
            rows = np.array(matrix[start:stop], np.float32)
            lengths = normalize(rows)
        usable = np.flatnonzero(np.isfinite(lengths) & (lengths > 0))
        keys = (usable + start).astype(np.uint64)
        if usable.size:
            away_from_signals(partial(_link, graph, keys, rows[usable]))
        if progress is not None:
            progress("linking rows", stop, n_rows)
    with replacing(path) as out:
        _save(graph, out, path)
        size = out.seek(0, os.SEEK_END)
        checksum = xxhash.xxh3_64()
        out.seek(0)
        while part := out.read(_READ):
            checksum.update(part)
        identity = dim, data.nbytes, data.mtime_ns, n_rows
        head = _TRAILER.pack(MAGIC, VERSION, *identity, size, checksum.intdigest(), 0)
        out.write(head[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(head[:-8])))


def _link(graph: Any, keys: npt.NDArray[np.uint64], rows: npt.NDArray[np.float32]) -> None:
    """Add rows to a graph so that each of them is found.

    Threads of usearch that link rows at the same time may leave one that no search reaches. Such
    rows are linked again, one after the other.
    """
    n = n_threads()
    graph.add(keys, rows, threads=n)
    nearest = np.asarray(graph.search(rows, 1, threads=n).keys).reshape(-1) if n > 1 else keys
    lost = np.flatnonzero(nearest != keys)
    if lost.size:
        graph.remove(keys[lost])
        graph.add(keys[lost], rows[lost], threads=1)


def _save(graph: Any, out: BinaryIO, path: Path) -> None:
    """Let usearch write a graph to a temporary file, which needs no copy in memory."""
    failed = None
    for _ in range(2):
        failed = None
        try:
            graph.save(out.name)
        except RuntimeError as error:
            failed = str(error)
        missing = graph.serialized_length - out.seek(0, os.SEEK_END)
        if failed is None and not missing:
            return
        # usearch does not report why a write failed. Writing further shows it, as an OSError.
        out.writelines(bytes(min(_FILLED, missing - done)) for done in range(0, missing, _FILLED))
        out.flush()
        # No error: a signal interrupted the write, and usearch does not repeat it.
    raise OSError(errno.EIO, f"usearch cannot write it: {failed}", str(path))


def _usearch() -> ModuleType:
    try:
        import usearch.index as module
    except ImportError as error:
        raise ImportError("approximate search needs usearch: pip install 'embmap[ann]'") from error
    return module
