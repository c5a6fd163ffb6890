"""Hashes of the n-grams of many words at once.

N-grams consist of the code points of a word with its brackets. They are ordered by their start, and
for each start from the longest to the shortest. All words together are one array of code points.
:mod:`embmap.codecs.jit` has the same functions compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels

__all__ = [
    "Text",
    "bucket_hashes",
    "fasttext_hashes",
    "murmur3_lanes",
    "ngram_bounds",
]

FNV64_BASIS = 0xCBF29CE484222325
FNV64_PRIME = 0x100000001B3
FNV32_BASIS = 2166136261
FNV32_PRIME = 16777619
_FNV32_FACTOR = np.uint32(FNV32_PRIME)
_BYTE = np.uint32(255)
_ZERO = np.zeros(1, np.int64)
_MASK64 = (1 << 64) - 1
_FNV64_FACTORS = [np.uint64(pow(FNV64_PRIME, power, 1 << 64)) for power in range(5)]
_PLANNED = 64  # code points of the longest word with a plan; longer words are rare
_Plan = tuple[
    npt.NDArray[np.uint64],
    list[tuple[int, npt.NDArray[np.int64]]],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
]


@dataclass(frozen=True)
class Text:
    """Words laid end to end as code points.

    Attributes
    ----------
    points : numpy.ndarray
        Shape (code points,), uint32.
    ends : numpy.ndarray
        Shape (words,), int64: the end of each word in `points`.
    """

    points: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, words: list[str]) -> Text:
        """Return words, without surrogates, laid end to end."""
        points = np.frombuffer("".join(words).encode("utf-32-le"), "<u4")
        return cls(points, np.fromiter(accumulate(map(len, words)), np.int64, len(words)))

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the lengths of the words in code points: (words,) int64."""
        lengths = self.ends.copy()
        lengths[1:] -= self.ends[:-1]
        return lengths


def ngram_bounds(
    text: Text, min_n: int, max_n: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the start and size of every n-gram in code points, and their number per word."""
    points = np.arange(text.points.size)
    lengths = text.lengths()
    longest = np.minimum(np.repeat(text.ends, lengths) - points, max_n)
    per_start = np.maximum(longest - (min_n - 1), 0)
    totals = per_start.cumsum()
    starts = np.repeat(points, per_start)
    # The n-grams of a start count down from its longest.
    sizes = (longest + totals - per_start)[starts] - np.arange(starts.size)
    upto = np.concatenate((_ZERO, totals))[text.ends]
    per_word = upto.copy()
    per_word[1:] -= upto[:-1]
    return starts, sizes, per_word


def bucket_hashes(
    text: Text, min_n: int, max_n: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Hash n-grams as finalfusion's buckets do: FNV-1a 64 over length and code points.

    Returns the hashes (n-grams,) uint64, and the number of n-grams per word.
    """
    kernel = kernels.find("bucket_hashes", text.points, text.ends, min_n, max_n)
    if kernel is None:
        return _bucket_hashes(text, min_n, max_n)
    compiled: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
    compiled = kernel(text.points, text.ends, min_n, max_n)
    return compiled


@kernels.counted
def _bucket_hashes(
    text: Text, min_n: int, max_n: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    if text.ends.size == 1 and text.points.size <= _PLANNED:
        return _bucket_hashes_of_one(text.points, min_n, max_n)
    starts, sizes, per_word = ngram_bounds(text, min_n, max_n)
    longest = int(sizes.max(initial=0))
    basis = np.array([_fnv64_of_length(n) for n in range(longest + 1)], np.uint64)
    hashes = basis[sizes]
    planes = _byte_planes(text.points)
    for j in range(longest):
        at, going = _at(starts, sizes, j)
        for plane, factor in planes:
            np.multiply(hashes ^ plane[at], factor, out=hashes, where=going)
    return hashes, per_word


def _byte_planes(
    points: npt.NDArray[np.uint32],
) -> list[tuple[npt.NDArray[np.uint64], np.uint64]]:
    """Return the bytes of code points, lowest first, each with the factor that follows it.

    A byte of zero only multiplies, so the upper bytes of small code points become one product.
    """
    n_bytes = max((int(points.max(initial=0)).bit_length() + 7) // 8, 1)
    factors = [_FNV64_FACTORS[1]] * (n_bytes - 1) + [_FNV64_FACTORS[5 - n_bytes]]
    planes = [(points >> np.uint32(8 * i) & _BYTE).astype(np.uint64) for i in range(n_bytes)]
    return list(zip(planes, factors, strict=True))


def _bucket_hashes_of_one(
    points: npt.NDArray[np.uint32], min_n: int, max_n: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Hash the n-grams of one word by a plan, which depends only on the length of the word."""
    basis, steps, order, per_word = _plan(points.size, min_n, max_n)
    planes = _byte_planes(points)
    hashes = basis.copy()
    for count, at in steps:
        going = hashes[:count]
        for plane, factor in planes:
            going ^= plane[at]
            going *= factor
    return hashes[order], per_word.copy()


@lru_cache(256)
def _plan(length: int, min_n: int, max_n: int) -> _Plan:
    """Return how to hash the n-grams of a word of one length, the longest n-grams first.

    A plan consists of the first value of each hash; for each step the number of n-grams that go on
    and the places of their next code points; the order of the results; and their number.
    """
    text = Text(np.zeros(length, np.uint32), np.array([length]))
    starts, sizes, per_word = ngram_bounds(text, min_n, max_n)
    longest_first = np.argsort(-sizes, kind="stable")
    starts, sizes = starts[longest_first], sizes[longest_first]
    basis = np.array([_fnv64_of_length(n) for n in sizes.tolist()], np.uint64)
    counts = [int(np.count_nonzero(sizes > j)) for j in range(int(sizes.max(initial=0)))]
    steps = [(count, starts[:count] + j) for j, count in enumerate(counts)]
    return basis, steps, np.argsort(longest_first), per_word


def _at(
    starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], j: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the place of the j-th code point of each n-gram, and which n-grams are that long."""
    going = sizes > j
    return starts + j * going, going


@lru_cache(1024)
def _fnv64_of_length(n: int) -> int:
    value = FNV64_BASIS
    for byte in n.to_bytes(8, "little"):
        value = (value ^ byte) * FNV64_PRIME & _MASK64
    return value


def fasttext_hashes(
    text: Text, min_n: int, max_n: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Hash n-grams as fastText does: FNV-1a 32 over sign-extended bytes of UTF-8.

    Returns the hashes (n-grams,) uint32, and the number of n-grams per word.
    """
    data, offsets = _utf8(text)
    kernel = kernels.find("fasttext_hashes", data, offsets, text.ends, min_n, max_n)
    if kernel is None:
        return _fasttext_hashes(text, data, offsets, (min_n, max_n))
    compiled: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
    compiled = kernel(data, offsets, text.ends, min_n, max_n)
    return compiled


@kernels.counted
def _fasttext_hashes(
    text: Text,
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    of: tuple[int, int],
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    starts, sizes, per_word = ngram_bounds(text, *of)
    extended = data.view(np.int8).astype(np.uint32)
    hashes = np.full(starts.size, FNV32_BASIS, np.uint32)
    begins = offsets[starts]
    nbytes = offsets[starts + sizes] - begins
    for j in range(int(nbytes.max(initial=0))):
        at, going = _at(begins, nbytes, j)
        np.multiply(hashes ^ extended[at], _FNV32_FACTOR, out=hashes, where=going)
    return hashes, per_word


def _utf8(text: Text) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the text as UTF-8, and the offsets of the code points and of its end."""
    data = np.frombuffer(text.points.tobytes().decode("utf-32-le").encode(), np.uint8)
    points = text.points
    sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
    return data, np.concatenate(([0], sizes.cumsum()))


def murmur3_lanes(
    text: Text,
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    seed: int,
) -> npt.NDArray[np.uint32]:
    """Hash parts of a text as floret does: MurmurHash3 x64 128 over UTF-8.

    Returns (parts, 4) uint32: the low and high halves of h1, then of h2.
    """
    data, offsets = _utf8(text)
    begins, stops = offsets[starts], offsets[starts + sizes]
    lengths = stops - begins
    lanes = np.empty((starts.size, 2), np.uint64)
    for n_blocks in np.unique(lengths // 16).tolist():
        chosen = np.flatnonzero(lengths // 16 == n_blocks)
        # Zero bytes after the tail do not change its hash, so every tail can be 16 bytes long.
        at = begins[chosen, np.newaxis] + np.arange(16 * (n_blocks + 1))
        inside = at < stops[chosen, np.newaxis]
        padded = np.zeros(at.shape, np.uint8)
        padded[inside] = data[at[inside]]
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
