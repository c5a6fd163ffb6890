"""The words of a file, in place.

A :class:`Vocabulary` is the sequence of the words of a file, decoded when they are asked for. Its
:class:`RowFinder` finds the row of a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.io.mapping import ByteSource
from embmap.words.index_source import IndexSource
from embmap.words.records import Records
from embmap.words.row_finder import RowFinder
from embmap.words.time_labels import TimeLabel

__all__ = ["Vocabulary"]

_BLOCK = 1 << 15


class Vocabulary(Sequence[str]):
    """The words of a file in order, found without reading them all.

    Parameters
    ----------
    file : ByteSource
        The bytes that contain the words.
    records : Records
        Where the words are in `file`.
    source : IndexSource
        The index file that may be used.
    number : int
        Which table of the index file is about this vocabulary.
    labels : tuple of int or str
        Labels of time steps that were listed with the words.

    Attributes
    ----------
    file : ByteSource
        The bytes that contain the words.
    records : Records
        Where the words are in `file`.
    finder : RowFinder
        Finds the rows of words.
    labels : tuple of int or str
        As given.
    """

    def __init__(
        self,
        file: ByteSource,
        records: Records,
        source: IndexSource,
        number: int = 0,
        *,
        labels: tuple[TimeLabel, ...] = (),
    ) -> None:
        self.file = file
        self.records = records
        self.labels = labels
        self.finder = RowFinder(file, records, source, number)

    def __repr__(self) -> str:
        """Describe the vocabulary without reading a word."""
        state = "not read" if self.finder.state == "none" else "indexed"
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
        """Return the first row of a word.

        Parameters
        ----------
        word : str
            The word.
        start, stop : int, optional
            The range of rows that are searched.

        Returns
        -------
        int
            The row.

        Raises
        ------
        ValueError
            If the word is not in these rows.
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
            1 or 0. A repeated word counts once, because only its first row can be found.
        """
        return int(word in self)

    def find_row(self, word: str) -> int:
        """Return the first row of a word, or -1.

        Parameters
        ----------
        word : str
            The word.

        Returns
        -------
        int
            The row; -1 if the word is not in the vocabulary.

        Raises
        ------
        FormatError
            If the vocabulary is damaged.
        """
        return self.finder.find_row(word)

    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the first rows of words.

        Parameters
        ----------
        words : iterable of str
            The words.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: the rows, -1 for words that are not in the vocabulary.

        Raises
        ------
        FormatError
            If the vocabulary is damaged.
        """
        return self.finder.find(words)

    def words(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the words of a range of rows.

        Parameters
        ----------
        start, stop : int, optional
            The range of rows.

        Yields
        ------
        str
            Each word.

        Raises
        ------
        FormatError
            If a word is not UTF-8.
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
            The row of the word.
        error : UnicodeDecodeError
            The error that decoding the word raised.
        starts : numpy.ndarray, optional
            Where the records start, for a caller that does not trust the index.

        Returns
        -------
        FormatError
            The error, with the offset of the wrong byte.
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
        """Yield the rows of a range with the bytes of their words.

        Parameters
        ----------
        start, stop : int, optional
            The range of rows.
        starts : numpy.ndarray, optional
            Where the records start, for a caller that does not trust the index.

        Yields
        ------
        row : int
            The row.
        data : bytes
            The UTF-8 bytes of its word.
        """
        records = self.records
        start, stop, _ = slice(start, stop).indices(records.n)
        for first in range(start, stop, _BLOCK):
            last = min(first + _BLOCK, stop)
            if starts is None:
                bounds = self.finder.bounds(first, last)
            else:
                bounds = starts[first : last + 1].astype(np.int64)
            bounds += records.offset
            begins = (bounds[:-1] + records.prefix).tolist()
            ends = (bounds[1:] - records.suffix).tolist()
            if len(begins) > 1:
                self.file.check_whole()
            fetch, base = self.file.fetch, 0
            if len(begins) > 1 and bounds[-1] - bounds[0] <= 64 * _BLOCK:
                # Each fetch may be a system call, or wait for a page: one read costs less.
                base = int(bounds[0])
                fetch = self.file.read(base, min(int(bounds[-1]), records.limit) - base)
            for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                yield first + i, fetch[begin - base : end - base]

    @property
    def path(self) -> Path | None:
        """The path of the file that contains the words; None for words in memory."""
        return self.file.path

    @property
    def starts(self) -> npt.NDArray[Any]:
        """Where each record starts, from the first one's offset: shape (n + 1,), uint32 or uint64.

        Taken from the index file, or from a scan of the words at the first use.
        """
        return self.finder.starts

    def suffixes(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """Return the numbers that follow words in their records.

        Parameters
        ----------
        rows : numpy.ndarray
            Shape (n,), int64: the rows of the words.

        Returns
        -------
        list of int
            The bytes after each word, read as a little-endian number.
        """
        fetch, nbytes = self.file.fetch, self.records.suffix
        found = []
        for row in rows.tolist():
            end = int(self.finder.bounds(row, row + 1)[1]) + self.records.offset
            found.append(int.from_bytes(fetch[end - nbytes : end], "little"))
        return found
