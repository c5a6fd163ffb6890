"""The coder of DWE files against the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embmap.codecs import ans, kernels
from embmap.codecs.ans import LOWEST, DecodeTables, Encoder, most_symbols
from tests.codecs.models import as_arrays, random_model
from tests.kernels import HAS_NUMBA
from tests.reference import dwe as reference


def tables_of(models):
    tables = DecodeTables.empty(len(models), max(map(len, models)))
    for i, model in enumerate(models):
        tables.fill(i, as_arrays(model))
    return tables


def fixed(halfwords):
    """Read-only halfwords, like the halfwords of a file."""
    halfwords = np.array(halfwords, np.uint16)
    halfwords.flags.writeable = False
    return halfwords


def decode(halfwords, starts, models, which, n):
    """Decode with embmap; return the symbols and where each group ends, as Python has them."""
    positions = np.array([at for at, _ in starts], np.int64)
    states = np.array([state for _, state in starts], np.uint32)
    which = np.array(which, np.int64)
    given = positions.copy(), states.copy(), which.copy()
    out = np.full((len(starts), n), 77, np.int16)
    ends, end_states = ans.decode(halfwords, positions, states, tables_of(models), which, out)
    for array, before in zip((positions, states, which), given, strict=True):
        assert np.array_equal(array, before)
    assert (ends.dtype, end_states.dtype) == (np.int64, np.uint32)
    return out.tolist(), list(zip(ends.tolist(), end_states.tolist(), strict=True))


def expect(halfwords, starts, models, which, n):
    """What the reference decodes; None for a group that runs out of halfwords."""
    found = []
    for start, i in zip(starts, which, strict=True):
        try:
            found.append(reference.decode_symbols(halfwords.tolist(), start, models[i], n))
        except reference.InvalidFile:
            found.append(None)
    return found


def decodes_like_the_reference(halfwords, starts, models, which, n):
    """Check what embmap makes of groups; return how many of them run out of halfwords."""
    symbols, ends = decode(halfwords, starts, models, which, n)
    expected = expect(halfwords, starts, models, which, n)
    for i, answer in enumerate(expected):
        if answer is None:
            assert ends[i][0] > halfwords.size, i
        else:
            assert (symbols[i], ends[i]) == answer, i
    return expected.count(None)


def random_groups(rng, n_groups, n_halfwords, n_models=3):
    """Any halfwords, and groups that begin anywhere in them."""
    halfwords = fixed(rng.integers(0, 65536, n_halfwords))
    models = [random_model(rng, int(rng.integers(2, 300))) for _ in range(n_models)]
    starts = [
        (int(rng.integers(0, n_halfwords // 4 + 1)), int(rng.integers(LOWEST, 2**32)))
        for _ in range(n_groups)
    ]
    return halfwords, starts, models, rng.integers(0, n_models, n_groups).tolist()


# -------------------------------------------------------------------------------------- the coder


@pytest.mark.parametrize("n_groups", range(10))
def test_any_number_of_groups_is_decoded(kernel, n_groups):
    rng = np.random.default_rng(n_groups)
    for n in (1, 2, 7, 100):
        assert decodes_like_the_reference(*random_groups(rng, n_groups, 150), n) == 0


@pytest.mark.parametrize("n", [0, 255, 256, 257, 511, 512, 513, 1000])
def test_groups_of_any_size_are_decoded(kernel, n):
    groups = random_groups(np.random.default_rng(n), 5, 1100)
    assert decodes_like_the_reference(*groups, n) == 0


def test_groups_that_run_out_of_words_stand_beside_those_that_do_not(kernel):
    rng = np.random.default_rng(3)
    n_out = 0
    for n_groups in (1, 3, 4, 5, 8, 9):
        halfwords, starts, models, which = random_groups(rng, n_groups, 60)
        starts = [(int(rng.integers(0, 61)), state) for _, state in starts]
        for n in (1, 20, 40, 300):
            n_out += decodes_like_the_reference(halfwords, starts, models, which, n)
    assert 0 < n_out < 4 * 30


@pytest.mark.parametrize(
    "model",
    [
        {7: 4095, 8: 1},
        {8: 1, 7: 4095},
        {32767: 2048, -32768: 2048},
        {-1: 1, 0: 4094, 1: 1},
        dict.fromkeys(range(-2048, 2048), 1),
        dict(enumerate([1] * 4094 + [2])),
    ],
    ids=lambda model: f"{len(model)} symbols",
)
def test_extreme_models_are_decoded_from_extreme_states(kernel, model):
    halfwords = fixed(np.random.default_rng(0).integers(0, 65536, 400))
    states = [LOWEST, LOWEST + 1, 2**31, 2**32 - 4096, 2**32 - 1]
    starts = [(at, state) for state in states for at in (0, 1, 100)]
    assert decodes_like_the_reference(halfwords, starts, [model], [0] * 15, 350) == 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), n_groups=st.integers(0, 9), n=st.integers(0, 60))
def test_any_words_are_decoded_alike_by_both_kernels(seed, n_groups, n):
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, n_groups, int(rng.integers(0, 80)))
    with pytest.MonkeyPatch.context() as patch:
        for choice in ("numpy", "numba") if HAS_NUMBA else ("numpy",):
            patch.setattr(kernels, "CHOICE", choice)
            decodes_like_the_reference(*groups, n)


@pytest.mark.parametrize("n_groups", [1, 4, 5])
def test_nothing_outside_the_words_is_read(kernel, n_groups):
    rng = np.random.default_rng(n_groups)
    inside, starts, models, which = random_groups(rng, n_groups, 30)
    starts = [(at % 31, state) for at, state in starts] if n_groups == 1 else starts
    answers = []
    for around in (0, 0xFFFF, rng.integers(0, 65536, 4030)):
        whole = np.empty(4030, np.uint16)
        whole[:] = around
        whole[1000:1030] = inside
        whole.flags.writeable = False
        answers.append(decode(whole[1000:1030], starts, models, which, 200))
    assert answers[0] == answers[1] == answers[2]
    assert all(at > 30 for at, _ in answers[0][1])


def test_a_position_at_the_end_is_fine_until_a_word_is_needed(kernel):
    model = {7: 2048, 8: 2048}  # a symbol is a bit
    state = 2**32 - 1
    for halfwords in (fixed([]), fixed([5, 6])):
        for n, out in ((15, 0), (16, 1)):
            symbols, [(position, _)] = decode(halfwords, [(halfwords.size, state)], [model], [0], n)
            assert position == halfwords.size + out
            assert out or symbols == [[8] * n]
            assert (
                decodes_like_the_reference(halfwords, [(halfwords.size, state)], [model], [0], n)
                == out
            )


def test_no_symbols_take_no_words(kernel):
    starts = [(0, LOWEST), (3, 2**32 - 1)]
    assert decode(fixed([1, 2, 3]), starts, [{1: 4095, 2: 1}], [0, 0], 0) == ([[], []], starts)


def test_as_many_symbols_come_from_words_as_the_guard_allows(kernel):
    assert [most_symbols(n) for n in (0, 1, 1000)] == [
        reference.MOST_SYMBOLS * (n + 1) - 1 for n in (0, 1, 1000)
    ]
    most, model = most_symbols(0), {0: 4095, 1: 1}
    halfwords, state = Encoder(as_arrays(model)).encode(np.zeros(most, np.int16))
    assert halfwords.size == 0
    symbols, ends = decode(fixed([]), [(0, state)], [model], [0], most)
    assert (set(symbols[0]), ends) == ({0}, [(0, LOWEST)])
    _, [(position, _)] = decode(fixed([]), [(0, state)], [model], [0], most + 1)
    assert position == 1


@pytest.mark.parametrize("n_workers", ["1", "2", "3", "16"])
def test_any_number_of_threads_decodes_the_same(kernel, monkeypatch, n_workers):
    rng = np.random.default_rng(8)
    halfwords, starts, models, which = random_groups(rng, 9, 28_000)
    n = ans._PARALLEL // 9 + 1
    models = [random_model(rng, 2) for _ in models]  # that take few halfwords
    monkeypatch.setenv("EMBMAP_THREADS", "1")
    alone = decode(halfwords, starts, models, which, n)
    monkeypatch.setenv("EMBMAP_THREADS", n_workers)
    assert decode(halfwords, starts, models, which, n) == alone
    if n_workers == "2":
        assert decodes_like_the_reference(halfwords, starts[:1], models, which[:1], n) == 0


@pytest.mark.parametrize("n_symbols", [2, 3, 17, 256, 4096])
def test_symbols_are_encoded_as_the_reference_does(kernel, n_symbols):
    rng = np.random.default_rng(n_symbols)
    model = random_model(rng, n_symbols)
    encoder, other = Encoder(as_arrays(model)), reference.Encoder()
    state, halfwords = LOWEST, np.empty(0, np.uint16)
    for n in (0, 1, 2, 300, 1, 700):  # one run of the coder
        symbols = rng.choice(list(model), n).astype(np.int16)
        before, state = encoder.encode(symbols, state)
        assert before.dtype == np.uint16
        halfwords = np.concatenate((before, halfwords))
        other.push(symbols.tolist(), model)
        assert (halfwords.tolist(), state) == (other.halfwords[::-1], other.state)
    first = symbols.tolist()
    symbols, _ = decode(fixed(halfwords), [(0, state)], [model], [0], 700)
    assert symbols[0] == first
    assert decodes_like_the_reference(fixed(halfwords), [(0, state)], [model], [0], 1004) == 0
    _, ends = decode(fixed(halfwords), [(0, state)], [model], [0], 1004)
    assert ends == [(halfwords.size, LOWEST)]


@pytest.mark.parametrize("state", [LOWEST, LOWEST + 1, 2**31 + 5, 2**32 - 1])
def test_encoding_goes_on_from_any_state(kernel, state):
    for model in ({7: 4095, 8: 1}, {7: 1, 8: 4095}, {7: 2048, 8: 2048}):
        symbols = np.array([7, 8, 8, 7, 7, 7, 8] * 9, np.int16)
        other = reference.Encoder()
        other.state = state
        other.push(symbols.tolist(), model)
        halfwords, end = Encoder(as_arrays(model)).encode(symbols, state)
        assert (halfwords.tolist(), end) == (other.halfwords[::-1], other.state)
        starts, n = [(0, end)], symbols.size
        assert decode(fixed(halfwords), starts, [model], [0], n) == (
            [symbols.tolist()],
            [(halfwords.size, state)],
        )
