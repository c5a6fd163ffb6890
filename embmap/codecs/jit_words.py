"""The compiled loops between words and rows; imported only through :mod:`embmap.codecs.kernels`.

Each function computes bit for bit what its numpy counterpart does. Rows and words are at random
places of large files, so several are asked for before the first one is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.jit_support import compiled, copy_items, load64, prefetch, product_folded

__all__ = [
    "bucket_hashes",
    "compose",
    "fasttext_hashes",
    "find_rows",
    "gather_rows",
    "segment_sums",
]

_LINE = 64  # bytes of a cache line
_AHEAD = 4  # rows that are asked for before they are needed
_EMPTY = 0xFFFFFFFF  # the value of a slot without a row
_AT_ONCE = 64  # words that are looked up together
_LONGEST = 128  # bytes of a word that is hashed here
_FACTORS64 = np.array([pow(0x100000001B3, power, 1 << 64) for power in range(5)], np.uint64)
_TINY = np.finfo(np.float32).tiny

U64 = np.uint64


@compiled
def _ask_for(array: npt.NDArray[Any], row: int) -> None:
    """Ask for the memory of a row."""
    columns = array.shape[1]
    step = max(_LINE // array.itemsize, 1)
    for j in range(0, columns, step):
        prefetch(array, row * columns + j)


@compiled
def _add_rows(array: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], out: Any) -> None:
    """Add rows to a vector, in their order."""
    n, columns = rows.size, array.shape[1]
    for i in range(min(_AHEAD, n)):
        _ask_for(array, rows[i])
    at = 0
    # Four rows at a time, so that the vector is loaded and stored less often.
    while at + 4 <= n:
        for i in range(at + 4, min(at + 4 + _AHEAD, n)):
            _ask_for(array, rows[i])
        first, second = array[rows[at]], array[rows[at + 1]]
        third, fourth = array[rows[at + 2]], array[rows[at + 3]]
        for j in range(columns):
            out[j] = (((out[j] + first[j]) + second[j]) + third[j]) + fourth[j]
        at += 4
    while at < n:
        row = array[rows[at]]
        for j in range(columns):
            out[j] += row[j]
        at += 1


@compiled
def segment_sums(
    array: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Any:
    """Compute :func:`embmap.vectors.segments.segment_sums` over an array."""
    sums = np.zeros((counts.size, array.shape[1]), np.float32)
    at = 0
    for group in range(counts.size):
        _add_rows(array, rows[at : at + counts[group]], sums[group])
        at += counts[group]
    return sums


@compiled
def _count_ngrams(length: int, min_n: int, max_n: int) -> Any:
    """Return the number of n-grams of a word of some code points."""
    most = min(max_n, length)
    if most < min_n:
        return 0
    return (most - min_n + 1) * (2 * length - min_n - most + 2) // 2


@compiled
def _length_hashes(min_n: int, longest: int) -> Any:
    """Return what FNV-1a makes of the lengths of n-grams, from the shortest on."""
    hashes = np.empty(max(longest - min_n + 1, 0), np.uint64)
    for k in range(hashes.size):
        value = U64(0xCBF29CE484222325)
        for b in range(8):
            value = (value ^ U64(((min_n + k) >> (8 * b)) & 255)) * _FACTORS64[1]
        hashes[k] = value
    return hashes


@compiled
def _bucket_hashes_of(
    points: npt.NDArray[np.uint32], lengths: npt.NDArray[np.uint64], min_n: int, hashes: Any
) -> None:
    """Hash the n-grams of one word, given the hashes of their lengths."""
    at = 0
    for i in range(points.size):
        for n in range(min(min_n - 1 + lengths.size, points.size - i), min_n - 1, -1):
            value = lengths[n - min_n]
            for j in range(i, i + n):
                point = points[j]
                if point < np.uint32(256):  # the bytes of zero only multiply
                    value = (value ^ U64(point)) * _FACTORS64[4]
                else:
                    for b in range(4):
                        byte = (point >> np.uint32(8 * b)) & np.uint32(255)
                        value = (value ^ U64(byte)) * _FACTORS64[1]
            hashes[at] = value
            at += 1


@compiled
def bucket_hashes(
    points: npt.NDArray[np.uint32],
    ends: npt.NDArray[np.int64],
    min_n: int,
    max_n: int,
) -> Any:
    """Compute :func:`embmap.codecs.ngram_hashes.bucket_hashes`."""
    per_word = np.empty(ends.size, np.int64)
    longest = start = 0
    for w in range(ends.size):
        per_word[w] = _count_ngrams(ends[w] - start, min_n, max_n)
        longest = max(longest, ends[w] - start)
        start = ends[w]
    lengths = _length_hashes(min_n, min(longest, max_n))
    hashes = np.empty(per_word.sum(), np.uint64)
    at = start = 0
    for w in range(ends.size):
        end = at + per_word[w]
        _bucket_hashes_of(points[start : ends[w]], lengths, min_n, hashes[at:end])
        at, start = end, ends[w]
    return hashes, per_word


@compiled
def _scale(vector: Any) -> None:
    """Compute :func:`embmap.vectors.segments.normalize` for one vector."""
    square = 0.0
    for j in range(vector.size):
        square += np.float64(vector[j]) * np.float64(vector[j])
    length = np.float32(np.sqrt(square))
    if length < _TINY:
        length = _TINY
    for j in range(vector.size):
        vector[j] /= length


@compiled
def compose(
    points: npt.NDArray[np.uint32],
    ends: npt.NDArray[np.int64],
    first: int,
    of: tuple[int, int, int, int],
    vectors: npt.NDArray[np.float32],
    array: npt.NDArray[np.float32],
) -> None:
    """Compose the vectors of words from their code points: sums of rows, scaled to unit length.

    `first` is the first word, `of` the lengths of the shortest and the longest n-gram, the row of
    the first bucket, and the number of buckets, a power of two. `vectors` are zeros before.
    """
    min_n, max_n, first_row, n_buckets = of
    mask = U64(n_buckets - 1)
    before = ends[first - 1] if first else 0
    longest, start = 0, before
    for w in range(first, ends.size):
        longest = max(longest, ends[w] - start)
        start = ends[w]
    lengths = _length_hashes(min_n, min(longest, max_n))
    most = _count_ngrams(longest, min_n, max_n)
    hashes = np.empty(most, np.uint64)
    rows = np.empty(most, np.int64)
    start = before
    for w in range(first, ends.size):
        n = _count_ngrams(ends[w] - start, min_n, max_n)
        _bucket_hashes_of(points[start : ends[w]], lengths, min_n, hashes)
        for i in range(n):
            rows[i] = np.int64(hashes[i] & mask) + first_row
        _add_rows(array, rows[:n], vectors[w - first])
        _scale(vectors[w - first])
        start = ends[w]


@compiled
def fasttext_hashes(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    min_n: int,
    max_n: int,
) -> Any:
    """Compute :func:`embmap.codecs.ngram_hashes.fasttext_hashes` over UTF-8 and its offsets."""
    per_word = np.empty(ends.size, np.int64)
    start = 0
    for w in range(ends.size):
        per_word[w] = _count_ngrams(ends[w] - start, min_n, max_n)
        start = ends[w]
    hashes = np.empty(per_word.sum(), np.uint32)
    at = start = 0
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


_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    ),
    "<u8",
).copy()
_P1, _P2, _P3 = U64(0x9E3779B185EBCA87), U64(0xC2B2AE3D27D4EB4F), U64(0x165667B19E3779F9)
_MX1, _MX2 = U64(0x165667919E3779F9), U64(0x9FB21C651E98DF25)
_LOW = U64(0xFFFFFFFF)
_FLIP_1 = (_SECRET[0] ^ (_SECRET[0] >> U64(32))) & _LOW
_FLIP_4, _FLIP_9 = _SECRET[1] ^ _SECRET[2], _SECRET[3] ^ _SECRET[4]
_FLIP_16, _FLIP_0 = _SECRET[5] ^ _SECRET[6], _SECRET[7] ^ _SECRET[8]


@compiled
def _rotate(value: Any, bits: int) -> Any:
    return (value << U64(bits)) | (value >> U64(64 - bits))


@compiled
def _swap(value: Any) -> Any:
    """Return a number with its bytes in reverse order."""
    swapped = U64(0)
    for b in range(8):
        swapped |= ((value >> U64(8 * b)) & U64(255)) << U64(56 - 8 * b)
    return swapped


@compiled
def _mix(data: npt.NDArray[np.uint8], at: int, secret: int) -> Any:
    left = load64(data, at) ^ _SECRET[secret]
    return product_folded(left, load64(data, at + 8) ^ _SECRET[secret + 1])


@compiled
def _hash(data: npt.NDArray[np.uint8], at: int, n: int) -> Any:
    """Return xxh3_64 of at most 128 bytes, which at least 8 others follow."""
    size = U64(n)
    if n > 16:
        value = size * _P1
        for i in range((n - 1) // 32, -1, -1):
            value += _mix(data, at + 16 * i, 4 * i)
            value += _mix(data, at + n - 16 * (i + 1), 4 * i + 2)
    elif n > 8:
        low, high = load64(data, at) ^ _FLIP_9, load64(data, at + n - 8) ^ _FLIP_16
        value = size + _swap(low) + high + product_folded(low, high)
    elif n >= 4:
        low, high = load64(data, at) & _LOW, load64(data, at + n - 4) & _LOW
        value = (high + (low << U64(32))) ^ _FLIP_4
        value ^= _rotate(value, 49) ^ _rotate(value, 24)
        value *= _MX2
        value ^= (value >> U64(35)) + size
        value *= _MX2
        return value ^ (value >> U64(28))
    else:
        value = _FLIP_0
        if n:
            first, middle, last = U64(data[at]), U64(data[at + n // 2]), U64(data[at + n - 1])
            value = first << U64(16) | middle << U64(24) | last | size << U64(8)
            value ^= _FLIP_1
        value ^= value >> U64(33)
        value *= _P2
        value ^= value >> U64(29)
        value *= _P3
        return value ^ (value >> U64(32))
    value ^= value >> U64(37)
    value *= _MX1
    return value ^ (value >> U64(32))


@compiled
def _equal(
    left: npt.NDArray[np.uint8], i: int, right: npt.NDArray[np.uint8], j: int, n: int
) -> Any:
    """Compare bytes, of which at least 8 others follow on the right."""
    k = 0
    while k + 8 <= n:
        if load64(left, i + k) != load64(right, j + k):
            return False
        k += 8
    if k < n and i + k + 8 <= left.size:
        differing = load64(left, i + k) ^ load64(right, j + k)
        return differing << U64(64 - 8 * (n - k)) == U64(0)
    while k < n:
        if left[i + k] != right[j + k]:
            return False
        k += 1
    return True


@compiled
def _is_at(
    data: npt.NDArray[np.uint8], bounds: Any, fields: Any, letters: npt.NDArray[np.uint8], of: Any
) -> Any:
    """Whether the record within `bounds` is about a word; bounds may be any numbers."""
    start, end = bounds
    prefix, limit = fields
    at, n = of
    if end - start - prefix != n or not 0 <= start <= end <= min(limit, data.size):
        return False
    # Comparing the length before the word as well keeps a part of another word from matching.
    for b in range(prefix):
        if data[start + b] != np.uint8((n >> (8 * b)) & 255):
            return False
    if 0 < prefix < 8 and n >> (8 * prefix):
        return False
    return _equal(data, start + prefix, letters, at, n)


@compiled
def find_rows(
    letters: npt.NDArray[np.uint8],
    data: npt.NDArray[np.uint8],
    slots: npt.NDArray[np.uint32],
    starts: npt.NDArray[Any],
    n_slots: int,
    records: tuple[int, int, int, int, int],
    rows: npt.NDArray[np.int64],
) -> None:
    """Compute :meth:`embmap.words.word_index.WordIndex.find_many`, with -2 for longer words.

    `letters` are words with a NUL between them and 8 bytes after them, `records` the number of
    records, their offset and limit in `data`, and the sizes of their prefix and suffix. Slots and
    starts may be any numbers.
    """
    n_records, offset, limit, prefix, suffix = records
    mask = U64(n_slots - 1)
    begins = np.empty(_AT_ONCE, np.int64)
    lengths = np.empty(_AT_ONCE, np.int64)
    homes = np.empty(_AT_ONCE, np.int64)
    found = np.empty(_AT_ONCE, np.int64)
    position, end = 0, letters.size - 8
    for done in range(0, rows.size, _AT_ONCE):
        n = min(_AT_ONCE, rows.size - done)
        # Each loop asks for what the next one needs.
        for i in range(n):
            begins[i] = position
            while position < end and letters[position]:
                position += 1
            lengths[i] = position - begins[i]
            position += 1
            homes[i] = 0
            if lengths[i] <= _LONGEST:
                homes[i] = np.int64(_hash(letters, begins[i], lengths[i]) & mask)
            prefetch(slots, homes[i])
        for i in range(n):
            found[i] = slots[homes[i]] if homes[i] < slots.size else _EMPTY
            if found[i] < n_records:
                prefetch(starts, found[i])
        for i in range(n):
            if found[i] < n_records:
                prefetch(data, offset + np.int64(starts[found[i]]))
        for i in range(n):
            row, slot = found[i], homes[i]
            rows[done + i] = -1
            if lengths[i] > _LONGEST:
                rows[done + i] = -2
                continue
            while row != _EMPTY:
                if row < n_records:
                    start = offset + np.int64(starts[row])
                    stop = offset + np.int64(starts[row + 1]) - suffix
                    word = begins[i], lengths[i]
                    if _is_at(data, (start, stop), (prefix, limit), letters, word):
                        rows[done + i] = row
                        break
                slot += 1
                row = np.int64(slots[slot]) if slot < slots.size else _EMPTY


@compiled
def gather_rows(
    array: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]
) -> None:
    """Copy rows, which exist, as bytes."""
    n, nbytes = out.shape
    for i in range(min(_AHEAD, n)):
        _ask_for(array, rows[i])
    for i in range(n):
        if i + _AHEAD < n:
            _ask_for(array, rows[i + _AHEAD])
        copy_items(out, i * nbytes, array, rows[i] * nbytes, nbytes)
