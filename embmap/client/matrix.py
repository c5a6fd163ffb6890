"""The vectors of a served file by row."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["RemoteMatrix"]


class RemoteMatrix:
    """Vectors that are asked for by row.

    Parameters
    ----------
    shape : tuple of int
        (rows, dim).
    dtype : numpy.dtype
        Type of an element as it arrives.
    look_up : callable
        Returns the vectors of a list of rows that exist.

    Attributes
    ----------
    shape : tuple of int
        (rows, dim).
    dtype : numpy.dtype
        Type of an element as it arrives.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        look_up: Callable[[list[int]], npt.NDArray[Any]],
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self._look_up = look_up

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Return rows; negative numbers count from the end.

        Parameters
        ----------
        key : int, slice, or sequence of int or bool
            A row or rows.

        Returns
        -------
        numpy.ndarray
            Shape (dim,) for a row, else (n, dim).

        Raises
        ------
        IndexError
            For a row that does not exist.
        """
        n = len(self)
        if isinstance(key, slice):
            return self._look_up(list(range(*key.indices(n))))
        if not isinstance(key, Sequence) and not np.ndim(key):
            row: npt.NDArray[Any] = self.take([key])[0]
            return row
        if np.asarray(key).dtype == np.bool_:
            if len(key) != n:
                raise IndexError(f"{len(key)} booleans for {n} rows")
            return self._look_up(np.flatnonzero(key).tolist())
        return self.take(key)

    def take(self, rows: Iterable[int]) -> npt.NDArray[Any]:
        """Return some rows.

        Parameters
        ----------
        rows : iterable of int
            Which; negative ones count from the end.

        Returns
        -------
        numpy.ndarray
            Shape (n, dim).

        Raises
        ------
        IndexError
            For a row that does not exist.
        """
        n = len(self)
        asked = [operator.index(row) for row in rows]
        for row in asked:
            if not -n <= row < n:
                raise IndexError(f"row {row} of {n}")
        return self._look_up([row % n for row in asked])
