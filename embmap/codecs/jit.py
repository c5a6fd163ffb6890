"""The loops of the codecs compiled by numba; imported only through :mod:`embmap.codecs.kernels`.

Each function computes bit for bit what its numpy counterpart does.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from embmap.codecs.jit_search import code_bounds, gathered_products
from embmap.codecs.jit_support import bitcast, compiled, prepare
from embmap.codecs.jit_words import (
    bucket_hashes,
    compose,
    fasttext_hashes,
    find_rows,
    gather_rows,
    segment_sums,
)

__all__ = [
    "bucket_hashes",
    "code_bounds",
    "compose",
    "decode_affine",
    "decode_ans",
    "decode_half",
    "encode_ans",
    "fasttext_hashes",
    "find_rows",
    "gather_rows",
    "gathered_products",
    "prepare",
    "segment_sums",
    "table_sums",
]


_float_of = bitcast(numba.uint32, numba.float32)
_bits_of = bitcast(numba.float32, numba.uint32)


@compiled
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


@compiled
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


@compiled
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
    decoded = np.zeros(n_lanes, np.int64)
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
        start = 0
        while start < n:
            # A symbol takes in at most one halfword: so many cannot pass the end.
            end = min(n, start + halfwords.size - max(p0, p1, p2, p3))
            if end <= start:
                break
            for i in range(start, end):
                e0 = c0[t0[s0 & np.uint32(4095)]]
                e1 = c1[t1[s1 & np.uint32(4095)]]
                e2 = c2[t2[s2 & np.uint32(4095)]]
                e3 = c3[t3[s3 & np.uint32(4095)]]
                o0[i], o1[i] = np.int16(e0), np.int16(e1)
                o2[i], o3[i] = np.int16(e2), np.int16(e3)
                s0, s1, s2, s3 = _step(s0, e0), _step(s1, e1), _step(s2, e2), _step(s3, e3)
                s0, p0 = _refill(s0, p0, halfwords[p0])
                s1, p1 = _refill(s1, p1, halfwords[p1])
                s2, p2 = _refill(s2, p2, halfwords[p2])
                s3, p3 = _refill(s3, p3, halfwords[p3])
            start = end
        states[done], states[done + 1], states[done + 2], states[done + 3] = s0, s1, s2, s3
        positions[done], positions[done + 1] = p0, p1
        positions[done + 2], positions[done + 3] = p2, p3
        decoded[done : done + 4] = start
        done += 4
    for lane in range(n_lanes):
        slot_of, entry_of, symbols = slots[which[lane]], entries[which[lane]], out[lane]
        state, position = states[lane], positions[lane]
        for i in range(decoded[lane], n):
            entry = entry_of[slot_of[state & np.uint32(4095)]]
            symbols[i] = np.int16(entry)
            state = _step(state, entry)
            state, position = _refill(state, position, halfwords[min(position, last)])
        states[lane], positions[lane] = state, position


@compiled
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


@compiled
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
