"""The words of an input: collected once, chosen from, handed to writers in order.

Words stay in memory, packed end to end; vectors never do. A word that is not UTF-8, repeats, or
cannot be held by the output is dealt with here, for every pair of formats alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from embmap.errors import FormatError
from embmap.io.mapping import ByteSource
from embmap.words.repeats import find_repeats
from embmap.words.vocabulary import Vocabulary

__all__ = ["Chosen", "Refuse", "WordTable", "choose"]

Refuse = Callable[[str], str | None]


class WordTable(Collection[str]):
    """Words in order, packed end to end."""

    def __init__(
        self,
        data: bytes | bytearray,
        ends: npt.NDArray[np.int64],
        file: ByteSource,
        format: str,
        places: npt.NDArray[np.int64] | None = None,
        noun: str = "word",
    ) -> None:
        self._data = data
        self._ends = ends
        self._file = file
        self._format = format
        self._places = places
        self._noun = noun

    @classmethod
    def of(cls, vocabulary: Vocabulary, limit: int | None = None) -> WordTable:
        """Return the words of a file that embmap opens."""
        records = vocabulary.records
        data, ends = bytearray(), array("q")
        for _, word in vocabulary.encoded(0, limit):
            data += word
            ends.append(len(data))
        places = vocabulary.starts[: len(ends)].astype(np.int64) + records.offset + records.prefix
        return cls(
            data,
            np.array(ends, np.int64),
            vocabulary.file,
            records.format,
            places,
            records.noun,
        )

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        """Return the words, which have to be UTF-8."""
        for row, data in enumerate(self.encoded()):
            try:
                word = data.decode()
            except UnicodeDecodeError as error:
                raise self.not_utf8(row, error) from None
            yield word

    def __contains__(self, word: object) -> bool:
        """Whether a word is among them; looks at each."""
        return any(word == other for other in self)

    def encoded(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Return the bytes of the words of a range."""
        begin = int(self._ends[start - 1]) if start else 0
        view = memoryview(self._data)
        for end in self._ends[start:stop].tolist():
            yield bytes(view[begin:end])
            begin = end

    def decoded(self, start: int, stop: int) -> list[str]:
        """Return a range of the words, with U+FFFD for bytes that are not UTF-8."""
        return [word.decode(errors="replace") for word in self.encoded(start, stop)]

    def not_utf8(self, row: int, error: UnicodeDecodeError) -> FormatError:
        """Return the error about a word that is not UTF-8."""
        message = f"not UTF-8: {error.reason}; lossy conversion puts U+FFFD in place of such bytes"
        return self.error(row, message, error.start)

    def error(self, row: int, message: str, within: int = 0) -> FormatError:
        """Return an error about a word."""
        offset = None if self._places is None else int(self._places[row]) + within
        return FormatError(
            message,
            path=self._file.path,
            format=self._format,
            offset=offset,
            field=f"{self._noun} {row}",
        )

    def only(self, numbers: npt.NDArray[np.int64]) -> WordTable:
        """Return some of the words."""
        starts = np.concatenate(([0], self._ends[:-1]))[numbers].tolist()
        ends = self._ends[numbers].tolist()
        view = memoryview(self._data)
        parts = [bytes(view[start:end]) for start, end in zip(starts, ends, strict=True)]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        places = None if self._places is None else self._places[numbers]
        return WordTable(
            b"".join(parts), lengths.cumsum(), self._file, self._format, places, self._noun
        )


@dataclass(frozen=True)
class Chosen:
    """The words that are converted.

    Attributes
    ----------
    words : WordTable
        They themselves.
    rows : numpy.ndarray
        Shape (n,), int64: their rows in the input, ascending.
    n_duplicates : int
        Words left out because they stood there before.
    n_dropped : int
        Words left out because the output cannot hold them.
    n_missing : int
        Words that were asked for and are not in the input.
    """

    words: WordTable
    rows: npt.NDArray[np.int64]
    n_duplicates: int = 0
    n_dropped: int = 0
    n_missing: int = 0


def choose(
    table: WordTable,
    *,
    wanted: Iterable[str] | None = None,
    refuse: Refuse | None = None,
    lossy: bool = False,
) -> Chosen:
    """Choose the words to convert."""
    asked = None if wanted is None else set(wanted)
    data, ends, rows, hashes = bytearray(), array("q"), array("q"), array("Q")
    n_dropped = 0
    for row, encoded in enumerate(table.encoded()):
        try:
            word = encoded.decode()
        except UnicodeDecodeError as error:
            if not lossy:
                raise table.not_utf8(row, error) from None
            word = encoded.decode(errors="replace")
            encoded = word.encode()
        if asked is not None and word not in asked:
            continue
        reason = None if refuse is None else refuse(word)
        if reason is not None:
            if not lossy:
                raise table.error(
                    row, f"{word[:50]!r} {reason}; lossy conversion leaves such words out"
                )
            n_dropped += 1
            continue
        data += encoded
        ends.append(len(data))
        rows.append(row)
        hashes.append(xxh3_64_intdigest(encoded))
    found = WordTable(data, np.array(ends, np.int64), table._file, table._format)
    numbers = np.array(rows, np.int64)
    repeats, _ = find_repeats(
        np.array(hashes, np.uint64), lambda suspects: found.only(suspects).encoded()
    )
    n_missing = 0
    if repeats.size:
        firsts = np.delete(np.arange(len(found)), repeats)
        found, numbers = found.only(firsts), numbers[firsts]
    if asked is not None:
        n_missing = len(asked) - len(found) - n_dropped
    return Chosen(found, numbers, int(repeats.size), n_dropped, max(n_missing, 0))
