"""The words of a file that is converted: collected once, kept in memory, packed end to end."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.io.mapping import ByteSource
from embmap.words.vocabulary import Vocabulary

__all__ = ["WordTable"]


class WordTable(Collection[str]):
    """Words in order, and where they came from, so that an error can name the place.

    `ends` holds where each word ends in `data`, `offsets` where each starts in the file: both of
    shape (n,), int64.
    """

    def __init__(
        self,
        data: bytes | bytearray,
        ends: npt.NDArray[np.int64],
        source: ByteSource,
        format: str,
        *,
        offsets: npt.NDArray[np.int64] | None = None,
        noun: str = "word",
    ) -> None:
        self._data = data
        self._ends = ends
        self.source = source
        self.format = format
        self._offsets = offsets
        self._noun = noun

    @classmethod
    def of(cls, vocabulary: Vocabulary, limit: int | None = None) -> WordTable:
        """Return the words of a vocabulary, or the first `limit` of them."""
        records = vocabulary.records
        data, ends = bytearray(), array("q")
        for _, word in vocabulary.encoded(0, limit):
            data += word
            ends.append(len(data))
        starts = vocabulary.starts[: len(ends)].astype(np.int64)
        return cls(
            data,
            np.array(ends, np.int64),
            vocabulary.file,
            records.format,
            offsets=starts + records.offset + records.prefix,
            noun=records.noun,
        )

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        """Return the words; a word that is not UTF-8 raises FormatError."""
        for row, data in enumerate(self.encoded()):
            try:
                word = data.decode()
            except UnicodeDecodeError as error:
                raise self.not_utf8(row, error) from None
            yield word

    def __contains__(self, word: object) -> bool:
        """Return whether a word is in the table; compares it with each."""
        return any(word == other for other in self)

    def encoded(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Return the bytes of each word from `start` up to `stop`."""
        begin = int(self._ends[start - 1]) if start else 0
        view = memoryview(self._data)
        for end in self._ends[start:stop].tolist():
            yield bytes(view[begin:end])
            begin = end

    def decoded(self, start: int, stop: int) -> list[str]:
        """Return the words from `start` up to `stop`, with U+FFFD for bytes that are not UTF-8."""
        return [word.decode(errors="replace") for word in self.encoded(start, stop)]

    def not_utf8(self, row: int, error: UnicodeDecodeError) -> FormatError:
        """Return the error for a word that is not UTF-8."""
        message = f"not UTF-8: {error.reason}; lossy conversion puts U+FFFD in place of such bytes"
        return self.error(row, message, error.start)

    def error(self, row: int, message: str, within: int = 0) -> FormatError:
        """Return an error about the word of a row, `within` bytes from its start."""
        offset = None if self._offsets is None else int(self._offsets[row]) + within
        return FormatError(
            message,
            path=self.source.path,
            format=self.format,
            offset=offset,
            field=f"{self._noun} {row}",
        )

    def select(self, numbers: npt.NDArray[np.int64]) -> WordTable:
        """Return the words with these numbers, in their order."""
        starts = np.concatenate(([0], self._ends[:-1]))[numbers].tolist()
        ends = self._ends[numbers].tolist()
        view = memoryview(self._data)
        parts = [bytes(view[start:end]) for start, end in zip(starts, ends, strict=True)]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return WordTable(
            b"".join(parts),
            lengths.cumsum(),
            self.source,
            self.format,
            offsets=None if self._offsets is None else self._offsets[numbers],
            noun=self._noun,
        )
