"""The chunks of an open CVC file, and the matrix that decodes rows out of them."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.affine import decode_affine
from embmap.codecs.half import decode_half
from embmap.codecs.planes import Planes, decode_planes, parse_planes
from embmap.errors import ChecksumError, FormatError
from embmap.formats.cvc.layout import FORMAT, ChunkLayout, Column, CvcLayout, Part
from embmap.io.mapping import ByteSource
from embmap.threads import in_parallel
from embmap.vectors.matrix import Matrix, check_out

__all__ = ["Chunk", "ChunkedMatrix"]

_PARALLEL_NBYTES = 1 << 24  # decoded bytes from which a second thread pays


class Chunk:
    """A chunk of a CVC file.

    Parameters
    ----------
    file : ByteSource
        The file.
    number : int
        Which chunk.
    layout : ChunkLayout
        Where it is.
    matrices : tuple of ChunkedMatrix
        The columns.
    """

    def __init__(
        self,
        file: ByteSource,
        number: int,
        layout: ChunkLayout,
        matrices: tuple[ChunkedMatrix, ...],
    ) -> None:
        self._file = file
        self._number = number
        self._layout = layout
        self._matrices = matrices

    def __repr__(self) -> str:
        """Name its rows and how they are stored; reads nothing."""
        return f"<Chunk {self._number}: {self.rows} rows, {self.compression}, not read>"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._layout.rows

    @property
    def compression(self) -> str:
        """How its rows are stored; of several columns, separated by commas."""
        return ", ".join(part.compression for part in self._layout.parts)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the header says about this chunk."""
        return dict(self._layout.metadata)

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """The payload as it is stored: shape (bytes,), uint8, a view where the file is mapped."""
        return self._file.array(self._layout.offset, np.uint8, self._layout.nbytes)

    def check(self) -> None:
        """Compare the payload with its checksum, if the file has any.

        Raises
        ------
        ChecksumError
            When it does not hold.
        """
        if self._layout.crc is not None and zlib.crc32(self.raw.data) != self._layout.crc:
            raise ChecksumError(
                f"the checksum of chunk {self._number} does not hold",
                path=self._file.path,
                format=FORMAT,
                offset=self._layout.offset,
            )

    def decode(
        self, out: npt.NDArray[Any] | None = None, *, column: str | None = None
    ) -> npt.NDArray[Any]:
        """Decode all rows, after comparing the checksum.

        Parameters
        ----------
        out : numpy.ndarray, optional
            Where to put them: shape (rows, dim) and the column's dtype.
        column : str, optional
            Which column; the only one by default.

        Returns
        -------
        numpy.ndarray
            Shape (rows, dim): a new array, or `out`.

        Raises
        ------
        ChecksumError
            When the checksum does not hold.
        FormatError
            When the payload cannot be decoded.
        ValueError
            When `out` does not fit, or a column has to be named.
        """
        names = [matrix.column.name for matrix in self._matrices]
        if column is None and len(names) != 1:
            raise ValueError(f"name one of the columns {', '.join(names)}")
        if column is not None and column not in names:
            raise KeyError(column)
        matrix = self._matrices[0 if column is None else names.index(column)]
        self.check()
        return self._decode(matrix, out)

    def decode_unchecked(self, column: str) -> npt.NDArray[Any]:
        """Decode all rows of a column whatever the checksum says.

        Parameters
        ----------
        column : str
            Which column.

        Returns
        -------
        numpy.ndarray
            Shape (rows, dim).

        Raises
        ------
        FormatError
            When the payload cannot be decoded.
        """
        (matrix,) = (matrix for matrix in self._matrices if matrix.column.name == column)
        return self._decode(matrix, None)

    def _decode(self, matrix: ChunkedMatrix, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        out = check_out(out, (self.rows, matrix.shape[1]), matrix.dtype)
        matrix.decode_rows(self._number, 0, self.rows, out)
        return out


class ChunkedMatrix(Matrix):
    """The rows of one column, decoded when they are asked for."""

    def __init__(self, file: ByteSource, layout: CvcLayout, number: int) -> None:
        self.column: Column = layout.columns[number]
        self._file = file
        self._chunks = layout.chunks
        self._parts = tuple(chunk.parts[number] for chunk in layout.chunks)
        self._starts = [chunk.start for chunk in layout.chunks]
        self._planes: dict[int, Planes] = {}
        self._views: dict[int, npt.NDArray[Any]] = {}
        kinds = {"fp16": "<u2", "int8": "<u1", "none": self.column.dtype}
        self._kinds = {compression: np.dtype(kind) for compression, kind in kinds.items()}
        compressions = {part.compression for part in self._parts} or {self.column.compression}
        self.shape = (layout.n, self.column.dimension)
        self.dtype = np.dtype(self.column.dtype if compressions == {"none"} else "<f4")

    @property
    def zero_copy(self) -> bool:
        return False

    @property
    def random_access(self) -> bool:
        return all(part.compression != "lossless" for part in self._parts)

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        chosen = range(len(self._parts))
        if rows is not None:
            found = np.searchsorted(self._starts, np.unique(rows), "right") - 1
            chosen = np.unique(found).tolist()
        for number in chosen:
            part = self._parts[number]
            self._file.advise("willneed", part.offset, part.nbytes)

    def row(self, i: int) -> npt.NDArray[Any]:
        number = bisect_right(self._starts, i) - 1
        start = i - self._starts[number]
        out = np.empty((1, self.shape[1]), self.dtype)
        self.decode_rows(number, start, start + 1, out)
        row: npt.NDArray[Any] = out[0]
        return row

    def decode_rows(self, number: int, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        """Decode rows of one chunk."""
        part, shape = self._parts[number], (stop - start, self.shape[1])
        if not out.flags.c_contiguous:
            whole = np.empty(shape, self.dtype)
            self.decode_rows(number, start, stop, whole)
            out[...] = whole
        elif part.compression == "lossless":
            out[...] = self._decode_planes(number, part, start, stop).reshape(shape)
        else:
            stored = self._stored_rows(number, start, stop)
            if part.compression == "fp16":
                decode_half(stored, out)
            elif part.compression == "int8":
                decode_affine(stored, part.scale, part.minimum, out)
            else:
                out[...] = stored

    def _stored_rows(self, number: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of a chunk as they are stored: views, kept where the file is mapped."""
        kept = self._views.get(number)
        if kept is not None:
            return kept[start:stop]
        part, columns = self._parts[number], self.shape[1]
        kind = self._kinds[part.compression]
        if self._file.zero_copy:
            shape = (self._chunks[number].rows, columns)
            kept = self._views[number] = self._file.array(part.offset, kind, shape)
            return kept[start:stop]
        offset = part.offset + start * columns * kind.itemsize
        return self._file.array(offset, kind, (stop - start, columns))

    def _decode_planes(
        self, number: int, part: Part, start: int, stop: int
    ) -> npt.NDArray[np.float32]:
        payload = self._file.array(part.offset, np.uint8, part.nbytes)
        try:
            planes = self._planes.get(number)
            if planes is None:
                planes = self._planes[number] = parse_planes(payload)
            rows, columns = self._chunks[number].rows, self.shape[1]
            if planes.n != rows * columns:
                raise ValueError(f"it holds {planes.n} values, not {rows} rows of {columns}")
            return decode_planes(payload, planes, start * columns, stop * columns)
        except ValueError as error:
            raise FormatError(
                f"the payload of chunk {number} cannot be decoded: {error}",
                path=self._file.path,
                format=FORMAT,
                offset=part.offset,
            ) from None

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        self._file.check_whole()
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        pieces = []
        number = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop:
            first = self._starts[number]
            last = min(first + self._chunks[number].rows, stop)
            if last > start:
                pieces.append((number, start - first, last - first))
                start = last
            number += 1
        origin = stop - out.shape[0]

        def decode(piece: tuple[int, int, int]) -> None:
            chunk, low, high = piece
            if high - low == self._chunks[chunk].rows:
                self._check(chunk)
            at = self._starts[chunk] + low - origin
            self.decode_rows(chunk, low, high, out[at : at + high - low])

        if out.nbytes >= _PARALLEL_NBYTES:
            in_parallel(decode, pieces)
        else:
            for piece in pieces:
                decode(piece)
        return out

    def _check(self, number: int) -> None:
        Chunk(self._file, number, self._chunks[number], (self,)).check()

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        self._file.check_whole()
        order = np.argsort(rows, kind="stable")  # chunk by chunk, forwards through the file
        ordered = rows[order]
        numbers = np.searchsorted(self._starts, ordered, "right") - 1
        bounds = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1))
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            number = int(numbers[begin])
            local = ordered[begin:end] - self._starts[number]
            out[order[begin:end]] = self._rows_of_chunk(number, local)

    def _rows_of_chunk(self, number: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Decode sorted rows of one chunk."""
        part, columns = self._parts[number], self.shape[1]
        if part.compression == "lossless":
            out = np.empty((rows.size, columns), self.dtype)
            for i, row in enumerate(rows.tolist()):
                self.decode_rows(number, row, row + 1, out[i : i + 1])
            return out
        if self._file.zero_copy:
            stored = self._stored_rows(number, 0, self._chunks[number].rows)[rows]
        else:
            kind = self._kinds[part.compression]
            sizes = np.full(rows.size, columns * kind.itemsize)
            data = self._file.gather(part.offset + rows * (columns * kind.itemsize), sizes)
            stored = data.view(kind).reshape(rows.size, columns)
        if part.compression == "fp16":
            return decode_half(stored)
        if part.compression == "int8":
            return decode_affine(stored, part.scale, part.minimum)
        return stored.astype(self.dtype, copy=False)
