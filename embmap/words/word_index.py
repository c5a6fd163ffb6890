"""A hash table from words to rows that can be mapped from a file.

The table contains only row numbers. The words stay in the data file, and every hit is confirmed
by the word there, so that a damaged table can miss a word but never give a wrong row. The low bits
of xxh3_64 over the UTF-8 bytes choose a slot, and collisions go to the next slot. Of equal words,
the first row is found.

A vocabulary below 4 GiB takes at most 24 bytes per word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from embmap.codecs import kernels
from embmap.errors import UnsupportedError
from embmap.io.mapping import ByteSource, expand_ranges
from embmap.words.records import Records

__all__ = ["EMPTY", "WordIndex", "hash_words", "n_slots_for"]

EMPTY = 0xFFFFFFFF
"""The value of a slot without a row."""

_BLOCK = 1 << 15  # words hashed at a time: their bytes stay in the second-level cache
_MOST_LETTERS = 1 << 21  # bytes of words that are compared at a time
_LONG = -2  # what the compiled loop gives for words that it does not hash
_SHORT = 16  # words up to this many bytes are gathered as one array


class WordIndex:
    """Finds the rows of words, without a copy of the words.

    Attributes
    ----------
    confirm : callable or None
        If set, ``find`` answers ``confirm(index, word)`` for a word that it does not find, not -1.
    """

    __slots__ = (
        "_fetch",
        "_file",
        "_geometry",
        "_mask",
        "_offset",
        "_prefixes",
        "_slots",
        "_starts",
        "_suffix",
        "_whole",
        "confirm",
        "records",
        "slots",
        "starts",
    )

    def __init__(
        self,
        file: ByteSource,
        records: Records,
        starts: npt.NDArray[Any],
        slots: npt.NDArray[np.uint32],
        mask: int,
    ) -> None:
        self.records = records
        self.confirm: Callable[[Any, str], int] | None = None
        self.starts = starts
        self.slots = slots
        self._mask = mask
        self._fetch = file.fetch
        self._file = file
        self._offset = records.offset
        self._suffix = records.offset - records.suffix
        self._prefixes = _prefixes(records.prefix)
        self._whole = file.array(0, np.uint8, file.nbytes) if file.zero_copy else None
        self._geometry = (
            *(records.n, records.offset, records.limit),
            *(records.prefix, records.suffix),
        )
        # Items of a memoryview are Python ints at half the price of numpy's.
        self._slots = slots.data
        self._starts = starts.data

    @classmethod
    def build(
        cls, file: ByteSource, records: Records, starts: npt.NDArray[Any], progress: Any = None
    ) -> WordIndex:
        """Return an index over words, given where their records start.

        `progress` is called as ``progress(words_done, n_words)``.
        """
        n = records.n
        if n >= EMPTY:
            raise UnsupportedError(
                f"a word index must be about fewer than {EMPTY} words", path=file.path, found=n
            )
        mask = n_slots_for(n) - 1
        keys = np.empty(n, np.uint64)
        for start, hashes in hash_words(file, records, starts):
            stop = start + hashes.size
            keys[start:stop] = (hashes & np.uint64(mask)) << np.uint64(32)
            keys[start:stop] |= np.arange(start, stop, dtype=np.uint64)
            if progress is not None:
                progress(stop, n)
        # In the order of home slot and row, each word goes to its home slot, or to the slot after
        # the word before it if that is further on: linear probing, with all insertions at once.
        keys.sort()
        order = np.arange(n, dtype=np.int64)
        places = np.maximum.accumulate((keys >> np.uint64(32)).astype(np.int64) - order) + order
        n_slots = max(mask + 1, int(places[-1]) + 1 if n else 0) + 1
        slots = np.full(n_slots, EMPTY, np.uint32)
        slots[places] = keys.astype(np.uint32)
        return cls(file, records, starts, slots, mask)

    @property
    def n_slots(self) -> int:
        """Number of slots that a hash can choose: a power of two."""
        return self._mask + 1

    @property
    def nbytes(self) -> int:
        """Size of the index in memory or in its file, in bytes."""
        return int(self.starts.nbytes) + int(self.slots.nbytes)

    def find(self, word: str) -> int:
        """Return the first row of a word; -1, or what `confirm` gives, if it is not found."""
        try:
            data = word.encode()
            # Comparing the length before the word keeps a part of another word from matching.
            record = self._prefixes[len(data)] + data
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8
            return -1
        except IndexError:
            record = self._prefix(len(data)) + data
        slots = self._slots
        starts = self._starts
        slot = xxh3_64_intdigest(data) & self._mask
        row = slots[slot]
        try:
            while row != 0xFFFFFFFF:  # EMPTY, spelled out: a global costs more than the comparison
                start = starts[row] + self._offset
                if self._fetch[start : starts[row + 1] + self._suffix] == record:
                    return row
                slot += 1
                row = slots[slot]
        except IndexError:  # a damaged index names rows that do not exist
            pass
        return -1 if self.confirm is None else self.confirm(self, word)

    def _prefix(self, length: int) -> bytes:
        """Return the length field of a word, capped at the largest length that the field can hold.

        A longer word is in no record, and does not equal a word of the largest length.
        """
        nbytes = self.records.prefix
        return min(length, (1 << 8 * nbytes) - 1).to_bytes(nbytes, "little")

    def probe(self, word: str) -> tuple[int, list[int]]:
        """Return what a look-up that misses reads: the first slot, and the rows from there on."""
        home = slot = xxh3_64_intdigest(word.encode()) & self._mask
        rows = []
        while (row := self._slots[slot]) != EMPTY:
            rows.append(row)
            slot += 1
        return home, rows

    def find_many(self, words: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the first rows of many words: (n,) int64, -1 for words that are not found."""
        n = len(words)
        try:
            # All words are encoded at once.
            joined = "\0".join(words).encode()
        except UnicodeEncodeError:
            return np.fromiter(map(self.find, words), np.int64, n)
        if len(joined) > _MOST_LETTERS and n > 1:  # bounds the memory for words of any length
            halves = (words[: n // 2], words[n // 2 :])
            return np.concatenate([self.find_many(half) for half in halves])
        whole = joined.count(0) == n - 1  # no word contains the separator
        if whole and self._file.zero_copy:
            letters = np.frombuffer(joined + bytes(8), np.uint8)
            rows = np.empty(n, np.int64)
            arguments = letters, self._whole, self.slots, self.starts, self.n_slots, self._geometry
            kernel = kernels.find("find_rows", *arguments, rows)
            if kernel is not None:
                kernel(*arguments, rows)
                for i in np.flatnonzero(rows == _LONG).tolist():
                    rows[i] = self.find(words[i])
                return rows
        if whole:
            encoded = joined.split(b"\0")
        else:
            encoded = list(map(str.encode, words))
            joined = b"\0".join(encoded)
        return self._find_encoded(encoded, joined)

    @kernels.counted
    def _find_encoded(self, encoded: list[bytes], joined: bytes) -> npt.NDArray[np.int64]:
        """Return the rows of words, which are given one by one and with a NUL between them."""
        n = len(encoded)
        rows = np.full(n, -1, np.int64)
        hashes = np.fromiter(map(xxh3_64_intdigest, encoded), np.uint64, n)
        slots = (hashes & np.uint64(self._mask)).view(np.int64)
        lengths = np.fromiter(map(len, encoded), np.int64, n)
        # Room for a length before each word, so that whole records can be compared.
        letters = np.frombuffer(bytes(self.records.prefix) + joined, np.uint8)
        places = (lengths + 1).cumsum() - (lengths + 1)
        asked = np.arange(n)
        while asked.size:
            found = self.slots[slots].astype(np.int64)
            occupied = found != EMPTY
            asked, slots, found = asked[occupied], slots[occupied], found[occupied]
            hit = self._equal(found, letters, places[asked], lengths[asked])
            rows[asked[hit]] = found[hit]
            asked, slots = asked[~hit], slots[~hit] + 1
        return rows

    def _equal(
        self,
        rows: npt.NDArray[np.int64],
        letters: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Compare the words of rows with words given by place and length, byte for byte: (n,) bool.

        `places` lie in `letters`, as many bytes before each word as a length field has. These bytes
        are not read.
        """
        prefix, suffix = self.records.prefix, self.records.suffix
        equal = rows < self.records.n  # false only in a damaged index
        rows = np.where(equal, rows, 0)
        begins = self.starts[rows].astype(np.int64) + (self.records.offset + prefix)
        ends = self.starts[rows + 1].astype(np.int64) + (self.records.offset - suffix)
        equal &= ends - begins == lengths
        # In a forged index starts may be any numbers, whose sums may wrap.
        equal &= (prefix <= begins) & (begins <= ends) & (ends <= self.records.limit)
        if prefix:
            equal &= lengths < 1 << 8 * prefix
        same = np.flatnonzero(equal)
        begins, lengths = begins[same], lengths[same]
        sizes = lengths + prefix
        firsts = sizes.cumsum() - sizes
        wanted = letters[expand_ranges(places[same], sizes)]
        if prefix:
            # As in find: no part of another word may match.
            heads = lengths.astype(f"<u{prefix}").view(np.uint8).reshape(-1, prefix)
            wanted[firsts[:, np.newaxis] + np.arange(prefix)] = heads
        alike = self._file.gather(begins - prefix, sizes) == wanted
        # An empty line has no letters to differ; reduceat cannot take empty ranges.
        matches = sizes == 0
        full = ~matches
        if alike.size:
            matches[full] = np.logical_and.reduceat(alike, firsts[full])
        equal[same] = matches
        return equal


@cache
def _prefixes(nbytes: int) -> list[bytes]:
    """Return the length fields of words of 0 to 255 bytes."""
    return [length.to_bytes(nbytes, "little") if nbytes else b"" for length in range(256)]


def n_slots_for(n_words: int) -> int:
    """Return the number of slots for a number of words: a power of two, at most 40 % occupied."""
    needed = max(-(-5 * n_words // 2), 1)
    return 1 << (needed - 1).bit_length()


def hash_words(
    file: ByteSource, records: Records, starts: npt.NDArray[Any]
) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
    """Yield the first row and the xxh3_64 hashes, (n,) uint64, of each block of words."""
    file.check_whole()
    for start in range(0, records.n, _BLOCK):
        bounds = starts[start : start + _BLOCK + 1].astype(np.int64)
        begins = bounds[:-1] + records.prefix
        lengths = bounds[1:] - records.suffix - begins
        yield start, _hash_block(file, records.offset, begins, lengths)


def _hash_block(
    file: ByteSource,
    offset: int,
    begins: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint64]:
    """Return the hashes of consecutive words: (n,) uint64. Short words are gathered at once."""
    first, last = int(begins[0]), int(begins[-1] + lengths[-1])
    hashes = np.empty(begins.size, np.uint64)
    if last - first > 64 * _BLOCK * _SHORT:  # words of megabytes: one at a time
        short = np.zeros(begins.size, bool)
    else:
        data = file.array(offset + first, np.uint8, last - first)
        short = (lengths <= _SHORT) & (begins - first + _SHORT <= data.size)
        # numpy drops NULs at the end of an S string: words that end in NUL are hashed one by one.
        ends = begins[short] - first + lengths[short] - 1
        short[short] = (lengths[short] == 0) | (data[ends] != 0)
    if short.any():
        every = np.ndarray((data.size - _SHORT + 1,), f"S{_SHORT}", buffer=data, strides=(1,))
        words = every[begins[short] - first]
        letters = words.view(np.uint8).reshape(-1, _SHORT)
        letters *= np.arange(_SHORT) < lengths[short, np.newaxis]
        hashes[short] = np.fromiter(map(xxh3_64_intdigest, words.tolist()), np.uint64, len(words))
    long = np.flatnonzero(~short)
    starts = (begins[long] + offset).tolist()
    stops = (begins[long] + lengths[long] + offset).tolist()
    for i, start, stop in zip(long.tolist(), starts, stops, strict=True):
        hashes[i] = xxh3_64_intdigest(file.fetch[start:stop])
    return hashes
