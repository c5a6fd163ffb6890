"""What DWE files are decoded with, piece by piece, against the reference: the coder, its models,
the tree of differences, and the threads that share the work."""

import importlib.util
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embmap.codecs import ans, kernels
from embmap.codecs.ans import LOWEST, DecodeTables, Encoder, most_symbols
from embmap.codecs.difference_tree import ancestry, differences, levels, preorder, restore
from embmap.codecs.entropy_model import (
    EntropyModel,
    count_symbols,
    fit_model,
    model_size,
    parse_model,
    store_model,
)
from embmap.threads import in_parallel, n_threads
from tests.reference import dwe as reference

HAS_NUMBA = importlib.util.find_spec("numba") is not None
EXTREMES = [-32768, -32767, -2, -1, 0, 1, 2, 3, 32766, 32767]


@pytest.fixture(params=["numpy", "numba"])
def kernel(request, monkeypatch):
    """Run the test with each kind of kernel."""
    if request.param == "numba" and not HAS_NUMBA:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(kernels, "CHOICE", request.param)
    monkeypatch.setattr(kernels, "_jit", None)
    return request.param


def random_model(rng, n):
    """A model of n symbols, as the reference has it."""
    symbols = rng.choice(65536, n, replace=False) - 32768
    cuts = np.sort(rng.choice(4095, n - 1, replace=False)) + 1
    frequencies = np.diff(np.concatenate(([0], cuts, [4096])))
    return dict(zip(symbols.tolist(), frequencies.tolist(), strict=True))


def as_arrays(model):
    """The same as embmap has it."""
    return EntropyModel(np.array(list(model), np.int16), np.array(list(model.values()), np.int64))


def tables_of(models):
    tables = DecodeTables.empty(len(models), max(map(len, models)))
    for i, model in enumerate(models):
        tables.fill(i, as_arrays(model))
    return tables


def fixed(words):
    """Words that cannot be written, as those of a file."""
    words = np.array(words, np.uint16)
    words.flags.writeable = False
    return words


def decode(words, starts, models, which, n):
    """Decode with embmap; return the symbols and where each group ends, as Python has them."""
    positions = np.array([at for at, _ in starts], np.int64)
    states = np.array([state for _, state in starts], np.uint32)
    which = np.array(which, np.int64)
    given = positions.copy(), states.copy(), which.copy()
    out = np.full((len(starts), n), 77, np.int16)
    ends, end_states = ans.decode(words, positions, states, tables_of(models), which, out)
    for array, before in zip((positions, states, which), given, strict=True):
        assert np.array_equal(array, before)
    assert (ends.dtype, end_states.dtype) == (np.int64, np.uint32)
    return out.tolist(), list(zip(ends.tolist(), end_states.tolist(), strict=True))


def expect(words, starts, models, which, n):
    """What the reference decodes; None for a group that runs out of words."""
    found = []
    for start, i in zip(starts, which, strict=True):
        try:
            found.append(reference.decode_symbols(words.tolist(), start, models[i], n))
        except reference.InvalidFile:
            found.append(None)
    return found


def decodes_like_the_reference(words, starts, models, which, n):
    """Check what embmap makes of groups; return how many of them run out of words."""
    symbols, ends = decode(words, starts, models, which, n)
    expected = expect(words, starts, models, which, n)
    for i, answer in enumerate(expected):
        if answer is None:
            assert ends[i][0] > words.size, i
        else:
            assert (symbols[i], ends[i]) == answer, i
    return expected.count(None)


def random_groups(rng, n_groups, n_words, n_models=3):
    """Any words, and groups that begin anywhere in them."""
    words = fixed(rng.integers(0, 65536, n_words))
    models = [random_model(rng, int(rng.integers(2, 300))) for _ in range(n_models)]
    starts = [
        (int(rng.integers(0, n_words // 4 + 1)), int(rng.integers(LOWEST, 2**32)))
        for _ in range(n_groups)
    ]
    return words, starts, models, rng.integers(0, n_models, n_groups).tolist()


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
        words, starts, models, which = random_groups(rng, n_groups, 60)
        starts = [(int(rng.integers(0, 61)), state) for _, state in starts]
        for n in (1, 20, 40, 300):
            n_out += decodes_like_the_reference(words, starts, models, which, n)
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
    words = fixed(np.random.default_rng(0).integers(0, 65536, 400))
    states = [LOWEST, LOWEST + 1, 2**31, 2**32 - 4096, 2**32 - 1]
    starts = [(at, state) for state in states for at in (0, 1, 100)]
    assert decodes_like_the_reference(words, starts, [model], [0] * 15, 350) == 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), n_groups=st.integers(0, 9), n=st.integers(0, 60))
def test_any_words_are_decoded_alike_by_both_kernels(seed, n_groups, n):
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, n_groups, int(rng.integers(0, 80)))
    with pytest.MonkeyPatch.context() as patch:
        for choice in ("numpy", "numba") if HAS_NUMBA else ("numpy",):
            patch.setattr(kernels, "CHOICE", choice)
            patch.setattr(kernels, "_jit", None)
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
    for words in (fixed([]), fixed([5, 6])):
        for n, out in ((15, 0), (16, 1)):
            symbols, [(position, _)] = decode(words, [(words.size, state)], [model], [0], n)
            assert position == words.size + out
            assert out or symbols == [[8] * n]
            assert decodes_like_the_reference(words, [(words.size, state)], [model], [0], n) == out


def test_no_symbols_take_no_words(kernel):
    starts = [(0, LOWEST), (3, 2**32 - 1)]
    assert decode(fixed([1, 2, 3]), starts, [{1: 4095, 2: 1}], [0, 0], 0) == ([[], []], starts)


def test_as_many_symbols_come_from_words_as_the_guard_allows(kernel):
    assert [most_symbols(n) for n in (0, 1, 1000)] == [
        reference.MOST_SYMBOLS * (n + 1) - 1 for n in (0, 1, 1000)
    ]
    most, model = most_symbols(0), {0: 4095, 1: 1}
    words, state = Encoder(as_arrays(model)).encode(np.zeros(most, np.int16))
    assert words.size == 0
    symbols, ends = decode(fixed([]), [(0, state)], [model], [0], most)
    assert (set(symbols[0]), ends) == ({0}, [(0, LOWEST)])
    _, [(position, _)] = decode(fixed([]), [(0, state)], [model], [0], most + 1)
    assert position == 1


@pytest.mark.parametrize("n_workers", ["1", "2", "3", "16"])
def test_any_number_of_threads_decodes_the_same(kernel, monkeypatch, n_workers):
    rng = np.random.default_rng(8)
    words, starts, models, which = random_groups(rng, 9, 28_000)
    n = ans._PARALLEL // 9 + 1
    models = [random_model(rng, 2) for _ in models]  # that take few words
    monkeypatch.setenv("EMBMAP_THREADS", "1")
    alone = decode(words, starts, models, which, n)
    monkeypatch.setenv("EMBMAP_THREADS", n_workers)
    assert decode(words, starts, models, which, n) == alone
    if n_workers == "2":
        assert decodes_like_the_reference(words, starts[:1], models, which[:1], n) == 0


@pytest.mark.parametrize("n_symbols", [2, 3, 17, 256, 4096])
def test_symbols_are_encoded_as_the_reference_does(kernel, n_symbols):
    rng = np.random.default_rng(n_symbols)
    model = random_model(rng, n_symbols)
    encoder, other = Encoder(as_arrays(model)), reference.Encoder()
    state, words = LOWEST, np.empty(0, np.uint16)
    for n in (0, 1, 2, 300, 1, 700):  # one run of the coder
        symbols = rng.choice(list(model), n).astype(np.int16)
        before, state = encoder.encode(symbols, state)
        assert before.dtype == np.uint16
        words = np.concatenate((before, words))
        other.push(symbols.tolist(), model)
        assert (words.tolist(), state) == (other.words[::-1], other.state)
    first = symbols.tolist()
    symbols, _ = decode(fixed(words), [(0, state)], [model], [0], 700)
    assert symbols[0] == first
    assert decodes_like_the_reference(fixed(words), [(0, state)], [model], [0], 1004) == 0
    _, ends = decode(fixed(words), [(0, state)], [model], [0], 1004)
    assert ends == [(words.size, LOWEST)]


@pytest.mark.parametrize("state", [LOWEST, LOWEST + 1, 2**31 + 5, 2**32 - 1])
def test_encoding_goes_on_from_any_state(kernel, state):
    for model in ({7: 4095, 8: 1}, {7: 1, 8: 4095}, {7: 2048, 8: 2048}):
        symbols = np.array([7, 8, 8, 7, 7, 7, 8] * 9, np.int16)
        other = reference.Encoder()
        other.state = state
        other.push(symbols.tolist(), model)
        words, end = Encoder(as_arrays(model)).encode(symbols, state)
        assert (words.tolist(), end) == (other.words[::-1], other.state)
        starts, n = [(0, end)], symbols.size
        assert decode(fixed(words), starts, [model], [0], n) == (
            [symbols.tolist()],
            [(words.size, state)],
        )


# ----------------------------------------------------------------------------------------- models

SYMBOLS = st.lists(
    st.integers(-4, 4) | st.sampled_from(EXTREMES) | st.integers(-32768, 32767),
    min_size=1,
    max_size=200,
)


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
    words = store_model(model)
    assert (words.dtype, words.size) == (np.uint16, model_size(len(plain)))
    assert words.tolist() == reference.write_model(plain)
    parsed = parse_model(words)
    assert np.array_equal(parsed.symbols, model.symbols)
    assert np.array_equal(parsed.frequencies, model.frequencies)


@pytest.mark.parametrize("n", [*range(2, 15), 1000, 1001, 1002, 1003, 4095, 4096])
def test_frequencies_are_packed_whatever_their_number(n):
    model = random_model(np.random.default_rng(n), n)
    words = store_model(as_arrays(model))
    assert words.tolist() == reference.write_model(model)
    assert parses_like_the_reference(words.tolist())


def test_frequencies_are_packed_as_in_the_example_of_the_facts():
    frequencies = [0x167, 0x289, 0x3AB, 0x0CD, 0x5EF]
    model = dict(enumerate([*frequencies, 4096 - sum(frequencies)]))
    packed = struct.pack("<4H", 0x0167, 0x2893, 0xAB0C, 0xD5EF)
    assert store_model(as_arrays(model))[-4:].astype("<u2").tobytes() == packed


def parses_like_the_reference(words):
    """Check what embmap makes of the words of a model; return whether there is one in them."""
    try:
        expected, _ = reference.read_model(words, 0, len(words))
    except reference.InvalidFile:
        with pytest.raises(ValueError, match=r"frequenc|twice"):
            parse_model(np.array(words, np.uint16))
        return False
    found = parse_model(np.array(words, np.uint16))
    assert found.symbols.tolist() == list(expected)
    assert found.frequencies.tolist() == list(expected.values())
    return True


@pytest.mark.parametrize(
    ("words", "message"),
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
def test_models_that_cannot_be_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        parse_model(np.array(words, np.uint16))
    assert not parses_like_the_reference(words)


@given(symbols=SYMBOLS, flips=st.lists(st.tuples(st.integers(0), st.integers(0, 65535))))
def test_damaged_models_are_refused_or_read_as_the_reference_does(symbols, flips):
    words = reference.write_model(reference.best_model(symbols))
    assert parses_like_the_reference(words)
    for place, pattern in flips:
        words[1 + place % (len(words) - 1)] ^= pattern
        parses_like_the_reference(words)


# ------------------------------------------------------------------------------------------- tree


@pytest.mark.parametrize("n", [*range(2, 40), 209, 1025])
def test_the_tree_is_that_of_the_reference(n):
    tree = reference.tree(n)
    assert preorder(n) == tree
    known = {0, n - 1}
    for nodes in levels(n):
        assert nodes.dtype == np.int64
        for left, step, right in nodes.tolist():
            assert (left, step, right) in tree
            assert {left, right} <= known
        steps = nodes[:, 1].tolist()
        assert known.isdisjoint(steps)
        known.update(steps)
    assert sorted(known) == list(range(n))


@pytest.mark.parametrize("n", [*range(2, 40), 209])
def test_a_step_has_its_ancestors_and_no_others(n):
    tree = reference.tree(n)
    around = {step: (left, right) for left, step, right in tree}
    for t in range(n):
        needed, waiting = set(), [t]
        while waiting:
            step = waiting.pop()
            if step in around and step not in needed:
                needed.add(step)
                waiting += around[step]
        nodes = ancestry(n, t)
        assert {step for _, step, _ in nodes} == needed
        known = {0, n - 1}
        for left, step, right in nodes:
            assert around[step] == (left, right)
            assert {left, right} <= known
            known.add(step)
        assert t in known


def every_pair(*values):
    """All combinations of some 16-bit values, one row each."""
    grid = np.array(np.meshgrid(*values, indexing="ij"), np.int16)
    return grid.reshape(len(values), -1)


def test_steps_are_restored_as_the_reference_does():
    left, difference, right = every_pair(EXTREMES, EXTREMES, EXTREMES)
    residuals = np.stack([left, difference, right])[:, :, np.newaxis]
    values = reference.undo_tree(residuals)
    before = left.copy(), difference.copy(), right.copy()
    found = restore(left, difference, right)
    assert found.dtype == np.int16
    np.testing.assert_array_equal(found, values[1, :, 0])
    for array, copy in zip((left, difference, right), before, strict=True):
        np.testing.assert_array_equal(array, copy)


@given(values=st.lists(st.integers(-32768, 32767), min_size=3, max_size=3))
def test_differences_are_those_of_the_reference_or_do_not_fit(values):
    steps = np.array(values, np.int16).reshape(3, 1, 1)
    left, step, right = steps.reshape(3, 1)
    try:
        expected = reference.apply_tree(steps)[1, 0]
    except ValueError:
        with pytest.raises(ValueError, match="does not fit into 16 bits"):
            differences(left, step, right)
        return
    found = differences(left, step, right)
    assert found.dtype == np.int16
    assert found.tolist() == expected.tolist()
    assert restore(left, found, right).tolist() == step.tolist()


def test_one_difference_that_does_not_fit_is_enough_and_is_named():
    left = right = np.array([0, 30000, -30000], np.int16)
    step = np.array([0, 30000, 2768], np.int16)
    with pytest.raises(ValueError, match="a difference of 32768 does not fit"):
        differences(left, step, right)
    step[2] = 2767
    assert differences(left, step, right).tolist() == [0, 0, 32767]
    nothing = np.empty((0, 3), np.int16)
    assert differences(nothing, nothing, nothing).shape == (0, 3)
    assert restore(nothing, nothing, nothing).shape == (0, 3)


def test_every_mean_is_truncated_toward_zero():
    near = np.arange(-300, 300)
    far = np.concatenate((np.arange(-32768, -32700), near, np.arange(32700, 32768)))
    left, right = every_pair(near, far)
    found = restore(left, np.zeros_like(left), right)
    np.testing.assert_array_equal(found, reference.predict(left, right))


# ---------------------------------------------------------------------------------------- threads


def test_the_environment_says_how_many_threads_there_are(monkeypatch):
    for asked in ("1", "2", "64", "007"):
        monkeypatch.setenv("EMBMAP_THREADS", asked)
        assert n_threads() == int(asked)
    monkeypatch.delenv("EMBMAP_THREADS")
    assert n_threads() >= 1


@pytest.mark.parametrize("asked", ["0", "-1", "", "many", "1.5", " 2", "2 ", "0x2", "\xb2"])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch, asked):
    monkeypatch.setenv("EMBMAP_THREADS", asked)
    with pytest.raises(ValueError, match="EMBMAP_THREADS must be a positive number"):
        n_threads()


@pytest.mark.parametrize("n_workers", ["1", "2", "8"])
def test_every_piece_of_work_is_done_once(monkeypatch, n_workers):
    monkeypatch.setenv("EMBMAP_THREADS", n_workers)
    for n in (0, 1, 2, 30):
        done, workers, lock = [], set(), threading.Lock()

        def work(piece, done=done, workers=workers, lock=lock):
            with lock:
                done.append(piece)
                workers.add(threading.get_ident())

        in_parallel(work, range(n))
        assert sorted(done) == list(range(n))
        assert len(workers) <= int(n_workers)
        assert n_workers == "1" or n < 2 or threading.get_ident() not in workers


@pytest.mark.parametrize("n_workers", ["1", "2"])
def test_an_exception_in_a_thread_is_raised(monkeypatch, n_workers):
    monkeypatch.setenv("EMBMAP_THREADS", n_workers)

    def work(piece):
        if piece in (3, 5):
            raise KeyError(piece)

    with pytest.raises(KeyError, match="3"):
        in_parallel(work, range(8))
