"""The chunks of an open CVC file, and the matrix that decodes their rows."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embmap.codecs.affine import decode_affine
from embmap.codecs.checksums import combine_crc32
from embmap.codecs.half import decode_half
from embmap.codecs.planes import Planes, decode_planes, parse_planes
from embmap.errors import ChecksumError, FormatError
from embmap.formats.cvc.halves import Halves
from embmap.formats.cvc.header import FORMAT
from embmap.formats.cvc.layout import ChunkLayout, CvcLayout, Part, get_dtype
from embmap.io.mapping import ByteSource
from embmap.io.residency import sample
from embmap.threads import in_parallel
from embmap.vectors.matrix import Matrix, check_out

__all__ = ["Chunk", "ChunkedMatrix"]

_PARALLEL_NBYTES = 1 << 24  # decoded bytes from which threads are faster
_PIECE_NBYTES = 1 << 22  # decoded bytes that a thread takes at once
_TABLE_NBYTES = 1 << 14  # size of a chunk that is worth a table of its codes
_BLOCK_NBYTES = 1 << 19  # decoded bytes that stay in the second-level cache with what is stored


class _Piece(NamedTuple):
    """Rows of a chunk to decode, from `start` to `stop`, and their first row in the result.

    `checks` says what is compared with the chunk's checksum: "chunk" reads its payload before
    decoding, "rows" adds up the bytes of these rows, "" nothing.
    """

    number: int
    start: int
    stop: int
    place: int
    checks: str


class Chunk:
    """A chunk of a CVC file.

    Parameters
    ----------
    file : ByteSource
        The bytes of the file.
    number : int
        Number of the chunk, counted from 0.
    layout : ChunkLayout
        Its offsets.
    matrices : mapping
        From names to the columns of the file; raises the error of a column that cannot be read.
    """

    def __init__(
        self,
        file: ByteSource,
        number: int,
        layout: ChunkLayout,
        matrices: Mapping[str, ChunkedMatrix],
    ) -> None:
        self._file = file
        self._number = number
        self._layout = layout
        self._matrices = matrices

    def __repr__(self) -> str:
        """Show the number of rows and their compression; reads nothing."""
        return f"<Chunk {self._number}: {self.rows} rows, {self.compression}, not read>"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._layout.rows

    @property
    def compression(self) -> str:
        """The compression of each column, separated by commas."""
        return ", ".join(part.compression for part in self._layout.parts)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of this chunk in the header."""
        return dict(self._layout.metadata)

    @property
    def parameters(self) -> dict[str, dict[str, float]]:
        """The "min" and "scale" of each int8 column, by its name; the header has them."""
        parts = {name: matrix.parts[self._number] for name, matrix in self._matrices.items()}
        return {
            name: {"min": part.minimum, "scale": part.scale}
            for name, part in parts.items()
            if part.compression == "int8"
        }

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """The stored payload: shape (bytes,), uint8; a view if the file is mapped."""
        return self._file.array(self._layout.offset, np.uint8, self._layout.nbytes)

    def check(self) -> None:
        """Compare the payload with its checksum, if the file has checksums.

        Raises
        ------
        ChecksumError
            If they do not match.
        """
        if self._layout.crc is not None:
            _compare(self._file, self._number, self._layout, zlib.crc32(self.raw.data))

    def decode(
        self, out: npt.NDArray[Any] | None = None, *, column: str | None = None
    ) -> npt.NDArray[Any]:
        """Decode all rows, and compare the checksum.

        Parameters
        ----------
        out : numpy.ndarray, optional
            An array for the rows: shape (rows, dim) and the column's dtype. Its rows are undefined
            if an error is raised.
        column : str, optional
            Name of the column; required if the file has several.

        Returns
        -------
        numpy.ndarray
            Shape (rows, dim): a new array, or `out`.

        Raises
        ------
        ChecksumError
            If the checksum does not match the payload.
        FormatError
            If the payload or the column cannot be read.
        ValueError
            If `out` does not fit, or `column` is missing.
        KeyError
            If there is no column of that name.
        """
        if column is None:
            if len(self._matrices) != 1:
                raise ValueError(f"column must be one of {', '.join(self._matrices)}, not None")
            (column,) = self._matrices
        matrix = self._matrices[column]
        out = check_out(out, (self.rows, matrix.shape[1]), matrix.dtype)
        matrix.decode_ranges([(self._number, 0, self.rows)], out)
        return out

    def decode_unchecked(self, column: str) -> npt.NDArray[Any]:
        """Decode all rows of a column without comparing the checksum.

        Parameters
        ----------
        column : str
            Name of the column.

        Returns
        -------
        numpy.ndarray
            Shape (rows, dim).

        Raises
        ------
        FormatError
            If the payload cannot be decoded.
        """
        matrix = self._matrices[column]
        out = np.empty((self.rows, matrix.shape[1]), matrix.dtype)
        matrix.decode_rows(self._number, 0, self.rows, out)
        return out


class ChunkedMatrix(Matrix):
    """The rows of one column, decoded on request."""

    def __init__(self, file: ByteSource, layout: CvcLayout, number: int) -> None:
        self.column = layout.columns[number]
        self._file = file
        self._chunks = layout.chunks
        self.parts = tuple(chunk.parts[number] for chunk in layout.chunks)
        self._starts = [chunk.start for chunk in layout.chunks]
        self._planes: dict[int, Planes] = {}
        self._views: dict[int, npt.NDArray[Any]] = {}
        self._tables: dict[int, npt.NDArray[np.float32]] = {}
        kinds = {"fp16": "<u2", "int8": "<u1", "none": self.column.dtype}
        self._kinds = {compression: np.dtype(kind) for compression, kind in kinds.items()}
        self.shape = (layout.n, self.column.dimension)
        self.dtype = np.dtype(get_dtype(self.column, self.parts))

    @property
    def zero_copy(self) -> bool:
        return False

    @property
    def random_access(self) -> bool:
        return all(part.compression != "lossless" for part in self.parts)

    def stored_as(self, dtype: str) -> Matrix | None:
        if dtype != "float16" or any(part.compression != "fp16" for part in self.parts):
            return super().stored_as(dtype)
        offsets = [part.offset for part in self.parts]
        return Halves(self._file, self._chunks, offsets, shape=self.shape, check=self.check_chunk)

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        if rows is None or not self.random_access:
            chosen = range(len(self.parts))
            if rows is not None:
                chosen = np.unique(np.searchsorted(self._starts, rows, "right") - 1).tolist()
            parts = [self.parts[number] for number in chosen]
            offsets = np.array([part.offset for part in parts], np.int64)
            self._file.prefetch(offsets, np.array([part.nbytes for part in parts], np.int64))
            return
        places, nbytes = self._places(rows)
        self._file.prefetch(places, nbytes)

    def _places(
        self, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the offsets and sizes of rows that can be decoded by themselves."""
        starts, offsets, nbytes = self._places_of_chunks
        found = np.searchsorted(starts, rows, "right") - 1
        return offsets[found] + (rows - starts[found]) * nbytes[found], nbytes[found]

    @cached_property
    def _places_of_chunks(self) -> npt.NDArray[np.int64]:
        """The first row, the offset, and the size of a row of each chunk: (3, chunks)."""
        nbytes = [self._kinds[part.compression].itemsize * self.shape[1] for part in self.parts]
        return np.array([self._starts, [part.offset for part in self.parts], nbytes], np.int64)

    def row(self, i: int) -> npt.NDArray[Any]:
        number = bisect_right(self._starts, i) - 1
        start = i - self._starts[number]
        part = self.parts[number]
        compression = part.compression
        if compression == "lossless":
            row: npt.NDArray[Any] = self._decode_planes(number, part, np.array([start]))[0]
            return row
        stored: npt.NDArray[Any] = self.stored_rows(number, start, start + 1)[0]
        if compression == "fp16":  # for few numbers, this is faster than decode_half
            return stored.view(np.float16).astype(np.float32)
        if compression == "int8":
            table = self._tables.get(number)
            return (self._table(number) if table is None else table).take(stored)
        return stored.astype(self.dtype)

    def _table(self, number: int) -> npt.NDArray[np.float32]:
        """Return the numbers that the codes of a chunk mean."""
        part = self.parts[number]
        table = decode_affine(np.arange(256, dtype=np.uint8), part.scale, part.minimum)
        if part.nbytes >= _TABLE_NBYTES:  # tables of many small chunks would take too much memory
            self._tables[number] = table
        return table

    def decode_rows(self, number: int, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        """Decode the rows from `start` to `stop` of a chunk, counted from its first row."""
        part = self.parts[number]
        if part.compression == "lossless":
            out[...] = self._decode_planes(number, part, np.arange(start, stop))
        else:
            self._decode_stored(number, self.stored_rows(number, start, stop), out)

    def _decode_stored(
        self, number: int, stored: npt.NDArray[Any], out: npt.NDArray[Any] | None
    ) -> npt.NDArray[Any]:
        """Decode rows as they are stored in a chunk that is not lossless."""
        part = self.parts[number]
        is_coded = part.compression in ("fp16", "int8")
        if is_coded and (out is None or out.flags.c_contiguous):
            if part.compression == "fp16":
                return decode_half(stored, out)
            return decode_affine(stored, part.scale, part.minimum, out)
        if is_coded:
            stored = self._decode_stored(number, stored, None)
        if out is None:
            return stored.astype(self.dtype, copy=False)
        out[...] = stored
        return out

    def n_rows(self, number: int) -> int:
        """Return the number of rows of a chunk."""
        return self._chunks[number].rows

    def locate(self, number: int) -> dict[str, Any]:
        """Return the place of this column in a chunk, for an error."""
        return {"path": self._file.path, "format": FORMAT, "offset": self.parts[number].offset}

    def stored_bytes(self, number: int) -> npt.NDArray[np.uint8]:
        """Return what a chunk stores of this column."""
        self._file.check_whole()
        part = self.parts[number]
        return self._file.array(part.offset, np.uint8, part.nbytes)

    def stored_rows(self, number: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of a chunk as they are stored."""
        # A mapped file keeps one view for each chunk, which makes single rows faster.
        kept = self._views.get(number)
        if kept is not None and stop - start == 1:
            return kept[start:stop]
        part, columns = self.parts[number], self.shape[1]
        kind = self._kinds[part.compression]
        if self._file.zero_copy and stop - start == 1:
            return self._view(number)[start:stop]
        offset = part.offset + start * columns * kind.itemsize
        return self._file.array(offset, kind, (stop - start, columns))

    def _view(self, number: int) -> npt.NDArray[Any]:
        """Return a chunk of a mapped file as it is stored."""
        kept = self._views.get(number)
        if kept is None:
            part = self.parts[number]
            shape = (self._chunks[number].rows, self.shape[1])
            kept = self._file.scattered(part.offset, self._kinds[part.compression], shape)
            self._views[number] = kept
        return kept

    def _decode_planes(
        self, number: int, part: Part, chosen: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        payload = self._file.array(part.offset, np.uint8, part.nbytes)
        try:
            planes = self._planes.get(number)
            if planes is None:
                planes = self._planes[number] = parse_planes(payload)
            rows, columns = self._chunks[number].rows, self.shape[1]
            if planes.n != rows * columns:
                raise ValueError(f"it has {planes.n} values, not {rows} rows of {columns}")
            places = chosen[:, np.newaxis] * columns + np.arange(columns)
            return decode_planes(payload, planes, places.reshape(-1)).reshape(places.shape)
        except ValueError as error:
            raise FormatError(
                f"the payload of chunk {number} cannot be decoded: {error}",
                path=self._file.path,
                format=FORMAT,
                offset=part.offset,
            ) from None

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        ranges = []
        number = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop:
            first = self._starts[number]
            last = min(first + self._chunks[number].rows, stop)
            if last > start:
                ranges.append((number, start - first, last - first))
                start = last
            number += 1
        self.decode_ranges(ranges, out)
        return out

    def decode_ranges(self, ranges: list[tuple[int, int, int]], out: npt.NDArray[Any]) -> None:
        """Decode ranges of rows into `out`, and compare the checksums of chunks that are whole.

        A range has the number of a chunk, and its rows counted from the first row of the chunk.
        """
        self._file.check_whole()
        pieces = self._pieces(ranges)
        sums: dict[_Piece, int] = {}

        def decode(piece: _Piece) -> None:
            sums[piece] = self._decode_piece(piece, out)

        if out.nbytes >= _PARALLEL_NBYTES:
            in_parallel(decode, pieces)
        else:
            for piece in pieces:
                decode(piece)
        checksum = 0
        for piece in pieces:
            if piece.checks == "rows":
                number, start, stop, *_ = piece
                n_rows = self._chunks[number].rows
                nbytes = self.parts[number].nbytes // n_rows * (stop - start)
                checksum = combine_crc32(checksum if start else 0, sums[piece], nbytes)
                if stop == n_rows:
                    _compare(self._file, number, self._chunks[number], checksum)

    def _pieces(self, ranges: list[tuple[int, int, int]]) -> list[_Piece]:
        """Split ranges of rows into pieces of work."""
        at_once = max(_PIECE_NBYTES // (self.shape[1] * self.dtype.itemsize), 1)
        pieces, place = [], 0
        for number, low, high in ranges:
            chunk, part = self._chunks[number], self.parts[number]
            splits = part.compression != "lossless"
            is_whole = high - low == chunk.rows and chunk.crc is not None
            # The bytes of these rows are checked while they are in the cache.
            checks = "rows" if splits and 0 < part.nbytes == chunk.nbytes else "chunk"
            for start in range(low, max(high, low + 1), at_once) if splits else (low,):
                stop = min(start + at_once, high) if splits else high
                pieces.append(_Piece(number, start, stop, place, checks if is_whole else ""))
                checks = "" if checks == "chunk" else checks
                place += stop - start
        return pieces

    def _decode_piece(self, piece: _Piece, out: npt.NDArray[Any]) -> int:
        """Decode rows to their places, and return their checksum if it is asked for."""
        number, start, stop, place, checks = piece
        if checks == "chunk":
            self.check_chunk(number)
        if checks != "rows":
            self.decode_rows(number, start, stop, out[place : place + stop - start])
            return 0
        at_once = max(_BLOCK_NBYTES // (self.shape[1] * self.dtype.itemsize), 1)
        checksum = 0
        for low in range(start, stop, at_once):
            stored = self.stored_rows(number, low, min(low + at_once, stop))
            checksum = zlib.crc32(stored.data, checksum)
            at = place + low - start
            self._decode_stored(number, stored, out[at : at + len(stored)])
        return checksum

    def check_chunk(self, number: int) -> None:
        """Compare the payload of a chunk with its checksum."""
        Chunk(self._file, number, self._chunks[number], {}).check()

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        self._file.check_whole()
        if self.random_access:
            few, _ = self._places(np.array(sample(rows), np.int64))
            if self._file.lacks(few.tolist()):
                self.prefetch(rows)
        if (rows[1:] >= rows[:-1]).all():
            order, ordered = None, rows
        else:  # so that the file is read forwards
            order = np.argsort(rows, kind="stable")
            ordered = rows[order]
        starts = self._starts
        begin = 0
        while begin < rows.size:
            number = bisect_right(starts, ordered[begin]) - 1
            stop = starts[number] + self._chunks[number].rows
            end = int(np.searchsorted(ordered, stop))
            local = ordered[begin:end] - starts[number]
            if order is not None:
                out[order[begin:end]] = self._rows_of_chunk(number, local)
            elif out.flags.c_contiguous:
                self._rows_of_chunk(number, local, out[begin:end])
            else:
                out[begin:end] = self._rows_of_chunk(number, local)
            begin = end

    def _rows_of_chunk(
        self, number: int, rows: npt.NDArray[np.int64], out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Decode sorted rows of a chunk, counted from its first row; `out` must be contiguous."""
        part, columns = self.parts[number], self.shape[1]
        if part.compression == "lossless":
            found: npt.NDArray[Any] = self._decode_planes(number, part, rows)
            if out is None:
                return found
            out[...] = found
            return out
        if self._file.zero_copy:
            whole = self._view(number)
            # The rows exist. To gather unaligned rows, take would first copy all of them.
            aligned = whole.flags.aligned
            stored = whole.take(rows, axis=0, mode="clip") if aligned else whole[rows]
        else:
            kind = self._kinds[part.compression]
            sizes = np.full(rows.size, columns * kind.itemsize)
            data = self._file.gather(part.offset + rows * (columns * kind.itemsize), sizes)
            stored = data.view(kind).reshape(rows.size, columns)
        return self._decode_stored(number, stored, out)


def _compare(file: ByteSource, number: int, chunk: ChunkLayout, checksum: int) -> None:
    """Raise ChecksumError unless the file has this checksum for the payload of a chunk."""
    if chunk.crc != checksum:
        raise ChecksumError(
            f"the checksum of chunk {number} does not match its payload",
            path=file.path,
            format=FORMAT,
            offset=chunk.offset,
        )
