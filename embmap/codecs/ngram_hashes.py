"""Hashes of the n-grams of many words at once.

N-grams run over the code points of a word between its brackets: for each start from the longest to
the shortest. The words come as one array of code points; every n-gram length is one vectorised
pass over all the starts. ``embmap.codecs.jit`` has the same functions compiled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels

__all__ = [
    "Text",
    "bucket_hashes",
    "fasttext_hashes",
    "murmur3_lanes",
    "ngram_bounds",
    "ngram_counts",
]

FNV64_BASIS = 0xCBF29CE484222325
FNV64_PRIME = 0x100000001B3
FNV32_BASIS = 2166136261
FNV32_PRIME = 16777619
_MASK64 = (1 << 64) - 1
_OPERATIONS = 100  # a start of n-grams of the usual three to six code points


@dataclass(frozen=True)
class Text:
    """Words laid end to end as code points.

    Attributes
    ----------
    points : numpy.ndarray
        Shape (code points,), uint32.
    ends : numpy.ndarray
        Shape (words,), int64: where each word ends in `points`.
    """

    points: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, words: list[str]) -> Text:
        """Lay words end to end.

        Parameters
        ----------
        words : list of str
            The words, brackets included.

        Returns
        -------
        Text
            Their code points.
        """
        points = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), "<u4")
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        return cls(points, lengths.cumsum())

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of code points of each word: shape (words,), int64."""
        return np.diff(self.ends, prepend=0)

    def left(self) -> npt.NDArray[np.int64]:
        """Return the code points from each one to its word's end: shape (code points,), int64."""
        return np.repeat(self.ends, self.lengths()) - np.arange(self.points.size)


def ngram_counts(
    text: Text, min_n: int, max_n: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Count n-grams.

    Parameters
    ----------
    text : Text
        The words.
    min_n, max_n : int
        Lengths of n-grams, in code points.

    Returns
    -------
    per_start : numpy.ndarray
        Shape (code points,), int64: n-grams that start at each code point.
    per_word : numpy.ndarray
        Shape (words,), int64.
    """
    per_start = np.maximum(np.minimum(text.left(), max_n) - (min_n - 1), 0)
    totals = np.concatenate(([0], per_start.cumsum()))
    return per_start, np.diff(totals[text.ends], prepend=0)


def _slots(
    per_start: npt.NDArray[np.int64], min_n: int, n: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where n-grams of one length start and where they stand in the order."""
    starts = np.flatnonzero(per_start > n - min_n)
    last = per_start.cumsum()[starts] - 1  # the shortest n-gram of each start comes last
    return starts, last - (n - min_n)


def ngram_bounds(
    text: Text, min_n: int, max_n: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where every n-gram starts and ends.

    Parameters
    ----------
    text : Text
        The words.
    min_n, max_n : int
        Lengths of n-grams, in code points.

    Returns
    -------
    starts, ends : numpy.ndarray
        Shape (n-grams,), int64: in ``text.points``.
    per_word : numpy.ndarray
        Shape (words,), int64: how many each word has.
    """
    per_start, per_word = ngram_counts(text, min_n, max_n)
    starts = np.repeat(np.arange(text.points.size), per_start)
    first = per_start.cumsum() - per_start
    order = np.arange(starts.size) - first[starts]
    return starts, starts + (per_start[starts] + min_n - 1) - order, per_word


def bucket_hashes(
    text: Text, min_n: int, max_n: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Hash n-grams as finalfusion's buckets do: FNV-1a 64 over length and code points.

    Parameters
    ----------
    text : Text
        The words.
    min_n, max_n : int
        Lengths of n-grams, in code points.

    Returns
    -------
    hashes : numpy.ndarray
        Shape (n-grams,), uint64.
    per_word : numpy.ndarray
        Shape (words,), int64: how many each word has.
    """
    jit = kernels.jit_for(_OPERATIONS * text.points.size)
    if jit is not None:
        compiled: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
        compiled = jit.bucket_hashes(text.points, text.ends, min_n, max_n)
        return compiled
    per_start, per_word = ngram_counts(text, min_n, max_n)
    hashes = np.empty(int(per_start.sum()), np.uint64)
    # A byte of zero only multiplies, so the upper bytes of small code points become one product.
    n_bytes = max((int(text.points.max(initial=0)).bit_length() + 7) // 8, 1)
    planes = [((text.points >> np.uint32(8 * i)) & np.uint32(255)) for i in range(n_bytes)]
    planes = [plane.astype(np.uint64) for plane in planes]
    prime = np.uint64(FNV64_PRIME)
    rest = np.uint64(pow(FNV64_PRIME, 5 - n_bytes, 1 << 64))
    for n in range(min_n, min_n + int(per_start.max(initial=0))):
        starts, slots = _slots(per_start, min_n, n)
        value = np.full(starts.size, _fnv64_of_length(n), np.uint64)
        for j in range(n):
            at = starts + j
            for plane in planes[:-1]:
                value = (value ^ plane[at]) * prime
            value = (value ^ planes[-1][at]) * rest
        hashes[slots] = value
    return hashes, per_word


def _fnv64_of_length(n: int) -> int:
    value = FNV64_BASIS
    for byte in n.to_bytes(8, "little"):
        value = (value ^ byte) * FNV64_PRIME & _MASK64
    return value


def fasttext_hashes(
    text: Text, min_n: int, max_n: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Hash n-grams as fastText does: FNV-1a 32 over sign-extended bytes of UTF-8.

    Parameters
    ----------
    text : Text
        The words; no surrogates.
    min_n, max_n : int
        Lengths of n-grams, in code points.

    Returns
    -------
    hashes : numpy.ndarray
        Shape (n-grams,), uint32.
    per_word : numpy.ndarray
        Shape (words,), int64: how many each word has.
    """
    data, offsets = _utf8(text)
    jit = kernels.jit_for(_OPERATIONS * text.points.size)
    if jit is not None:
        compiled: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
        compiled = jit.fasttext_hashes(data, offsets, text.ends, min_n, max_n)
        return compiled
    per_start, per_word = ngram_counts(text, min_n, max_n)
    hashes = np.empty(int(per_start.sum()), np.uint32)
    extended = data.view(np.int8).astype(np.uint32)
    prime = np.uint32(FNV32_PRIME)
    starts = np.flatnonzero(per_start)
    value = np.full(starts.size, FNV32_BASIS, np.uint32)
    # N-grams of one start share their beginnings: one pass over the lengths serves them all.
    for n in range(1, min_n + int(per_start.max(initial=0))):
        kept = per_start[starts] > n - min_n
        starts, value = starts[kept], value[kept]
        begin, end = offsets[starts + n - 1], offsets[starts + n]
        for i in range(int((end - begin).max(initial=0))):
            more = np.flatnonzero(begin + i < end)
            value[more] = (value[more] ^ extended[begin[more] + i]) * prime
        if n >= min_n:
            hashes[_slots(per_start, min_n, n)[1]] = value
    return hashes, per_word


def _utf8(text: Text) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the text as UTF-8, and where each code point starts and the last one ends."""
    data = np.frombuffer(text.points.tobytes().decode("utf-32-le").encode(), np.uint8)
    points = text.points
    sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
    return data, np.concatenate(([0], sizes.cumsum()))


def murmur3_lanes(
    text: Text,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    seed: int,
) -> npt.NDArray[np.uint32]:
    """Hash parts of a text as floret does: MurmurHash3 x64 128 over UTF-8.

    Parameters
    ----------
    text : Text
        The words; no surrogates.
    starts, ends : numpy.ndarray
        Shape (n,), int64: the parts, in ``text.points``.
    seed : int
        The hash's seed, 32 bits.

    Returns
    -------
    numpy.ndarray
        Shape (n, 4), uint32: low half of h1, high half of h1, low half of h2, high half of h2.
    """
    data, offsets = _utf8(text)
    begins, stops = offsets[starts], offsets[ends]
    lengths = stops - begins
    lanes = np.empty((starts.size, 2), np.uint64)
    for n_blocks in np.unique(lengths // 16).tolist():
        chosen = np.flatnonzero(lengths // 16 == n_blocks)
        # Zero bytes after the tail leave its hash as it is, so that every tail is 16 bytes long.
        at = begins[chosen, np.newaxis] + np.arange(16 * (n_blocks + 1))
        inside = at < stops[chosen, np.newaxis]
        padded = np.where(inside, data[np.where(inside, at, 0)], 0).astype(np.uint8)
        words = padded.view("<u8").T.astype(np.uint64)
        lanes[chosen] = _murmur3(words, lengths[chosen].astype(np.uint64), seed)
    return lanes.view(np.uint32)


def _murmur3(
    words: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64], seed: int
) -> npt.NDArray[np.uint64]:
    """Hash messages given as columns of 64-bit words, the last two of which are the tail."""
    c1, c2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
    h1 = np.full(lengths.size, seed, np.uint64)
    h2 = h1.copy()
    for i in range(0, len(words), 2):
        k1, k2 = words[i], words[i + 1]
        h1 = h1 ^ (_rotate(k1 * c1, 31) * c2)
        if i == len(words) - 2:
            h2 = h2 ^ (_rotate(k2 * c2, 33) * c1)
            break
        h1 = (_rotate(h1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        h2 = h2 ^ (_rotate(k2 * c2, 33) * c1)
        h2 = (_rotate(h2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
    h1, h2 = h1 ^ lengths, h2 ^ lengths
    h1 = h1 + h2
    h2 = h2 + h1
    h1, h2 = _finish(h1), _finish(h2)
    h1 = h1 + h2
    h2 = h2 + h1
    return np.stack((h1, h2), axis=1)


def _rotate(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _finish(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
