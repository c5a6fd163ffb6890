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
        Returns the vectors of rows that exist.

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
        look_up: Callable[[Sequence[int]], npt.NDArray[Any]],
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
        key : int, slice, sequence of int or bool, or a tuple of these and columns
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
        if isinstance(key, tuple):
            rows = self[key[0]] if key else self[:]
            columns: npt.NDArray[Any] = rows[key[1:] if rows.ndim == 1 else (slice(None), *key[1:])]
            return columns
        n = len(self)
        if isinstance(key, slice):
            return self._look_up(range(*key.indices(n)))
        if not np.ndim(key):
            if isinstance(key, bool | np.bool_) or not hasattr(key, "__index__"):
                raise IndexError(f"rows are chosen by integers, not {type(key).__name__}")
            row: npt.NDArray[Any] = self.take([key])[0]
            return row
        wanted = np.asarray(key)
        if wanted.ndim != 1:
            raise IndexError(f"rows are chosen by a one-dimensional array, not {wanted.ndim}-d")
        if wanted.dtype == np.bool_:
            if wanted.size != n:
                raise IndexError(f"{wanted.size} booleans for {n} rows")
            return self._look_up(np.flatnonzero(wanted).tolist())
        if wanted.size and wanted.dtype.kind not in "iu":
            raise IndexError(f"rows are chosen by integers, not {wanted.dtype}")
        return self.take(wanted.tolist())

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
