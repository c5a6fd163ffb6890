"""Rows stored one after the other, as views of a memory map or copied by positional reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.io.mapping import ByteSource
from embmap.io.private_map import map_private
from embmap.io.residency import sample
from embmap.vectors.gathering import gather_rows
from embmap.vectors.matrix import BLOCK_NBYTES, Matrix, Rows

__all__ = ["DenseMatrix", "MappedMatrix", "ReadMatrix", "dense_matrix"]

_GAP_NBYTES = 4096  # reading this much between two rows costs less than a second read
_ASKED_NBYTES = 1 << 26  # bytes of the pages that are asked for at once
_PAGE = 4096


class DenseMatrix(Matrix):
    """Rows stored one after the other."""

    def __init__(
        self, file: ByteSource, offset: int, shape: tuple[int, int], dtype: npt.DTypeLike
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._file = file
        self._offset = offset
        self._row_nbytes = shape[1] * self.dtype.itemsize
        file.check_range(offset, self.nbytes)

    @property
    def zero_copy(self) -> bool:
        return self._file.zero_copy

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        if rows is None:
            self._file.prefetch(np.array([self._offset]), self.nbytes)
        else:
            self._file.prefetch(self._offset + rows * self._row_nbytes, self._row_nbytes)


class MappedMatrix(DenseMatrix):
    """Rows in a memory map, returned as views."""

    def __init__(
        self, file: ByteSource, offset: int, shape: tuple[int, int], dtype: npt.DTypeLike
    ) -> None:
        super().__init__(file, offset, shape, dtype)
        self._array = file.scattered(offset, self.dtype, shape)
        self._ordered: npt.NDArray[Any] | None = None  # the same rows, for ranges of them

    def row(self, i: int) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = self._array[i]
        return row

    def mapped(self) -> npt.NDArray[Any] | None:
        self._file.check_whole()
        return self._array

    def rows(self) -> Rows:
        return self._array

    def _private_view(self) -> npt.NDArray[Any] | None:
        data = map_private(self._file, self._offset, self.nbytes)
        return None if data is None else np.ndarray(self.shape, self.dtype, buffer=data)

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        self._file.check_whole()
        nbytes = self._row_nbytes
        if not self._file.reads_ahead(self._offset + start * nbytes, (stop - start) * nbytes):
            return self._array[start:stop]
        if self._ordered is None:
            self._ordered = self._file.array(self._offset, self.dtype, self.shape)
        return self._ordered[start:stop]

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        at_once = max(_ASKED_NBYTES // max(self._row_nbytes, _PAGE), 1)
        for start in range(0, rows.size, at_once):
            some, part = rows[start : start + at_once], out[start : start + at_once]
            gather_rows(self.asked_for(some), some, part)

    def asked_for(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        self._file.check_whole()
        base, nbytes = self._offset, self._row_nbytes
        if self._file.lacks([base + row * nbytes for row in sample(rows)]):
            self.prefetch(rows)
        return self._array


class ReadMatrix(DenseMatrix):
    """Rows behind positional reads, returned as copies."""

    def row(self, i: int) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = self._span(i, i + 1)[0]
        return row

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        offset = self._offset + start * self._row_nbytes
        return self._file.array(offset, self.dtype, (stop - start, self.shape[1]))

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        order = np.argsort(rows, kind="stable")  # the file is read forwards
        ordered = rows[order]
        rows_per_block = max(BLOCK_NBYTES // max(self._row_nbytes, 1), 1)
        # Rows of a part of the file are read together if they are near each other.
        starts = np.flatnonzero(np.diff(ordered // rows_per_block, prepend=-1))
        stops = np.append(starts[1:], rows.size)[: starts.size]
        firsts, lasts = ordered[starts], ordered[stops - 1]
        near = (lasts - firsts) * self._row_nbytes <= (stops - starts) * _GAP_NBYTES
        for begin, end in zip(starts[near].tolist(), stops[near].tolist(), strict=True):
            first = int(ordered[begin])
            block = self._span(first, int(ordered[end - 1]) + 1)
            out[order[begin:end]] = block[ordered[begin:end] - first]
        apart = np.flatnonzero(np.repeat(~near, stops - starts))
        for begin in range(0, apart.size, rows_per_block):
            places = apart[begin : begin + rows_per_block]
            sizes = np.full(places.size, self._row_nbytes)
            data = self._file.gather(self._offset + ordered[places] * self._row_nbytes, sizes)
            out[order[places]] = data.view(self.dtype).reshape(places.size, self.shape[1])


def dense_matrix(
    file: ByteSource, offset: int, shape: tuple[int, int], dtype: npt.DTypeLike
) -> DenseMatrix:
    """Return the matrix over rows that lie one after the other in a file, mapped or read."""
    return (MappedMatrix if file.zero_copy else ReadMatrix)(file, offset, shape, dtype)
