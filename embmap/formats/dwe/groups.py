"""Decodes the groups of an open DWE file, checks where each ends, and keeps them in a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embmap.codecs.ans import DecodeTables, decode
from embmap.codecs.difference_tree import ancestry, restore, restore_all
from embmap.errors import FormatError
from embmap.forking import process_lock
from embmap.formats.dwe.cache import GroupCache
from embmap.formats.dwe.layout import FORMAT, DweLayout, Entries, entries_of, model_of
from embmap.io.mapping import ByteSource
from embmap.io.residency import sample

__all__ = ["Groups"]

_AT_ONCE = 64 << 20  # bytes of symbols decoded at once
_MOST_MODELS = 1024  # entropy models in the tables at once
_CACHE_NBYTES = 64 << 20


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
        n_groups = layout.n_steps * layout.n_groups
        self.cache = GroupCache(_CACHE_NBYTES, n_groups, layout.group * layout.dim)
        self._tables: DecodeTables | None = None
        self._models = np.full(layout.n_steps, -1)  # place of each step's model in the tables
        self._n_models = 0
        self._lock = process_lock()

    # Values

    def step(self, t: int, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
        """Return the words of n groups at a time step: (n, group, dim) int16.

        Rows after the last word of the file are undefined.
        """
        found = self._restored(t, groups, slice(None))
        return found.reshape(groups.size, self.layout.group, self.layout.dim)

    def word(self, t: int, row: int) -> npt.NDArray[np.int16]:
        """Return a word at a time step: (dim,) int16."""
        number, within = self._place(row)
        found: npt.NDArray[np.int16] = self._restored(t, np.array([number]), within)[0]
        return found

    def _restored(
        self, t: int, groups: npt.NDArray[np.int64], within: slice
    ) -> npt.NDArray[np.int16]:
        """Return a range of the values of n groups at a time step: (n, values) int16."""
        nodes = ancestry(self.layout.n_steps, t)
        steps = sorted({t, *(step for node in nodes for step in node)})
        values = dict(zip(steps, self.symbols(np.array(steps), groups, within), strict=True))
        for left, middle, right in nodes:
            values[middle] = restore(values[left], values[middle], values[right])
        found: npt.NDArray[np.int16] = values[t]
        return found

    def _place(self, row: int) -> tuple[int, slice]:
        """Return the number of a word's group, and the word's place among its symbols."""
        number, word = divmod(row, self.layout.group)
        return number, slice(word * self.layout.dim, (word + 1) * self.layout.dim)

    def groups_at_once(self, t: int) -> int:
        """Return how many groups of a step, at least 1, to decode at once in bounded memory."""
        n_steps = len(ancestry(self.layout.n_steps, t)) + 2
        return max(_AT_ONCE // (n_steps * self._group_nbytes), 1)

    def trajectories(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
        """Return n words at all T time steps: (n, T, dim) int16."""
        n_steps, group, dim = self.layout.n_steps, self.layout.group, self.layout.dim
        values = np.empty((n_steps, rows.size, dim), np.int16)
        numbers, words = np.divmod(rows, group)
        groups, place = np.unique(numbers, return_inverse=True)
        steps_at_once = min(max(_AT_ONCE // self._group_nbytes, 1), n_steps)
        groups_at_once = max(_AT_ONCE // (self._group_nbytes * steps_at_once), 1)
        for first in range(0, groups.size, groups_at_once):
            part = groups[first : first + groups_at_once]
            chosen = np.flatnonzero((place >= first) & (place < first + part.size))
            # Nothing else is copied for words that lie together in one group.
            low = int(words[chosen].min()) if part.size == 1 else 0
            high = int(words[chosen].max()) + 1 if part.size == 1 else group
            which = place[chosen] - first, words[chosen] - low
            for start in range(0, n_steps, steps_at_once):
                steps = np.arange(start, min(start + steps_at_once, n_steps))
                found = self.symbols(steps, part, slice(low * dim, high * dim))
                found = found.reshape(steps.size, part.size, high - low, dim)
                values[start : start + steps.size, chosen] = found[:, *which]
        restore_all(values.reshape(n_steps, -1))
        return values.swapaxes(0, 1)

    # Symbols

    @property
    def _group_nbytes(self) -> int:
        return 2 * self.layout.group * self.layout.dim

    def symbols(
        self,
        steps: npt.NDArray[np.int64],
        groups: npt.NDArray[np.int64],
        within: slice = slice(None),
    ) -> npt.NDArray[np.int16]:
        """Return a range of the stored symbols of n steps and m groups: (n, m, symbols) int16.

        They are values or differences of values. Symbols after the last word are undefined.
        """
        n = steps.size * groups.size
        if self.cache.accepts(n):
            keys = (steps[:, np.newaxis] * self.layout.n_groups + groups).reshape(-1).tolist()
            found = self.cache.find(keys, within)
            if found is None:
                with self.cache.filling(keys) as out:
                    self._decode_all(steps, groups, out)
                    found = out[:, within].copy()
        else:
            out = np.empty((n, self.layout.group * self.layout.dim), np.int16)
            self._decode_all(steps, groups, out)
            found = out[:, within]
        return found.reshape(steps.size, groups.size, -1)

    def _decode_all(
        self,
        steps: npt.NDArray[np.int64],
        groups: npt.NDArray[np.int64],
        out: npt.NDArray[np.int16],
    ) -> None:
        for start in range(0, steps.size, _MOST_MODELS):
            some = steps[start : start + _MOST_MODELS]
            lanes = out[start * groups.size : (start + some.size) * groups.size]
            entries = entries_of(self.file, self.layout, some[:, np.newaxis], groups)
            decoded = self._decode(entries, lanes)
            if decoded.failed.any():
                # In a local variable, the error and this frame would keep each other alive.
                raise next(decoded.problems(self.file, self.layout.data_offset))

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
        with self._lock:
            places = self._models[steps]
            if self._tables is not None and (places >= 0).all():
                return self._tables, places
            missing = np.unique(steps[places < 0])
            if self._tables is None or self._n_models + missing.size > _MOST_MODELS:
                # New tables, because other threads may be reading the old ones.
                n = min(self.layout.n_steps, _MOST_MODELS)
                self._tables = DecodeTables.empty(n, max(self.layout.model_sizes))
                self._models[:], self._n_models, missing = -1, 0, np.unique(steps)
            for t in missing.tolist():
                self._tables.fill(self._n_models, model_of(self.file, self.layout, t))
                self._models[t] = self._n_models
                self._n_models += 1
            return self._tables, self._models[steps]
