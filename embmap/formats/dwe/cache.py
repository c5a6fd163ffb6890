"""A cache of decoded groups in memory that is filled round and round.

Providing new memory takes the system longer than decoding into it. Groups are therefore decoded
into the cache itself, and its memory is used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embmap.forking import process_lock

__all__ = ["GroupCache"]

_N_PARTS = 4  # of the memory; a request that is larger than a part bypasses the cache

_Part = npt.NDArray[np.int16]


@dataclass(eq=False)
class _Place:
    """Rows for the groups with some keys, from `start` to `stop`, counted through all parts.

    `done` says that no thread fills them any more.
    """

    keys: list[int]
    start: int
    stop: int
    done: bool = False


class GroupCache:
    """Decoded groups by their keys; a budget of 0 bytes turns the cache off.

    `n_groups` is how many groups there are at all, `n_symbols` the symbols of each.
    """

    def __init__(self, nbytes: int, n_groups: int, n_symbols: int) -> None:
        self._n_groups = n_groups
        self._n_symbols = n_symbols
        self._lock = process_lock()
        self.resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Change the budget; this empties the cache."""
        with self._lock:
            self.nbytes = nbytes
            self._part_rows = min(nbytes // (2 * self._n_symbols * _N_PARTS), self._n_groups)
            self._empty()

    def _empty(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._places: deque[_Place] = deque()  # the oldest first
        self._rows: dict[int, int] = {}  # key -> row, counted through all parts
        self._next = 0

    @property
    def used_nbytes(self) -> int:
        """How many bytes the memory has."""
        return sum(part.nbytes for part in self._parts.values())

    def accepts(self, n_groups: int) -> bool:
        """Whether the cache keeps so many groups of one request."""
        return 0 < n_groups <= self._part_rows

    def find(self, keys: list[int], within: slice) -> npt.NDArray[np.int16] | None:
        """Return a range of the symbols of groups, (keys, n); None unless all of them are kept."""
        with self._lock:
            rows = [row for row in map(self._rows.get, keys) if row is not None]
            if len(rows) < len(keys):
                return None
            numbers, places = np.divmod(rows, self._part_rows)
            if (numbers == numbers[0]).all():
                return self._parts[int(numbers[0])][places, within]
            pairs = zip(numbers.tolist(), places.tolist(), strict=True)
            return np.stack([self._parts[number][place, within] for number, place in pairs])

    @contextmanager
    def filling(self, keys: list[int]) -> Iterator[npt.NDArray[np.int16]]:
        """Give memory for the symbols of groups, (keys, symbols), and keep them after the block.

        What is needed of them afterwards must be copied inside the block.
        """
        with self._lock:
            place, places = self._reserve(keys), self._places
            number, first = divmod(place.start, self._part_rows)
            part = self._parts.get(number)
        rows = slice(first, first + len(keys))
        try:
            # Memory for further groups is taken once these have been decoded without an error.
            filled = (
                np.empty((len(keys), self._n_symbols), np.int16) if part is None else part[rows]
            )
            yield filled
            with self._lock:
                if self._places is places and (
                    part is not None or self._store(number, rows, filled)
                ):
                    self._rows.update(zip(keys, range(place.start, place.stop), strict=True))
        finally:
            place.done = True

    def _reserve(self, keys: list[int]) -> _Place:
        """Return a place for groups instead of the oldest ones."""
        end = (self._next // self._part_rows + 1) * self._part_rows
        if self._next + len(keys) > end:
            self._evict(self._next, end)
            self._next = end % (_N_PARTS * self._part_rows)
        self._evict(self._next, self._next + len(keys))
        place = _Place(keys, self._next, self._next + len(keys))
        self._next = place.stop % (_N_PARTS * self._part_rows)
        self._places.append(place)
        return place

    def _store(self, number: int, rows: slice, symbols: npt.NDArray[np.int16]) -> bool:
        """Copy groups into a part of the memory; return whether there is memory for it."""
        if number not in self._parts:
            try:
                self._parts[number] = np.empty((self._part_rows, self._n_symbols), np.int16)
            except MemoryError:
                return False
        self._parts[number][rows] = symbols
        return True

    def _evict(self, start: int, stop: int) -> None:
        """Forget the oldest places, which are those in the rows after the latest."""
        while self._places and start < self._places[0].stop and self._places[0].start < stop:
            gone = self._places.popleft()
            if not gone.done:  # a thread has filled it for a whole round, or was interrupted
                self._empty()
                return
            for key in gone.keys:
                if gone.start <= self._rows.get(key, -1) < gone.stop:  # not decoded again since
                    del self._rows[key]
