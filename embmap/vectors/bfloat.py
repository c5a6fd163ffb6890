"""Rows of bfloat16 as float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import as_float32
from embmap.vectors.matrix import Matrix

__all__ = ["BFloat16Matrix"]


class BFloat16Matrix(Matrix):
    """Rows stored as bfloat16 (the bits, uint16), returned as float32."""

    def __init__(self, stored: Matrix) -> None:
        self.shape = stored.shape
        self.dtype = np.dtype(np.float32)
        self._stored = stored

    @property
    def zero_copy(self) -> bool:
        return False

    def row(self, i: int) -> npt.NDArray[Any]:
        return as_float32(self._stored.row(i))

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        return as_float32(self._stored[start:stop])

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        out[...] = as_float32(self._stored.take(rows))

    def stored_as(self, dtype: str) -> Matrix | None:
        return self._stored if dtype == "bfloat16" else super().stored_as(dtype)

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        self._stored.prefetch(rows)
