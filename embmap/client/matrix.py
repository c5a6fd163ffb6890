"""The vectors of a served file by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.vectors.matrix import Matrix

__all__ = ["RemoteMatrix"]


class RemoteMatrix(Matrix):
    """Rows that are requested from a server.

    Parameters
    ----------
    shape : tuple of int
        (rows, dim), or (rows, T, dim).
    dtype : numpy.dtype
        Type of a received element.
    look_up : callable
        A function that returns the vectors of rows that exist.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        look_up: Callable[[Sequence[int]], npt.NDArray[Any]],
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self._look_up = look_up

    @property
    def zero_copy(self) -> bool:
        return False

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        pass  # the server reads ahead on its own

    def row(self, i: int) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = self._look_up([i])[0]
        return row

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._look_up(range(start, stop))

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        out[...] = self._look_up(rows.tolist())
