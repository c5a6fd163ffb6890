"""From a word to its row: which index answers now, and when another one takes over.

No dict is built, and opening a file looks nothing up. A :class:`RowFinder` begins without an index:

1. The first question looks for an index file, which is mapped and used if it matches the words.
   Only a file that is opened with a required index asks for it at once.
2. Without an index file, the first few look-ups in a large vocabulary scan the words: for a
   million words, a scan costs a twentieth of what an index costs.
3. After that, or at the first batch, an index is built in memory and kept.

A mapped index that proves to be damaged, or to be about other words, is dropped with a warning, and
the finder goes on with step 2. If the caller requires the index, StaleIndexError is raised instead.
:meth:`RowFinder.adopt` replaces any index by a new one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embmap.errors import StaleIndexError
from embmap.io.mapping import ByteSource
from embmap.words.index_file import MappedWordIndex
from embmap.words.index_source import IndexSource
from embmap.words.records import Records, scan
from embmap.words.word_index import WordIndex

__all__ = ["BUILD_AT_ONCE", "SCANS", "RowFinder"]

BUILD_AT_ONCE = 20_000  # up to this many words, an index costs less than a few scans
SCANS = 3  # look-ups answered by scanning before the index is built
_BLOCK = 1 << 15


class RowFinder:
    """Finds the rows of words; threads and forked children may share one.

    `find_in_index` is the ``find`` of the index that answers now, None without one. Code in which
    nanoseconds count calls it; a call of :meth:`find_row` in between would cost a noticeable part.

    A look-up in an index takes no lock. The lock is for the steps between indexes, so that threads
    that ask first at the same time build one index.
    """

    def __init__(
        self, data: ByteSource, records: Records, source: IndexSource, number: int = 0
    ) -> None:
        self.source = source
        self._data = data
        self._records = records
        self._number = number  # of the table in the index file
        self._asked_source = False
        # Data between words would make scans as long as the file.
        self._scans_left = SCANS if records.n > BUILD_AT_ONCE and not records.end else 0
        self._index: WordIndex | None = None
        self.find_in_index: Callable[[str], int] | None = None
        self._starts: npt.NDArray[Any] | None = None
        self._lock = source.lock
        if source.required:  # an index that does not match is an error when the file is opened
            index = self._current_index()
            if isinstance(index, MappedWordIndex):
                index.check_ends()

    @property
    def state(self) -> Literal["none", "memory", "file"]:
        """Where the index is that answers now; reads nothing."""
        index = self._index
        if index is None:
            return "none"
        return "file" if isinstance(index, MappedWordIndex) else "memory"

    @property
    def starts(self) -> npt.NDArray[Any]:
        """Where each record starts, from the first one's offset: (n + 1,) uint32 or uint64.

        They come with the index, or from a scan of the words at the first use.
        """
        starts = self._starts
        if starts is None:
            with self._lock:
                index = self._current_index()
                if isinstance(index, MappedWordIndex) and not self._passes(index, index.check_ends):
                    index = self._current_index()
                starts = self._starts if index is None else index.starts
                if starts is None:
                    starts = self._starts = scan(self._data, self._records)
        return starts

    def bounds(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return where the records of a range start, and where the last one ends: int64."""
        index = self._index or self._current_index()
        if isinstance(index, MappedWordIndex) and not self._passes(
            index, partial(index.check_starts, first, last)
        ):
            index = None
        starts = self.starts if index is None else index.starts
        return starts[first : last + 1].astype(np.int64)

    def find_row(self, word: str) -> int:
        """Return the first row of a word, or -1."""
        find = self.find_in_index
        if find is not None:
            return find(word)
        with self._lock:
            index = self._current_index()
            if index is None:
                if self._scans_left:
                    self._scans_left -= 1
                    return self._scan_for(word)
                index = self._any_index()
        return index.find(word)

    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the first rows of words: (n,) int64, -1 for unknown words."""
        words = words if isinstance(words, Sequence) else list(words)
        if isinstance(words, str):
            raise TypeError("find takes a list of words; find_row takes one word")
        self._data.check_whole()
        if len(words) <= 4:
            for word in words:
                if not isinstance(word, str):
                    raise TypeError(f"a word is a str, not {type(word).__name__}")
            return np.array([self.find_row(word) for word in words], np.int64)
        index = self._any_index()
        if isinstance(index, MappedWordIndex):
            if self._passes(index, index.check_ends):
                index.prefetch(words)
            else:
                index = self._any_index()
        rows = index.find_many(words)
        if isinstance(index, MappedWordIndex):
            for i in np.flatnonzero(rows < 0).tolist():
                rows[i] = self.find_row(words[i])  # which confirms the miss
        return rows

    def build(self, progress: Callable[[int, int], None] | None = None) -> WordIndex:
        """Return a new index in memory, from the words themselves, whatever index is in use.

        `progress` is called as ``progress(words_done, n_words)``.
        """
        starts = scan(self._data, self._records)
        return WordIndex.build(self._data, self._records, starts, progress)

    def adopt(self, index: WordIndex) -> None:
        """Use an index for look-ups from now on."""
        with self._lock:
            if isinstance(index, MappedWordIndex):
                index.confirm = self._weak_confirm()
            self._index = index
            self._starts = index.starts
            self.find_in_index = index.find

    def _any_index(self) -> WordIndex:
        """Return the index; if there is no index yet, build one in memory."""
        with self._lock:
            index = self._current_index()
            if index is None:
                index = WordIndex.build(self._data, self._records, self.starts)
                self.adopt(index)
        return index

    def _current_index(self) -> WordIndex | None:
        """Return the index that answers now, if any; the first call looks for an index file."""
        with self._lock:
            if not self._asked_source:
                index = self.source.table(self._number, self._records)
                self._asked_source = True
                if index is not None:
                    self.adopt(index)
            return self._index

    def _weak_confirm(self) -> Callable[[MappedWordIndex, str], int]:
        """Return :meth:`_confirm` for a mapped index, which must not keep this finder alive.

        Otherwise finder and index would keep each other alive, and the descriptors of a closed file
        would stay open until the garbage collector runs.
        """
        weak = weakref.ref(self)

        def confirm(index: MappedWordIndex, word: str) -> int:
            finder = weak()
            return -1 if finder is None else finder._confirm(index, word)

        return confirm

    def _confirm(self, index: MappedWordIndex, word: str) -> int:
        """Return -1 for a word that an index lacks, or its row if the index had to be dropped."""
        passes = self._passes(index, lambda: index.confirm_miss(word))
        return -1 if passes else self.find_row(word)

    def _passes(self, index: MappedWordIndex, check: Callable[[], None]) -> bool:
        """Whether a check finds nothing wrong with an index, which is dropped otherwise."""
        try:
            check()
        except StaleIndexError as error:
            if self.source.required:
                raise
            self._drop(index, error)
            return False
        return True

    def _drop(self, index: MappedWordIndex, error: StaleIndexError) -> None:
        """Go on without an index file."""
        with self._lock:
            if self._index is index:  # else another thread has dropped it
                self.source.drop(error)
                self._index = self._starts = self.find_in_index = None

    def _scan_for(self, word: str) -> int:
        """Find a word by comparing lengths, then letters, block by block."""
        try:
            data = word.encode()
        except UnicodeEncodeError:
            return -1
        records, starts = self._records, self.starts
        nbytes = records.prefix + len(data) + records.suffix
        self._data.check_whole()
        for first in range(0, records.n, _BLOCK):
            bounds = starts[first : first + _BLOCK + 1]
            rows = np.flatnonzero(np.diff(bounds) == nbytes)
            if not rows.size:
                continue
            base, end = int(bounds[0]), min(int(bounds[-1]), records.nbytes)
            window = self._data.array(records.offset + base, np.uint8, end - base)
            places = bounds[rows].astype(np.int64) - base + records.prefix
            for i, letter in enumerate(data[:8]):
                kept = window[places + i] == letter
                rows, places = rows[kept], places[kept]
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                if window[place : place + len(data)].tobytes() == data:
                    return first + row
        return -1
