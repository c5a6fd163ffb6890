"""Decodes the groups of an open DWE file, checks where each ends, and caches them in a budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embmap.codecs.ans import DecodeTables, decode
from embmap.codecs.difference_tree import ancestry, levels, restore
from embmap.errors import FormatError
from embmap.forking import process_lock
from embmap.formats.dwe.layout import FORMAT, DweLayout, Entries, entries_of, model_of
from embmap.io.mapping import ByteSource
from embmap.io.residency import sample

__all__ = ["Groups"]

_AT_ONCE = 64 << 20  # bytes of symbols decoded at once
_MOST_MODELS = 1024  # entropy models in the tables at once
_BULK = 4  # requests larger than budget / _BULK bypass the cache, which they would empty


@dataclass(frozen=True)
class _Decoded:
    """Positions and states of the decoder after some groups, and which groups ran out of data."""

    entries: Entries
    positions: npt.NDArray[np.int64]
    states: npt.NDArray[np.uint32]
    ran_out: npt.NDArray[np.bool_]

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Which groups did not end as the format prescribes."""
        entries = self.entries
        astray = (entries.ends >= 0) & (entries.ends != self.positions)
        astray |= (entries.end_states >= 0) & (entries.end_states != self.states)
        failed: npt.NDArray[np.bool_] = self.ran_out | astray
        return failed

    def problems(self, file: ByteSource, data_offset: int) -> Iterator[FormatError]:
        """Yield an error for each group that failed."""
        entries = self.entries
        for i in np.flatnonzero(self.failed).tolist():
            what = "runs out of data" if self.ran_out[i] else "does not end where it must"
            yield FormatError(
                f"group {int(entries.groups[i])} of timestep {int(entries.steps[i])} {what}: "
                "its data or its entropy model is damaged",
                path=file.path,
                format=FORMAT,
                offset=data_offset + 2 * int(entries.positions[i]),
            )


class Groups:
    """The groups of all time steps; a FormatError is raised if a group cannot be decoded."""

    def __init__(self, file: ByteSource, layout: DweLayout) -> None:
        self.file = file
        self.layout = layout
        self._cache_nbytes = 64 << 20
        self._cache: OrderedDict[tuple[int, int], npt.NDArray[np.int16]] = OrderedDict()
        self._cached_nbytes = 0
        self._tables: DecodeTables | None = None
        self._models: dict[int, int] = {}  # time step -> place of its model in the tables
        self._lock = process_lock()

    @property
    def cache_nbytes(self) -> int:
        """Size of the cache of decoded symbols in bytes; 0 turns it off."""
        return self._cache_nbytes

    @cache_nbytes.setter
    def cache_nbytes(self, nbytes: int) -> None:
        with self._lock:
            self._cache_nbytes = nbytes
            self._trim()

    # Values

    def step(self, t: int, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
        """Return the words of n groups at a time step: (n, group, dim) int16.

        Rows after the last word of the file are undefined.
        """
        nodes = ancestry(self.layout.n_steps, t)
        steps = sorted({t, *(step for node in nodes for step in node)})
        values = dict(zip(steps, self.symbols(np.array(steps), groups), strict=True))
        for left, middle, right in nodes:
            values[middle] = restore(values[left], values[middle], values[right])
        found: npt.NDArray[np.int16] = values[t]
        return found

    def groups_at_once(self, t: int) -> int:
        """Return how many groups of a step, at least 1, to decode at once in bounded memory."""
        n_steps = len(ancestry(self.layout.n_steps, t)) + 2
        return max(_AT_ONCE // (n_steps * self._group_nbytes), 1)

    def trajectories(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
        """Return n words at all T time steps: (n, T, dim) int16."""
        n_steps = self.layout.n_steps
        out = np.empty((rows.size, n_steps, self.layout.dim), np.int16)
        numbers, within = np.divmod(rows, self.layout.group)
        groups, place = np.unique(numbers, return_inverse=True)
        steps_at_once = min(max(_AT_ONCE // self._group_nbytes, 1), n_steps)
        groups_at_once = max(_AT_ONCE // (self._group_nbytes * steps_at_once), 1)
        for first in range(0, groups.size, groups_at_once):
            part = groups[first : first + groups_at_once]
            chosen = np.flatnonzero((place >= first) & (place < first + part.size))
            for start in range(0, n_steps, steps_at_once):
                steps = np.arange(start, min(start + steps_at_once, n_steps))
                found = self.symbols(steps, part)[:, place[chosen] - first, within[chosen]]
                out[chosen, start : start + steps.size] = found.swapaxes(0, 1)
        for nodes in levels(n_steps):
            left, middle, right = nodes.T
            out[:, middle] = restore(out[:, left], out[:, middle], out[:, right])
        return out

    # Symbols

    @property
    def _group_nbytes(self) -> int:
        return 2 * self.layout.group * self.layout.dim

    def symbols(
        self, steps: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int16]:
        """Return the stored symbols of n steps and m groups: (n, m, group, dim) int16.

        They are values or differences of values. Rows after the last word are undefined.
        """
        shape = (steps.size, groups.size, self.layout.group, self.layout.dim)
        nbytes = steps.size * groups.size * self._group_nbytes
        through_cache = nbytes <= self.cache_nbytes // _BULK
        if through_cache:
            found = self._cached(steps, groups)
            if found is not None:
                return found.reshape(shape)
        out = np.empty((steps.size * groups.size, shape[2] * shape[3]), np.int16)
        for start in range(0, steps.size, _MOST_MODELS):
            some = steps[start : start + _MOST_MODELS]
            lanes = out[start * groups.size : (start + some.size) * groups.size]
            entries = entries_of(self.file, self.layout, some[:, np.newaxis], groups)
            decoded = self._decode(entries, lanes)
            if decoded.failed.any():
                # In a local variable, the error and this frame would keep each other alive.
                raise next(decoded.problems(self.file, self.layout.data_offset))
        if through_cache:
            self._keep(steps, groups, out)
        return out.reshape(shape)

    def check(self, t: int) -> tuple[list[FormatError], tuple[int, int]]:
        """Decode a time step; return the errors of its groups, and its last position and state."""
        problems: list[FormatError] = []
        at_once = max(_AT_ONCE // self._group_nbytes, 1)
        end = (0, 0)
        for first in range(0, self.layout.n_groups, at_once):
            groups = np.arange(first, min(first + at_once, self.layout.n_groups))
            out = np.empty((groups.size, self.layout.group * self.layout.dim), np.int16)
            entries = entries_of(self.file, self.layout, np.array([[t]]), groups)
            decoded = self._decode(entries, out)
            problems += decoded.problems(self.file, self.layout.data_offset)
            end = int(decoded.positions[-1]), int(decoded.states[-1])
        return problems, end

    def _decode(self, entries: Entries, out: npt.NDArray[np.int16]) -> _Decoded:
        """Decode groups into the rows of `out`: shape (entries, symbols of a whole group)."""
        layout = self.layout
        self.file.check_whole()
        tables, which = self._tables_of(entries.steps)
        halfwords, positions, limits = self._halfwords_of(entries)
        ends, states = np.empty_like(positions), np.empty_like(entries.states)
        rest = layout.group_words(layout.n_groups - 1) * layout.dim
        is_short = entries.groups == layout.n_groups - 1
        if rest == out.shape[1] or not is_short.any():
            ends, states = decode(halfwords, positions, entries.states, tables, which, out)
        else:
            for n, lanes in ((out.shape[1], ~is_short), (rest, is_short)):
                part = np.empty((int(lanes.sum()), n), np.int16)
                ends[lanes], states[lanes] = decode(
                    halfwords, positions[lanes], entries.states[lanes], tables, which[lanes], part
                )
                out[lanes, :n] = part
        return _Decoded(entries, entries.positions + ends - positions, states, ends > limits)

    def _halfwords_of(
        self, entries: Entries
    ) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the data of groups as halfwords, and the start and limit of each group."""
        layout = self.layout
        if self.file.zero_copy:
            halfwords = self.file.scattered(layout.data_offset, "<u2", layout.data_halfwords)
            places = layout.data_offset + 2 * entries.positions
            if self.file.lacks(sample(places) or places[places.size // 2 :][:1].tolist()):
                # Most symbols take a few bits; what is not asked for is read when it is reached.
                self.file.prefetch(places, layout.group * layout.dim // 2)
            return (
                halfwords,
                entries.positions,
                np.full(entries.positions.size, layout.data_halfwords),
            )
        # A symbol takes at most 12.1 bits, which limits how much is read.
        n = layout.group * layout.dim
        limits = np.minimum(entries.positions + n * 3 // 4 + n // 64 + 2, layout.data_halfwords)
        lengths = limits - entries.positions
        read = self.file.gather(layout.data_offset + 2 * entries.positions, 2 * lengths)
        ends = lengths.cumsum()
        return read.view("<u2"), ends - lengths, ends

    def _tables_of(
        self, steps: npt.NDArray[np.int64]
    ) -> tuple[DecodeTables, npt.NDArray[np.int64]]:
        """Return tables with the models of time steps, and the place of each step's model."""
        asked = np.unique(steps).tolist()
        with self._lock:
            missing = [t for t in asked if t not in self._models]
            if self._tables is None or len(self._models) + len(missing) > _MOST_MODELS:
                # New tables, because other threads may be reading the old ones.
                n = min(self.layout.n_steps, _MOST_MODELS)
                self._tables = DecodeTables.empty(n, max(self.layout.model_sizes))
                self._models, missing = {}, asked
            for t in missing:
                place = len(self._models)
                self._tables.fill(place, model_of(self.file, self.layout, t))
                self._models[t] = place
            places = np.array([self._models[t] for t in asked])
            return self._tables, places[np.searchsorted(asked, steps)]

    # The cache

    def _cached(
        self, steps: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int16] | None:
        """Return groups if all of them are in the cache, else None."""
        with self._lock:
            found = []
            for key in ((t, group) for t in steps.tolist() for group in groups.tolist()):
                symbols = self._cache.get(key)
                if symbols is None:
                    return None
                self._cache.move_to_end(key)
                found.append(symbols)
            return np.stack(found)

    def _keep(
        self,
        steps: npt.NDArray[np.int64],
        groups: npt.NDArray[np.int64],
        symbols: npt.NDArray[np.int16],
    ) -> None:
        keys = ((t, group) for t in steps.tolist() for group in groups.tolist())
        with self._lock:
            for key, each in zip(keys, symbols, strict=True):
                if key not in self._cache:
                    self._cache[key] = each.copy()  # a view would keep the whole array in memory
                    self._cached_nbytes += each.nbytes
            self._trim()

    def _trim(self) -> None:
        """Evict the least recently used groups until the rest is within the budget."""
        while self._cached_nbytes > self._cache_nbytes:
            _, gone = self._cache.popitem(last=False)
            self._cached_nbytes -= gone.nbytes
