"""Rows of arrays that are stored column by column, or in the byte order of other machines."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embmap.io.mapping import ByteSource
from embmap.vectors.dense import dense_matrix
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Streamed

__all__ = ["ForeignMatrix", "array_matrix"]


class ForeignMatrix(Streamed):
    """An array that is stored column by column, or whose numbers this machine does not have.

    Rows are copies in the byte order of this machine. Numbers of more than 64 bits become float64.
    """

    def __init__(
        self,
        file: ByteSource,
        offset: int,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        *,
        by_columns: bool,
    ) -> None:
        self.shape = shape
        self.dtype = _native(dtype)
        self._file = file
        self._offset = offset
        self._by_columns = by_columns
        self._stored = dense_matrix(file, offset, shape[::-1] if by_columns else shape, dtype)

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        rows = self._columns(start, stop).T if self._by_columns else self._stored[start:stop]
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers that float64 lacks
            return np.array(rows, self.dtype, order="C")

    def _columns(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return a range of every column: shape (columns, stop - start)."""
        mapped, stored = self._stored.mapped(), self._stored.dtype
        n_rows, n_columns = self.shape
        places = (np.arange(n_columns) * n_rows + start) * stored.itemsize + self._offset
        nbytes = (stop - start) * stored.itemsize
        if mapped is not None:
            if nbytes and self._file.lacks((int(places[-1]) + nbytes - 1,)):
                self._file.prefetch(places, nbytes)
            return mapped[:, start:stop]
        data = self._file.gather(places, np.full(n_columns, nbytes))
        return data.view(stored).reshape(n_columns, stop - start)


def array_matrix(
    file: ByteSource,
    offset: int,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    order: Literal["C", "F"],
) -> Matrix:
    """Return the matrix over an array in a file; "F" is the order of Fortran, column by column."""
    if order == "C" and dtype == _native(dtype):
        return dense_matrix(file, offset, shape, dtype)
    return ForeignMatrix(file, offset, shape, dtype, by_columns=order == "F")


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype.itemsize > 8 else dtype.newbyteorder("=")
