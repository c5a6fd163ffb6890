"""Models of entropy coding, chosen and stored as the reference does."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embmap.codecs.entropy_model import (
    count_symbols,
    fit_model,
    model_size,
    parse_model,
    store_model,
)
from tests.codecs.models import SYMBOLS, as_arrays, random_model
from tests.reference import dwe as reference


def fitted(symbols):
    """The model embmap chooses for symbols, as the reference has it."""
    model = fit_model(*count_symbols([np.array(symbols, np.int16)]))
    assert (model.symbols.dtype, model.frequencies.dtype) == (np.int16, np.int64)
    return model, dict(zip(model.symbols.tolist(), model.frequencies.tolist(), strict=True))


@given(symbols=SYMBOLS)
def test_models_are_those_the_reference_chooses(symbols):
    _, found = fitted(symbols)
    assert list(found.items()) == list(reference.best_model(symbols).items())


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9) | st.integers(1, 5000), min_size=1, max_size=60),
    first=st.integers(-32768, 32700),
)
def test_models_of_many_symbols_are_those_the_reference_chooses(counts, first):
    symbols = [first + i for i, count in enumerate(counts) for _ in range(count)]
    _, found = fitted(symbols)
    assert list(found.items()) == list(reference.best_model(symbols).items())


@pytest.mark.parametrize("n", [1, 2, 1000, 4095, 4096])
def test_models_of_symbols_that_come_once_are_those_the_reference_chooses(n):
    symbols = list(range(-n // 2, n - n // 2))[:n]
    _, found = fitted(symbols)
    assert list(found.items()) == list(reference.best_model(symbols).items())


@given(symbols=SYMBOLS)
def test_symbols_are_counted_in_their_order(symbols):
    found, counts = count_symbols(np.array(symbols, np.int16).reshape(1, -1))
    assert found.tolist() == sorted(set(symbols))
    assert counts.tolist() == [symbols.count(symbol) for symbol in found.tolist()]


@given(symbols=SYMBOLS)
def test_models_are_stored_as_the_reference_does(symbols):
    model, plain = fitted(symbols)
    halfwords = store_model(model)
    assert (halfwords.dtype, halfwords.size) == (np.uint16, model_size(len(plain)))
    assert halfwords.tolist() == reference.write_model(plain)
    parsed = parse_model(halfwords)
    assert np.array_equal(parsed.symbols, model.symbols)
    assert np.array_equal(parsed.frequencies, model.frequencies)


@pytest.mark.parametrize("n", [*range(2, 15), 1000, 1001, 1002, 1003, 4095, 4096])
def test_frequencies_are_packed_whatever_their_number(n):
    model = random_model(np.random.default_rng(n), n)
    halfwords = store_model(as_arrays(model))
    assert halfwords.tolist() == reference.write_model(model)
    assert parses_like_the_reference(halfwords.tolist())


def test_frequencies_are_packed_as_in_the_example_of_the_facts():
    frequencies = [0x167, 0x289, 0x3AB, 0x0CD, 0x5EF]
    model = dict(enumerate([*frequencies, 4096 - sum(frequencies)]))
    packed = struct.pack("<4H", 0x0167, 0x2893, 0xAB0C, 0xD5EF)
    assert store_model(as_arrays(model))[-4:].astype("<u2").tobytes() == packed


def parses_like_the_reference(halfwords):
    """Check what embmap makes of the halfwords of a model; return whether there is one in them."""
    try:
        expected, _ = reference.read_model(halfwords, 0, len(halfwords))
    except reference.InvalidFile:
        with pytest.raises(ValueError, match=r"frequenc|twice"):
            parse_model(np.array(halfwords, np.uint16))
        return False
    found = parse_model(np.array(halfwords, np.uint16))
    assert found.symbols.tolist() == list(expected)
    assert found.frequencies.tolist() == list(expected.values())
    return True


@pytest.mark.parametrize(
    ("halfwords", "message"),
    [
        ([2, 7, 8, 0], "a frequency is zero"),
        ([2, 7, 8, 0x1000], "a frequency is zero"),  # the padding is not looked at
        ([3, 7, 8, 9, 0x0FF, 0xF001], "sum to 4096 without"),
        ([3, 7, 8, 9, 0x0FF, 0xFFFF], "sum to 8190 without"),
        ([3, 7, 8, 9, 0x0FF, 0xF000], "a frequency is zero"),
        ([2, 7, 7, 5], "a symbol occurs twice"),
        ([3, 0xFFFF, 8, 0xFFFF, 0x000, 0x1001], "a symbol occurs twice"),
    ],
)
def test_models_that_cannot_be_are_refused(halfwords, message):
    with pytest.raises(ValueError, match=message):
        parse_model(np.array(halfwords, np.uint16))
    assert not parses_like_the_reference(halfwords)


@given(symbols=SYMBOLS, flips=st.lists(st.tuples(st.integers(0), st.integers(0, 65535))))
def test_damaged_models_are_refused_or_read_as_the_reference_does(symbols, flips):
    halfwords = reference.write_model(reference.best_model(symbols))
    assert parses_like_the_reference(halfwords)
    for place, pattern in flips:
        halfwords[1 + place % (len(halfwords) - 1)] ^= pattern
        parses_like_the_reference(halfwords)
