"""Matrices of a DWE file, decoded on request: the words at a time step, and at all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.formats.dwe.groups import Groups
from embmap.formats.dwe.layout import entries_of
from embmap.formats.dwe.queries import scaled
from embmap.vectors.exchange import extend
from embmap.vectors.matrix import Matrix

__all__ = ["Timestep", "Trajectories"]


class _DecodedMatrix(Matrix):
    @property
    def zero_copy(self) -> bool:
        return False

    @property
    def random_access(self) -> bool:
        return False


class Timestep(_DecodedMatrix):
    """The rows of one time step: shape (V, K), float32, or int16 without a scale.

    Decoding a row takes its whole group, at this step and at the steps that it depends on.

    Parameters
    ----------
    groups : Groups
        The groups of the file.
    t : int
        The time step, counted from 0.
    scale : numpy.float32, optional
        Factor from integers to numbers; without it the rows are integers.
    """

    def __init__(self, groups: Groups, t: int, scale: np.float32 | None = None) -> None:
        self.groups = groups
        self.t = t
        self._scale = scale
        self._group = groups.layout.group
        self.shape = (groups.layout.n_words, groups.layout.dim)
        self.dtype = np.dtype(np.int16 if scale is None else np.float32)

    @property
    def quantized(self) -> Timestep:
        """The same rows as integers: shape (V, K), int16."""
        matrix = Timestep(self.groups, self.t)
        matrix.origin = extend(self.origin, "quantized")
        return matrix

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        layout, file = self.groups.layout, self.groups.file
        if rows is None:
            rows = np.array([0, layout.n_words - 1])
        if not rows.size:
            return
        groups = np.unique(rows // self._group)
        entries = entries_of(file, layout, np.array([[self.t]]), groups)
        first, last = int(entries.positions.min()), int(entries.positions.max())
        start = layout.data_offset + 2 * first
        nbytes = 2 * (last - first) + 2 * self._group * layout.dim
        file.prefetch(np.array([start]), min(nbytes, file.nbytes - start))

    def row(self, i: int) -> npt.NDArray[Any]:
        return self._scaled(self.groups.word(self.t, i))

    def _scaled(
        self, values: npt.NDArray[np.int16], out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Return integers as rows of this matrix."""
        if self._scale is not None:
            return scaled(values, self._scale, out)
        if out is None:
            return values.copy()
        out[...] = values
        return out

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        at_once = self.groups.groups_at_once(self.t) * self._group
        for low in range(start - start % self._group, stop, at_once):
            high = min(low + at_once, stop)
            numbers = np.arange(low // self._group, -(-high // self._group))
            values = self.groups.step(self.t, numbers).reshape(-1, self.shape[1])
            first = max(low, start)
            self._scaled(values[first - low : high - low], out[first - start : high - start])
        return out

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        numbers, within = np.divmod(rows, self._group)
        groups, place = np.unique(numbers, return_inverse=True)
        at_once = self.groups.groups_at_once(self.t)
        for first in range(0, groups.size, at_once):
            part = groups[first : first + at_once]
            chosen = np.flatnonzero((place >= first) & (place < first + part.size))
            values = self.groups.step(self.t, part)
            out[chosen] = self._scaled(values[place[chosen] - first, within[chosen]])


class Trajectories(_DecodedMatrix):
    """The words at all time steps: shape (V, T, K), float32."""

    def __init__(self, groups: Groups, scale: np.float32) -> None:
        layout = groups.layout
        self._groups = groups
        self._scale = scale
        self.shape = (layout.n_words, layout.n_steps, layout.dim)
        self.dtype = np.dtype(np.float32)

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        for t in range(self.shape[1]):
            Timestep(self._groups, t).prefetch(rows)

    def row(self, i: int) -> npt.NDArray[Any]:
        return scaled(self._groups.trajectories(np.array([i]))[0], self._scale)

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        return scaled(self._groups.trajectories(np.arange(start, stop)), self._scale)

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        scaled(self._groups.trajectories(rows), self._scale, out)
