"""The chunks of an open CVC file, and the matrix that decodes their rows."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.affine import decode_affine
from embmap.codecs.half import decode_half
from embmap.codecs.planes import Planes, decode_planes, parse_planes
from embmap.errors import ChecksumError, FormatError
from embmap.formats.cvc.halves import Halves
from embmap.formats.cvc.header import FORMAT
from embmap.formats.cvc.layout import ChunkLayout, CvcLayout, Part, get_dtype
from embmap.io.mapping import ByteSource
from embmap.threads import in_parallel
from embmap.vectors.matrix import Matrix, check_out

__all__ = ["Chunk", "ChunkedMatrix"]

_PARALLEL_NBYTES = 1 << 24  # decoded bytes from which threads are faster


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
        if self._layout.crc is not None and zlib.crc32(self.raw.data) != self._layout.crc:
            raise ChecksumError(
                f"the checksum of chunk {self._number} does not match its payload",
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
            An array for the rows: shape (rows, dim) and the column's dtype.
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
        self.check()
        return self._decode(matrix, out)

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
        return self._decode(self._matrices[column], None)

    def _decode(self, matrix: ChunkedMatrix, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        out = check_out(out, (self.rows, matrix.shape[1]), matrix.dtype)
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
        chosen = range(len(self.parts))
        if rows is not None:
            found = np.searchsorted(self._starts, np.unique(rows), "right") - 1
            chosen = np.unique(found).tolist()
        for number in chosen:
            part = self.parts[number]
            self._file.advise("willneed", part.offset, part.nbytes)

    def row(self, i: int) -> npt.NDArray[Any]:
        number = bisect_right(self._starts, i) - 1
        start = i - self._starts[number]
        out = np.empty((1, self.shape[1]), self.dtype)
        self.decode_rows(number, start, start + 1, out)
        row: npt.NDArray[Any] = out[0]
        return row

    def decode_rows(self, number: int, start: int, stop: int, out: npt.NDArray[Any]) -> None:
        """Decode the rows from `start` to `stop` of a chunk, counted from its first row."""
        part, shape = self.parts[number], (stop - start, self.shape[1])
        if not out.flags.c_contiguous:
            whole = np.empty(shape, self.dtype)
            self.decode_rows(number, start, stop, whole)
            out[...] = whole
        elif part.compression == "lossless":
            out[...] = self._decode_planes(number, part, np.arange(start, stop))
        else:
            stored = self.stored_rows(number, start, stop)
            if part.compression == "fp16":
                decode_half(stored, out)
            elif part.compression == "int8":
                decode_affine(stored, part.scale, part.minimum, out)
            else:
                out[...] = stored

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
        if kept is not None:
            return kept[start:stop]
        part, columns = self.parts[number], self.shape[1]
        kind = self._kinds[part.compression]
        if self._file.zero_copy:
            shape = (self._chunks[number].rows, columns)
            kept = self._views[number] = self._file.array(part.offset, kind, shape)
            return kept[start:stop]
        offset = part.offset + start * columns * kind.itemsize
        return self._file.array(offset, kind, (stop - start, columns))

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
                self.check_chunk(chunk)
            at = self._starts[chunk] + low - origin
            self.decode_rows(chunk, low, high, out[at : at + high - low])

        if out.nbytes >= _PARALLEL_NBYTES:
            in_parallel(decode, pieces)
        else:
            for piece in pieces:
                decode(piece)
        return out

    def check_chunk(self, number: int) -> None:
        """Compare the payload of a chunk with its checksum."""
        Chunk(self._file, number, self._chunks[number], {}).check()

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        self._file.check_whole()
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
            whole = self.stored_rows(number, 0, self._chunks[number].rows)
            # The rows exist. To gather unaligned rows, take would first copy all of them.
            aligned = whole.flags.aligned
            stored = whole.take(rows, axis=0, mode="clip") if aligned else whole[rows]
        else:
            kind = self._kinds[part.compression]
            sizes = np.full(rows.size, columns * kind.itemsize)
            data = self._file.gather(part.offset + rows * (columns * kind.itemsize), sizes)
            stored = data.view(kind).reshape(rows.size, columns)
        if part.compression == "fp16":
            return decode_half(stored, out)
        if part.compression == "int8":
            return decode_affine(stored, part.scale, part.minimum, out)
        if out is None:
            return stored.astype(self.dtype, copy=False)
        out[...] = stored
        return out
