"""The loops of the codecs compiled by numba; imported only through :mod:`embmap.codecs.kernels`.

Each function computes bit for bit what its numpy counterpart does: no fused multiply-add, no
reordered sums, except where exact scores decide afterwards. All of them release the GIL, and
compiled code is cached on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

__all__ = [
    "bucket_hashes",
    "code_bounds",
    "decode_affine",
    "decode_ans",
    "decode_half",
    "encode_ans",
    "fasttext_hashes",
    "gathered_products",
    "segment_sums",
    "table_sums",
]


if hasattr(os, "register_at_fork"):
    # A child forked while another thread compiles would wait for ever for the compiler's lock.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True, **options)
    except RuntimeError:  # there is no folder for the cache: each process compiles again
        return numba.njit(function, nogil=True, error_model="numpy", **options)


def _associative(function: Callable[..., Any]) -> Any:
    """Compile a function whose sums may be added in any order: only for bounds of scores."""
    return _compiled(function, fastmath={"reassoc", "contract"})


@_compiled
def segment_sums(
    array: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Any:
    """Compute :func:`embmap.vectors.segments.segment_sums` over an array."""
    columns = array.shape[1]
    sums = np.zeros((counts.size, columns), np.float32)
    at = 0
    for group in range(counts.size):
        out = sums[group]
        end = at + counts[group]
        # Four rows at a time, added in the same order, so that their cache misses overlap.
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
    """Return a function that reinterprets the bits of a number as another type."""

    def bitcast(_typing: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(bitcast)


_float_of = _reinterpreted(numba.uint32, numba.float32)
_bits_of = _reinterpreted(numba.float32, numba.uint32)


@_compiled
def decode_half(bits: npt.NDArray[np.uint16], out: npt.NDArray[np.uint32]) -> None:
    """Compute :func:`embmap.codecs.half.decode_half` as the bits of float32."""
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


@numba.njit(inline="always")
def _step(state: Any, entry: Any) -> Any:
    """Return the state after a symbol is decoded."""
    frequency = np.uint32(entry >> np.uint64(16)) & np.uint32(0xFFFF)
    rest = (state & np.uint32(4095)) - np.uint32(entry >> np.uint64(32))
    return np.uint32((state >> np.uint32(12)) * frequency + rest)


@numba.njit(inline="always")
def _refill(state: Any, position: Any, word: Any) -> Any:
    """Shift a word into a state that has become too low, and advance the position."""
    low = state < np.uint32(0x10000)
    refilled = np.uint32(state << np.uint32(16)) | np.uint32(word)
    return (refilled if low else state), position + np.int64(low)


@_compiled
def decode_ans(
    halfwords: npt.NDArray[np.uint16],
    positions: npt.NDArray[np.int64],
    states: npt.NDArray[np.uint32],
    slots: npt.NDArray[np.uint16],
    entries: npt.NDArray[np.uint64],
    which: npt.NDArray[np.int64],
    out: npt.NDArray[np.int16],
) -> None:
    """Compute :func:`embmap.codecs.ans.decode`, moving positions and states in place."""
    n_lanes, n = out.shape
    last = halfwords.size - 1
    done = 0
    # Four lanes at a time, without a branch: one multiplies while another waits for its table.
    while done + 4 <= n_lanes:
        m0, m1, m2, m3 = which[done], which[done + 1], which[done + 2], which[done + 3]
        t0, t1, t2, t3 = slots[m0], slots[m1], slots[m2], slots[m3]
        c0, c1, c2, c3 = entries[m0], entries[m1], entries[m2], entries[m3]
        o0, o1, o2, o3 = out[done], out[done + 1], out[done + 2], out[done + 3]
        s0, s1, s2, s3 = states[done], states[done + 1], states[done + 2], states[done + 3]
        p0, p1 = positions[done], positions[done + 1]
        p2, p3 = positions[done + 2], positions[done + 3]
        for i in range(n):
            e0 = c0[t0[s0 & np.uint32(4095)]]
            e1 = c1[t1[s1 & np.uint32(4095)]]
            e2 = c2[t2[s2 & np.uint32(4095)]]
            e3 = c3[t3[s3 & np.uint32(4095)]]
            o0[i], o1[i] = np.int16(e0), np.int16(e1)
            o2[i], o3[i] = np.int16(e2), np.int16(e3)
            s0, s1, s2, s3 = _step(s0, e0), _step(s1, e1), _step(s2, e2), _step(s3, e3)
            s0, p0 = _refill(s0, p0, halfwords[min(p0, last)])
            s1, p1 = _refill(s1, p1, halfwords[min(p1, last)])
            s2, p2 = _refill(s2, p2, halfwords[min(p2, last)])
            s3, p3 = _refill(s3, p3, halfwords[min(p3, last)])
        states[done], states[done + 1], states[done + 2], states[done + 3] = s0, s1, s2, s3
        positions[done], positions[done + 1] = p0, p1
        positions[done + 2], positions[done + 3] = p2, p3
        done += 4
    for lane in range(done, n_lanes):
        slot_of, entry_of, symbols = slots[which[lane]], entries[which[lane]], out[lane]
        state, position = states[lane], positions[lane]
        for i in range(n):
            entry = entry_of[slot_of[state & np.uint32(4095)]]
            symbols[i] = np.int16(entry)
            state = _step(state, entry)
            state, position = _refill(state, position, halfwords[min(position, last)])
        states[lane], positions[lane] = state, position


@_compiled
def encode_ans(
    symbols: npt.NDArray[np.uint16],
    codes: npt.NDArray[np.uint32],
    state: np.uint32,
    out: npt.NDArray[np.uint16],
) -> Any:
    """Compute :meth:`embmap.codecs.ans.Encoder.encode`, filling `out` from its end."""
    at = out.size
    for i in range(symbols.size - 1, -1, -1):
        code = codes[symbols[i]]
        frequency = code >> np.uint32(16)
        if np.uint64(state) >= np.uint64(frequency) << np.uint64(20):
            at -= 1
            out[at] = np.uint16(state)
            state = state >> np.uint32(16)
        quotient = state // frequency
        rest = state - quotient * frequency
        state = np.uint32((quotient << np.uint32(12)) + rest + (code & np.uint32(0xFFFF)))
    return at, state


@_compiled
def table_sums(
    codes: npt.NDArray[np.uint8], tables: npt.NDArray[np.float32], sums: npt.NDArray[np.float32]
) -> None:
    """Compute :func:`embmap.codecs.product.table_sums`, adding to `sums`."""
    n_rows, q = codes.shape
    for i in range(len(tables)):
        table, out = tables[i], sums[i]
        row = 0
        # Four rows at a time, so that no addition waits for the previous one.
        while row + 4 <= n_rows:
            first, second = codes[row], codes[row + 1]
            third, fourth = codes[row + 2], codes[row + 3]
            a, b, c, d = out[row], out[row + 1], out[row + 2], out[row + 3]
            for j in range(q):
                choices = table[j]
                a += choices[first[j]]
                b += choices[second[j]]
                c += choices[third[j]]
                d += choices[fourth[j]]
            out[row], out[row + 1], out[row + 2], out[row + 3] = a, b, c, d
            row += 4
        while row < n_rows:
            for j in range(q):
                out[row] += table[j, codes[row, j]]
            row += 1


@_compiled
def code_bounds(
    codes: npt.NDArray[np.int8], numbers: npt.NDArray[np.int16], terms: Any, out: npt.NDArray[Any]
) -> None:
    """Compute the upper bounds of :class:`embmap.search.sketch.Asked` for rows of a sketch."""
    (scales, errors, lengths), (steps, bases, rests), (low, high) = terms
    n_rows, width = codes.shape
    for i in range(n_rows):
        row = codes[i]
        length = lengths[i]
        unknown = (length > 0) & ~((length >= low) & (length <= high))
        for q in range(numbers.shape[0]):
            asked = numbers[q]
            total = np.int32(0)
            for j in range(width):
                total = np.int32(total + np.int32(row[j]) * np.int32(asked[j]))
            about = length * bases[q] + scales[i] * (steps[q] * total + rests[q])
            out[q, i] = np.inf if unknown else about + errors[i]


@intrinsic
def _prefetch(_typing: Any, array: Any, _index: Any) -> Any:
    """Ask the processor for an element of an array (n,), which may be outside of it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        where = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        builder.call(prefetch, [where, number(0), number(3), number(1)])  # to read, to keep, data
        return context.get_dummy_value()

    return numba.void(array, _index), generate


@_associative
def gathered_products(
    array: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int64],
    units: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    squares: npt.NDArray[np.float32],
) -> None:
    """Compute products (m, n) of units (m, dim) with rows of an array, and the rows' squares (n,).

    The caller has checked that the rows exist. Sums are added in any order.
    """
    width = array.shape[1]
    flat = array.reshape(array.size)
    for i in range(rows.size):
        # Rows are far apart. The processor waits for several at a time if it is told of them.
        if i + 4 < rows.size:
            base = rows[i + 4] * width
            for j in range(0, width, 16):
                _prefetch(flat, base + j)
        row = array[rows[i]]
        for q in range(units.shape[0]):
            unit = units[q]
            total = np.float32(0)
            for j in range(width):
                total += row[j] * unit[j]
            out[q, i] = total
        if squares.size:
            total = np.float32(0)
            for j in range(width):
                total += row[j] * row[j]
            squares[i] = total
