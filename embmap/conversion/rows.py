"""Matrices on the way from a file to another: chosen, stacked, scaled, cast, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.progress import Progress
from embmap.vectors.matrix import Matrix
from embmap.vectors.segments import normalize

__all__ = ["ArrayMatrix", "Converted", "Lengths", "Selected", "Stacked", "Streamed"]


class Streamed(Matrix):
    """A matrix whose rows are made when a range of them is asked for."""

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
        """Do nothing: rows are read in order anyway."""


class ArrayMatrix(Streamed):
    """An array of two dimensions as a matrix."""

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


class Stacked(Streamed):
    """The rows of one matrix, then those of another."""

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
        """Return the blocks of one matrix, then those of the other."""
        upper, lower = self._parts
        yield from upper.blocks(rows_per_block)
        for start, block in lower.blocks(rows_per_block):
            yield start + len(upper), block


class Lengths:
    """The lengths of rows, known once the rows have gone by."""

    def __init__(self, n: int) -> None:
        self.values = np.zeros(n, np.float32)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return them: shape (n,), float32."""
        return np.array(self.values, dtype, copy=copy)


class Converted(Streamed):
    """Rows as the output wants them."""

    def __init__(
        self,
        matrix: Matrix,
        dtype: np.dtype[Any],
        *,
        norms: Matrix | None = None,
        unit: bool = False,
        lengths: Lengths | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.shape = matrix.shape
        self.dtype = dtype
        self._matrix = matrix
        self._norms = norms
        self._unit = unit
        self.lengths = lengths
        self._progress = progress

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        # What is not finite stays so, in silence.
        with np.errstate(invalid="ignore", over="ignore"):
            block = self._matrix[start:stop]
            if self._unit:
                block = block.astype(np.result_type(block.dtype, np.float32))
                lengths = normalize(block)
                if self.lengths is not None:
                    if self._norms is not None:
                        lengths = lengths * self._norms[start:stop][:, 0]
                    self.lengths.values[start:stop] = lengths
            elif self._norms is not None:
                block = block * self._norms[start:stop]
        return self._cast(block, start)

    def _cast(self, block: npt.NDArray[Any], start: int) -> npt.NDArray[Any]:
        if block.dtype == self.dtype:
            return block
        if self.dtype.kind in "iu" and block.dtype.kind not in "iu":
            raise ValueError(f"{block.dtype} numbers cannot become {self.dtype} without loss")
        try:
            with np.errstate(over="raise", invalid="ignore"):
                return block.astype(self.dtype)
        except FloatingPointError:
            last = start + len(block) - 1
            raise ValueError(
                f"rows {start} to {last} hold numbers that {self.dtype} cannot; use another dtype"
            ) from None

    def blocks(self, rows_per_block: int | None = None) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Return the rows in blocks, reporting those that have been dealt with."""
        for start, block in super().blocks(rows_per_block):
            yield start, block
            if self._progress is not None:
                self._progress("converting rows", start + len(block), len(self))
