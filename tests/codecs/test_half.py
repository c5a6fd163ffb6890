"""The codecs on their own: numpy and numba against definitions spelled out one number at a time."""

import math

import numpy as np
import pytest

from embmap.codecs.half import decode_half, encode_half


def half_as_float(pattern):
    """Return what IEEE 754 says a half is."""
    sign = -1.0 if pattern >> 15 else 1.0
    exponent, fraction = pattern >> 10 & 31, pattern & 1023
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * fraction * 2.0**-24
    return sign * (1024 + fraction) * 2.0 ** (exponent - 25)


def test_every_half_is_decoded_exactly(kernel):
    patterns = np.arange(65536, dtype=np.uint16)
    expected = np.array([half_as_float(p) for p in range(65536)], np.float32)
    decoded = decode_half(patterns)
    numbers = ~np.isnan(expected)
    assert np.array_equal(decoded.view("u4")[numbers], expected.view("u4")[numbers])
    # NaN keeps its sign and payload.
    nan = patterns[~numbers].astype(np.uint32)
    payload = (nan & 0x8000) << 16 | 0x7F800000 | (nan & 0x3FF) << 13
    assert np.array_equal(decoded.view("u4")[~numbers], payload)


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 65537, 200_000])
def test_halves_are_decoded_at_any_size_and_address(kernel, n):
    data = np.random.default_rng(n).integers(0, 256, 2 * n + 1, np.uint8)
    data[2::2] &= 0xBB  # no NaN, whose quiet bit the two conversions of numpy treat differently
    data.flags.writeable = False
    unaligned = data[1:].view("<u2")
    expected = np.frombuffer(data[1:].tobytes(), "<f2").astype(np.float32)
    out = np.full(n, 7, np.float32)
    assert decode_half(unaligned, out) is out
    assert np.array_equal(out, expected)


def test_encoding_halves_rounds_to_even():
    between = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519.0], np.float32)
    assert encode_half(between).tolist() == [1.0, 1 + 2**-9, 65504.0]
