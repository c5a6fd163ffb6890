"""Affine codes, compiled and not, against definitions spelled out one number at a time."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embmap.codecs import kernels
from embmap.codecs.affine import AffineEncoder, decode_affine, encode_affine
from tests.kernels import needs_numba


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


@needs_numba
def test_the_compiled_affine_loop_has_no_fused_operation(monkeypatch):
    import numba

    monkeypatch.setattr(kernels, "CHOICE", "numba")
    kernel = numba.njit(kernels.find("decode_affine").py_func)  # what is cached shows no code
    out = np.empty(9, np.float32)
    kernel(np.zeros(9, np.uint8), np.float32(1), np.float32(0), out)
    (assembly,) = kernel.inspect_asm().values()
    assert "mul" in assembly
    assert "fma" not in assembly
    assert "fmla" not in assembly


@needs_numba
@given(st.floats(width=32), st.floats(width=32), st.binary(min_size=1, max_size=64))
def test_both_kernels_decode_affine_codes_alike(scale, minimum, data):
    codes = np.resize(np.frombuffer(data, np.uint8), 5000)
    answers = []
    with pytest.MonkeyPatch.context() as patch:
        for choice in ("numpy", "numba"):
            patch.setattr(kernels, "CHOICE", choice)
            answers.append(decode_affine(codes, scale, minimum))
    assert np.array_equal(*answers, equal_nan=True)


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
