"""The words of a file, in place.

A :class:`Vocabulary` never builds a dict. Words are found through a :class:`WordIndex` mapped from
FILE.embx when there is one. Without it the first few look-ups scan the words, which for a million
of them is twenty times cheaper than an index; after that the index is built in memory and kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, StaleIndexError
from embmap.forking import process_lock
from embmap.io.mapping import ByteSource
from embmap.words.index_file import MappedWordIndex
from embmap.words.index_source import IndexSource
from embmap.words.records import Records, scan
from embmap.words.word_index import WordIndex

__all__ = ["Vocabulary"]

_BUILD_AT_ONCE = 20_000  # below this many words an index costs less than a few scans
_SCANS = 3  # look-ups answered by scanning before the index is built
_BLOCK = 1 << 15


class Vocabulary(Sequence[str]):
    """The words of a file in order, found without reading them all.

    Parameters
    ----------
    file : ByteSource
        Holds the words.
    records : Records
        Where in it.
    source : IndexSource
        Where an index may come from.
    number : int
        Which table of the index file is this vocabulary's.

    Attributes
    ----------
    records : Records
        Where they are.
    source : IndexSource
        Where an index may come from.
    file : ByteSource
        The file that holds them.
    """

    def __init__(
        self, file: ByteSource, records: Records, source: IndexSource, number: int = 0
    ) -> None:
        self.records = records
        self.file = file
        self.source = source
        self._number = number
        self._starts: npt.NDArray[Any] | None = None
        self._index: WordIndex | None = None
        self._asked_source = False
        self._n_scans = 0
        self._lock = process_lock()
        if source.required:  # say at once that it does not match
            self._mapped_index()

    def __repr__(self) -> str:
        """Say what it is without reading a word."""
        state = "indexed" if self._index is not None else "not read"
        return f"<Vocabulary of {len(self)} {self.records.noun}s, {state}>"

    def __len__(self) -> int:
        """Return the number of words."""
        return self.records.n

    @overload
    def __getitem__(self, item: int) -> str: ...

    @overload
    def __getitem__(self, item: slice) -> list[str]: ...

    def __getitem__(self, item: int | slice) -> str | list[str]:
        """Return the word of a row, or the list of words of a slice."""
        if isinstance(item, slice):
            first, last, step = item.indices(len(self))
            if step == 1:
                return list(self.words(first, last))
            return [self[i] for i in range(first, last, step)]
        row = range(len(self))[item]
        return next(self.words(row, row + 1))

    def __iter__(self) -> Iterator[str]:
        """Return the words in order, decoding a block at a time."""
        return self.words()

    def __contains__(self, word: object) -> bool:
        """Whether a word is in the vocabulary."""
        return isinstance(word, str) and self.find_row(word) >= 0

    def index(self, word: str, start: int = 0, stop: int | None = None) -> int:
        """Return the row of a word.

        Parameters
        ----------
        word : str
            The word.
        start, stop : int, optional
            Only rows in this range count.

        Returns
        -------
        int
            Its first row.

        Raises
        ------
        ValueError
            When it is not there.
        """
        row = self.find_row(word) if isinstance(word, str) else -1
        if row < 0 or row not in range(*slice(start, stop).indices(len(self))):
            raise ValueError(f"{word!r} is not in the vocabulary")
        return row

    def count(self, word: object) -> int:
        """Return 1 for a word of the vocabulary and 0 for any other.

        Parameters
        ----------
        word : object
            The word.

        Returns
        -------
        int
            1 or 0; a repeated word counts once, as only its first row is ever found.
        """
        return int(word in self)

    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the rows of words.

        Parameters
        ----------
        words : iterable of str
            The words.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: their rows, -1 where absent.

        Raises
        ------
        FormatError
            When the vocabulary is damaged.
        """
        words = words if isinstance(words, Sequence) else list(words)
        if isinstance(words, str):
            raise TypeError("find takes a list of words; find_row takes one word")
        self.file.check_whole()
        if len(words) <= 4:
            for word in words:
                if not isinstance(word, str):
                    raise TypeError(f"a word is a str, not {type(word).__name__}")
            return np.array([self.find_row(word) for word in words], np.int64)
        index = self._indexed()
        rows = index.find_many(words)
        if isinstance(index, MappedWordIndex):
            for i in np.flatnonzero(rows < 0).tolist():
                rows[i] = self.find_row(words[i])
        return rows

    def words(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Return the words of a range of rows.

        Parameters
        ----------
        start, stop : int, optional
            The range.

        Yields
        ------
        str
            A word.

        Raises
        ------
        FormatError
            At a word that is not UTF-8.
        """
        for row, data in self.encoded(start, stop):
            try:
                word = data.decode()
            except UnicodeDecodeError as error:
                raise self.not_utf8(row, error) from None
            yield word

    def not_utf8(
        self, row: int, error: UnicodeDecodeError, starts: npt.NDArray[Any] | None = None
    ) -> FormatError:
        """Return the error about a word that is not UTF-8.

        Parameters
        ----------
        row : int
            Its row.
        error : UnicodeDecodeError
            What decoding it said.
        starts : numpy.ndarray, optional
            Where the records start, for a caller that does not trust the index.

        Returns
        -------
        FormatError
            With the offset of the wrong byte.
        """
        records = self.records
        starts = self.starts if starts is None else starts
        offset = records.offset + int(starts[row]) + records.prefix + error.start
        return FormatError(f"not UTF-8: {error.reason}", **records.where(self.file, offset, row))

    def encoded(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        starts: npt.NDArray[Any] | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        """Return the bytes of the words of a range of rows.

        Parameters
        ----------
        start, stop : int, optional
            The range.
        starts : numpy.ndarray, optional
            Where the records start, for a caller that does not trust the index.

        Yields
        ------
        row : int
            A row.
        data : bytes
            The bytes of its word.
        """
        records = self.records
        start, stop, _ = slice(start, stop).indices(records.n)
        for first in range(start, stop, _BLOCK):
            last = min(first + _BLOCK, stop)
            if starts is None:
                bounds = self._bounds(first, last)
            else:
                bounds = starts[first : last + 1].astype(np.int64)
            bounds += records.offset
            begins = (bounds[:-1] + records.prefix).tolist()
            ends = (bounds[1:] - records.suffix).tolist()
            if len(begins) > 1:
                self.file.check_whole()
            fetch, base = self.file.fetch, 0
            if not self.file.zero_copy and bounds[-1] - bounds[0] <= 64 * _BLOCK:
                # One read for the block where a fetch would be a system call.
                base = int(bounds[0])
                fetch = self.file.read(base, min(int(bounds[-1]), records.limit) - base)
            for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                yield first + i, fetch[begin - base : end - base]

    @property
    def path(self) -> Path | None:
        """The file the words are in; None for words in memory."""
        return self.file.path

    @property
    def starts(self) -> npt.NDArray[Any]:
        """Where each record starts, from the first one's offset: shape (n + 1,), uint32 or uint64.

        Comes with the index, or from a scan of the vocabulary the first time.
        """
        if self._starts is None:
            with self._lock:
                if self._starts is None and self._mapped_index() is None:
                    self._starts = scan(self.file, self.records)
        return cast("npt.NDArray[Any]", self._starts)

    def suffixes(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """Return what follows the words in their records.

        Parameters
        ----------
        rows : numpy.ndarray
            Shape (n,), int64: which records.

        Returns
        -------
        list of int
            The bytes after each word as a little-endian number.
        """
        fetch, nbytes = self.file.fetch, self.records.suffix
        found = []
        for row in rows.tolist():
            end = int(self._bounds(row, row + 1)[1]) + self.records.offset
            found.append(int.from_bytes(fetch[end - nbytes : end], "little"))
        return found

    def _bounds(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return where the records of a range start, and where the last one ends."""
        starts, index = self.starts, self._index
        if isinstance(index, MappedWordIndex):
            try:
                index.check_starts(first, last)
            except StaleIndexError as error:
                if self.source.required:
                    raise
                self._drop_index(index, error)
                starts = self.starts
        return starts[first : last + 1].astype(np.int64)

    def index_state(self) -> str:
        """Return where words are found now: "none" yet, "memory" or "file".

        Returns
        -------
        str
            Never reads anything.
        """
        if self._index is None:
            return "none"
        return "file" if isinstance(self._index, MappedWordIndex) else "memory"

    def build(self, progress: Callable[[int, int], None] | None = None) -> WordIndex:
        """Build an index from the words themselves, whatever index there is.

        Parameters
        ----------
        progress : callable, optional
            Called as ``progress(words_done, n_words)``.

        Returns
        -------
        WordIndex
            A new index in memory.

        Raises
        ------
        FormatError
            When the vocabulary is damaged.
        """
        starts = scan(self.file, self.records)
        return WordIndex.build(self.file, self.records, starts, progress)

    def adopt(self, index: WordIndex) -> None:
        """Use an index for look-ups from now on.

        Parameters
        ----------
        index : WordIndex
            An index over these words.
        """
        self._index = index
        self._starts = index.starts
        if isinstance(index, MappedWordIndex):
            # Weak, or index and vocabulary would keep each other, and with them the file, alive.
            index.confirm = _ConfirmMiss(weakref.ref(self), index)
        # Instead of the method: a look-up that counts nanoseconds goes straight to the index.
        self.find_row = index.find  # type: ignore[method-assign]

    def _indexed(self) -> WordIndex:
        """Return the index, building it in memory if need be."""
        with self._lock:
            index = self._index or self._mapped_index()
            if index is None:
                index = WordIndex.build(self.file, self.records, self.starts)
                self.adopt(index)
        return index

    def _mapped_index(self) -> WordIndex | None:
        """Return the index from the index file, asking for it once."""
        if not self._asked_source:
            self._asked_source = True
            index = self.source.table(self._number, self.records)
            if index is not None:
                self.adopt(index)
        return self._index

    def find_row(self, word: str) -> int:
        """Return the row of one word.

        Parameters
        ----------
        word : str
            The word.

        Returns
        -------
        int
            Its first row, or -1.

        Raises
        ------
        FormatError
            When the vocabulary is damaged.
        """
        with self._lock:
            index = self._index or self._mapped_index()
            if index is None:
                if len(self) > _BUILD_AT_ONCE and self._n_scans < _SCANS:
                    self._n_scans += 1
                    return self._scan_for(word)
                index = self._indexed()
        return index.find(word)

    def confirm_miss(self, index: MappedWordIndex, word: str) -> int:
        """Believe that an index file does not know a word, or go on without a damaged one.

        Parameters
        ----------
        index : MappedWordIndex
            The index that was asked.
        word : str
            The word that it does not know.

        Returns
        -------
        int
            -1, or the row that another index knows.
        """
        try:
            index.confirm_miss(word)
        except StaleIndexError as error:
            if self.source.required:
                raise
            self._drop_index(index, error)
            return self.find_row(word)
        return -1

    def _drop_index(self, index: MappedWordIndex, error: StaleIndexError) -> None:
        """Go on without an index file."""
        with self._lock:
            if self._index is index:  # else another thread has dropped it
                self.source.warn(error)
                self._index = self._starts = None
                del self.find_row  # the method again

    def _scan_for(self, word: str) -> int:
        """Find a word by comparing lengths, then letters, block by block."""
        try:
            data = word.encode()
        except UnicodeEncodeError:
            return -1
        records, starts = self.records, self.starts
        nbytes = records.prefix + len(data) + records.suffix
        self.file.check_whole()
        for first in range(0, records.n, _BLOCK):
            bounds = starts[first : first + _BLOCK + 1]
            rows = np.flatnonzero(np.diff(bounds) == nbytes)
            if not rows.size:
                continue
            base, end = int(bounds[0]), min(int(bounds[-1]), records.nbytes)
            window = self.file.array(records.offset + base, np.uint8, end - base)
            places = bounds[rows].astype(np.int64) - base + records.prefix
            for i, letter in enumerate(data[:8]):
                kept = window[places + i] == letter
                rows, places = rows[kept], places[kept]
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                if window[place : place + len(data)].tobytes() == data:
                    return first + row
        return -1


class _ConfirmMiss:
    """Asks a vocabulary, if it is still there, about a word that its index does not know."""

    __slots__ = ("_index", "_vocabulary")

    def __init__(self, vocabulary: weakref.ref[Vocabulary], index: MappedWordIndex) -> None:
        self._vocabulary = vocabulary
        self._index = weakref.ref(index)

    def __call__(self, word: str) -> int:
        vocabulary, index = self._vocabulary(), self._index()
        return -1 if vocabulary is None or index is None else vocabulary.confirm_miss(index, word)
