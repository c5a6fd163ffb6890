"""The codecs on their own: numpy and numba against definitions spelled out one number at a time."""

import importlib.util
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embmap.codecs import kernels
from embmap.codecs.affine import AffineEncoder, decode_affine, encode_affine
from embmap.codecs.half import decode_half, encode_half

HAS_NUMBA = importlib.util.find_spec("numba") is not None


@pytest.fixture(params=["numpy", "numba"])
def kernel(request, monkeypatch):
    """Run the test with each kind of kernel."""
    if request.param == "numba" and not HAS_NUMBA:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(kernels, "CHOICE", request.param)
    monkeypatch.setattr(kernels, "_jit", None)
    return request.param


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


def rounded(value):
    """Round a fraction to float32, halves to even, without arithmetic in between."""
    guess = np.float32(float(value))
    near = [
        guess,
        np.nextafter(guess, np.float32(np.inf)),
        np.nextafter(guess, np.float32(-np.inf)),
    ]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1))


def affine_by_definition(scale, minimum):
    scale, minimum = Fraction(float(np.float32(scale))), Fraction(float(np.float32(minimum)))
    return [float(rounded(Fraction(float(rounded(q * scale))) + minimum)) for q in range(256)]


def fused(scale, minimum):
    """Return what one rounding instead of two gives: what must not happen."""
    scale, minimum = Fraction(float(np.float32(scale))), Fraction(float(np.float32(minimum)))
    return [float(rounded(q * scale + minimum)) for q in range(256)]


@pytest.mark.parametrize(("scale", "minimum"), [(0.1, -12.7), (1 / 255, 1e-3), (3e-5, 0.333)])
def test_affine_codes_are_rounded_after_each_operation(kernel, scale, minimum):
    codes = np.tile(np.arange(256, dtype=np.uint8), 64)
    expected = affine_by_definition(scale, minimum)
    assert expected != fused(scale, minimum)
    assert decode_affine(codes, scale, minimum).tolist() == expected * 64
    assert decode_affine(codes[:256], scale, minimum).tolist() == expected


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
def test_the_compiled_affine_loop_has_no_fused_operation(monkeypatch):
    import numba

    monkeypatch.setattr(kernels, "CHOICE", "numba")
    kernel = numba.njit(kernels.jit_for(1).decode_affine.py_func)  # what is cached shows no code
    out = np.empty(9, np.float32)
    kernel(np.zeros(9, np.uint8), np.float32(1), np.float32(0), out)
    (assembly,) = kernel.inspect_asm().values()
    assert "mul" in assembly
    assert "fma" not in assembly
    assert "fmla" not in assembly


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
@given(st.floats(width=32), st.floats(width=32), st.binary(min_size=1, max_size=64))
def test_both_kernels_decode_affine_codes_alike(scale, minimum, data):
    codes = np.resize(np.frombuffer(data, np.uint8), 5000)
    answers = []
    with pytest.MonkeyPatch.context() as patch:
        for choice in ("numpy", "numba"):
            patch.setattr(kernels, "CHOICE", choice)
            patch.setattr(kernels, "_jit", None)
            answers.append(decode_affine(codes, scale, minimum))
    assert np.array_equal(*answers, equal_nan=True)


def test_encoding_halves_rounds_to_even():
    between = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519.0], np.float32)
    assert encode_half(between).tolist() == [1.0, 1 + 2**-9, 65504.0]


def test_encoding_affine_codes_takes_the_whole_range():
    values = np.array([-1.0, 0.0, 1.55], np.float32)
    encoder = AffineEncoder()
    for part in np.split(values, 3):
        encoder.see(part)
    scale, minimum = encoder.fit()
    codes = encode_affine(values, scale, minimum)
    assert (codes[0], codes[-1]) == (0, 255)
    assert minimum == -1.0
    assert scale == np.float32((float(np.float32(1.55)) + 1) / 255)
