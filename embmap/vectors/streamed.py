"""Matrices whose rows are made a range at a time: scaled, cut, selected, or two on end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.vectors.matrix import Matrix

__all__ = ["ArrayMatrix", "Leading", "Scaled", "Selected", "Stacked", "Streamed"]


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
        self._array = array.view()
        self._array.flags.writeable = False  # as in a file, so that DLPack copies it

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
        return self.read(start, stop)

    def mapped_rows(
        self, start: int, stop: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None:
        """Return all rows of the file as a view, and the numbers of a range of those selected.

        None if rows are not mapped, or if the range lies together.
        """
        rows = self._rows[start:stop]
        together = isinstance(rows, range) or int(rows[-1]) - int(rows[0]) + 1 == len(rows)
        array = None if together else self._matrix.asked_for(np.asarray(rows))
        return None if array is None else (array, np.asarray(rows))

    def read(
        self, start: int, stop: int, buffer: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Return a range of rows: in a buffer of enough rows, unless they lie together.

        A caller with a buffer has checked that the rows exist.
        """
        rows = self._rows[start:stop]
        n = len(rows)
        if not n:
            return self._matrix[:0]
        first = int(rows[0])
        if isinstance(rows, range) or (
            int(rows[-1]) - first + 1 == n and (np.diff(rows) > 0).all()
        ):
            return self._matrix[first : first + n]
        if buffer is None:
            return self._matrix.take(rows)
        self._matrix._gather(np.asarray(rows), buffer[:n])
        return buffer[:n]

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        own = self._rows
        self._matrix.take(own.start + rows * own.step if isinstance(own, range) else own[rows], out)


class Leading(Streamed):
    """The first columns of a matrix."""

    def __init__(self, matrix: Matrix, columns: int) -> None:
        self.shape = (len(matrix), columns)
        self.dtype = matrix.dtype
        self._matrix = matrix

    def mapped(self) -> npt.NDArray[Any] | None:
        """Return the columns as a view of the file, whose rows are not contiguous."""
        array = self._matrix.mapped()
        return None if array is None else array[:, : self.shape[1]]

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._matrix[start:stop][:, : self.shape[1]]

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        array = self.mapped()
        out[...] = self._matrix.take(rows)[:, : self.shape[1]] if array is None else array[rows]


class Scaled(Streamed):
    """Integers times a factor, in float32."""

    def __init__(self, matrix: Matrix, scale: float) -> None:
        self.shape = matrix.shape
        self.dtype = np.dtype(np.float32)
        self._matrix = matrix
        self._scale = np.float32(scale)

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            numbers: npt.NDArray[Any] = np.multiply(
                self._matrix[start:stop], self._scale, dtype=np.float32
            )
        return numbers


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
