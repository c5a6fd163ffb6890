"""Matrices whose rows are made a range at a time: of an array, a selection, two on end, or cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.vectors.matrix import Matrix

__all__ = ["ArrayMatrix", "Cut", "Selected", "Stacked", "Streamed"]


class Streamed(Matrix):
    """A matrix that makes a range of rows when a caller asks for it."""

    @property
    def zero_copy(self) -> bool:
        """Always False."""
        return False

    def row(self, i: int) -> npt.NDArray[Any]:
        """Return one row."""
        row: npt.NDArray[Any] = self._span(i, i + 1)[0]
        return row

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        bounds = [0, *breaks.tolist(), rows.size]
        for first, last in pairwise(bounds):
            if last > first:
                start = int(rows[first])
                out[first:last] = self._span(start, start + last - first)

    @property
    def random_access(self) -> bool:
        return False

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Do nothing: rows are read in order."""


class ArrayMatrix(Streamed):
    """A two-dimensional array as a matrix."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        rows, columns = array.shape
        self.shape = (rows, columns)
        self.dtype = array.dtype
        self._array = array

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._array[start:stop]

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        out[...] = self._array[rows]


class Selected(Streamed):
    """Some rows of a matrix."""

    def __init__(self, matrix: Matrix, rows: range | npt.NDArray[np.int64]) -> None:
        self.shape = (len(rows), matrix.shape[1])
        self.dtype = matrix.dtype
        self._matrix = matrix
        self._rows = rows

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        rows = self._rows[start:stop]
        n = len(rows)
        if not n:
            return self._matrix[:0]
        first = int(rows[0])
        if isinstance(rows, range) or (
            int(rows[-1]) - first + 1 == n and (np.diff(rows) > 0).all()
        ):
            return self._matrix[first : first + n]
        return self._matrix.take(rows)

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        numbers = rows + self._rows.start if isinstance(self._rows, range) else self._rows[rows]
        out[...] = self._matrix.take(numbers)


class Cut(Streamed):
    """The first `dim` numbers of each row of a matrix."""

    def __init__(self, matrix: Matrix, dim: int) -> None:
        self.shape = (len(matrix), dim)
        self.dtype = matrix.dtype
        self._matrix = matrix

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._matrix[start:stop][:, : self.shape[1]]

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        out[...] = self._matrix.take(rows)[:, : self.shape[1]]


class Stacked(Streamed):
    """The rows of one matrix, followed by the rows of another."""

    def __init__(self, upper: Matrix, lower: Matrix) -> None:
        self.shape = (len(upper) + len(lower), upper.shape[1])
        self.dtype = upper.dtype
        self._parts = upper, lower

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        upper, lower = self._parts
        n = len(upper)
        if stop <= n:
            return upper[start:stop]
        if start >= n:
            return lower[start - n : stop - n]
        return np.concatenate((upper[start:n], lower[: stop - n]))

    def blocks(self, rows_per_block: int | None = None) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Return the blocks of the upper matrix, then the blocks of the lower one."""
        upper, lower = self._parts
        yield from upper.blocks(rows_per_block)
        for start, block in lower.blocks(rows_per_block):
            yield start + len(upper), block
