"""The loops of the codecs compiled by numba; imported only through :mod:`embmap.codecs.kernels`.

Each function computes bit for bit what its numpy counterpart does: no fused multiply-add, no
reordered sums. All of them release the GIL, and compiled code is cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.extending import intrinsic

__all__ = ["bucket_hashes", "decode_affine", "decode_half", "fasttext_hashes", "segment_sums"]


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # nowhere to write the cache: compiled anew in every process
        return numba.njit(function, nogil=True, error_model="numpy")


@_compiled
def segment_sums(
    array: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Any:
    """Compute :func:`embmap.codecs.segments.segment_sums` over an array."""
    columns = array.shape[1]
    sums = np.zeros((counts.size, columns), np.float32)
    at = 0
    for group in range(counts.size):
        out = sums[group]
        end = at + counts[group]
        # Four rows at a time, added in the same order: their cache misses overlap.
        while at + 4 <= end:
            first, second = array[rows[at]], array[rows[at + 1]]
            third, fourth = array[rows[at + 2]], array[rows[at + 3]]
            for j in range(columns):
                out[j] = (((out[j] + first[j]) + second[j]) + third[j]) + fourth[j]
            at += 4
        while at < end:
            row = array[rows[at]]
            for j in range(columns):
                out[j] += row[j]
            at += 1
    return sums


@_compiled
def _ngrams_per_word(ends: npt.NDArray[np.int64], min_n: int, max_n: int) -> Any:
    per_word = np.zeros(ends.size, np.int64)
    start = 0
    for w in range(ends.size):
        length = ends[w] - start
        for i in range(length):
            per_word[w] += max(min(max_n, length - i) - min_n + 1, 0)
        start = ends[w]
    return per_word


@_compiled
def bucket_hashes(
    points: npt.NDArray[np.uint32],
    ends: npt.NDArray[np.int64],
    min_n: int,
    max_n: int,
) -> Any:
    """Compute :func:`embmap.codecs.ngram_hashes.bucket_hashes`."""
    prime = np.uint64(0x100000001B3)
    per_word = _ngrams_per_word(ends, min_n, max_n)
    hashes = np.empty(per_word.sum(), np.uint64)
    at = 0
    start = 0
    for w in range(ends.size):
        for i in range(start, ends[w]):
            for n in range(min(max_n, ends[w] - i), min_n - 1, -1):
                value = np.uint64(0xCBF29CE484222325)
                for b in range(8):
                    value = (value ^ np.uint64((n >> (8 * b)) & 255)) * prime
                for j in range(i, i + n):
                    for b in range(4):
                        byte = (points[j] >> np.uint32(8 * b)) & np.uint32(255)
                        value = (value ^ np.uint64(byte)) * prime
                hashes[at] = value
                at += 1
        start = ends[w]
    return hashes, per_word


@_compiled
def fasttext_hashes(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    min_n: int,
    max_n: int,
) -> Any:
    """Compute :func:`embmap.codecs.ngram_hashes.fasttext_hashes` over UTF-8 and its offsets."""
    per_word = _ngrams_per_word(ends, min_n, max_n)
    hashes = np.empty(per_word.sum(), np.uint32)
    at = 0
    start = 0
    for w in range(ends.size):
        for i in range(start, ends[w]):
            longest = min(max_n, ends[w] - i)
            value = np.uint32(2166136261)
            for n in range(1, longest + 1):
                for k in range(offsets[i + n - 1], offsets[i + n]):
                    byte = np.uint32(np.int32(np.int8(data[k])))
                    value = np.uint32((value ^ byte) * np.uint32(16777619))
                if n >= min_n:  # the longest comes first
                    hashes[at + longest - n] = value
            at += max(longest - min_n + 1, 0)
        start = ends[w]
    return hashes, per_word


def _reinterpreted(source: Any, target: Any) -> Any:
    """Return a function that reads the bits of a number as one of another type."""

    def bitcast(_typing: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(bitcast)


_float_of = _reinterpreted(numba.uint32, numba.float32)
_bits_of = _reinterpreted(numba.float32, numba.uint32)


@_compiled
def decode_half(bits: npt.NDArray[np.uint16], out: npt.NDArray[np.uint32]) -> None:
    """Compute :func:`embmap.codecs.half.decode_half`, as bits of float32."""
    scale = np.float32(2.0**112)
    for i in range(bits.size):
        half = np.uint32(bits[i])
        magnitude = np.uint32((half & np.uint32(0x7FFF)) << np.uint32(13))
        finite = _bits_of(_float_of(magnitude) * scale)
        special = magnitude | np.uint32(0x7F800000)
        pattern = finite if magnitude < np.uint32(0x0F800000) else special
        out[i] = pattern | np.uint32((half & np.uint32(0x8000)) << np.uint32(16))


@_compiled
def decode_affine(
    codes: npt.NDArray[np.uint8],
    scale: np.float32,
    minimum: np.float32,
    out: npt.NDArray[np.float32],
) -> None:
    """Compute :func:`embmap.codecs.affine.decode_affine`."""
    for i in range(codes.size):
        out[i] = np.float32(np.float32(codes[i]) * scale) + minimum
