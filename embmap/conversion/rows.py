"""Rows on the way from one file to another: scaled, cast, and measured, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import BFLOAT16, as_bfloat16, name_dtype
from embmap.progress import Progress
from embmap.vectors.matrix import Matrix
from embmap.vectors.segments import normalize
from embmap.vectors.streamed import Streamed

__all__ = ["Converted", "Lengths"]


class Lengths:
    """The lengths of rows, which are complete once all rows have been written."""

    def __init__(self, n: int) -> None:
        self.values = np.zeros(n, np.float32)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return the lengths: shape (n,), float32."""
        return np.array(self.values, dtype, copy=copy)


class Converted(Streamed):
    """The rows of a matrix as the output stores them.

    Rows are multiplied by `norms` if that is given and scaled to unit length if `unit` is true;
    their lengths are then noted in `lengths`.
    """

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
        # Infinities and NaN pass through without a warning.
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
            raise ValueError(f"dtype must hold {block.dtype} without loss, not {self.dtype}")
        try:
            with np.errstate(over="raise", invalid="ignore"):
                is_bfloat16 = self.dtype == BFLOAT16
                return as_bfloat16(block) if is_bfloat16 else block.astype(self.dtype)
        except FloatingPointError:
            last = start + len(block) - 1
            raise ValueError(
                f"rows {start} to {last} hold numbers that {name_dtype(self.dtype)} cannot; "
                "use another dtype"
            ) from None

    def blocks(self, rows_per_block: int | None = None) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Return the rows in blocks and report progress after each."""
        for start, block in super().blocks(rows_per_block):
            yield start, block
            if self._progress is not None:
                self._progress("converting rows", start + len(block), len(self))
