"""Writing DWE files: byte for byte as the reference does, and nothing at all when it cannot be."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import embmap
from embmap.dwe import quantize, write
from embmap.formats.dwe import residuals, writer
from tests.reference import dwe as reference

RNG = np.random.default_rng(0)


def walk(n_steps, n_words, dim, width=3):
    """Return words that move a little at every step: (T, V, K) int16."""
    steps = RNG.integers(-width, width + 1, (n_steps, n_words, dim))
    steps[0] *= 10
    return steps.cumsum(axis=0).astype(np.int16)


WALK = walk(7, 12, 5)


def made_by_the_original(path):
    """Whether the original's builder wrote a file, and could write it."""
    return not path.name.startswith(("exotic", "wrap", "single"))


@pytest.mark.conformance_files("dwe/*.dwe", where=made_by_the_original)
def test_conformance_files_are_written_byte_for_byte(conformance_file, tmp_path, kernel):
    known = np.load(conformance_file.with_suffix(".npz"))
    about = json.loads(conformance_file.with_suffix(".json").read_text("utf-8"))
    path = write(
        tmp_path / "ours.dwe",
        known["quantized"],
        scale=float(known["scale_factor"]),
        group=about.get("chunk_size") or about["jump_interval"],
        layout={"A": "blocks", "B": "stream"}[about["layout"]],
    )
    assert path.read_bytes() == conformance_file.read_bytes()


@pytest.mark.conformance_files("dwe/wrap*.dwe")
def test_differences_that_wrap_are_read_but_not_written(conformance_file, tmp_path):
    known = np.load(conformance_file.with_suffix(".npz"))
    with pytest.raises(ValueError, match=r"timestep 1: a difference of -50000 does not fit"):
        write(tmp_path / "a.dwe", known["quantized"], scale=1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("group", [1, 2, 5, 12])
@pytest.mark.parametrize("layout", ["blocks", "stream"])
def test_files_are_those_of_the_reference(tmp_path, kernel, layout, group):
    if layout == "blocks" and WALK.shape[1] % group:
        group = 6
    path = write(tmp_path / "a.dwe", WALK, scale=0.5, group=group, layout=layout)
    assert path.read_bytes() == reference.encode(WALK, 0.5, group, layout)


@pytest.mark.parametrize("group", [1, 4, 6, 12])
@pytest.mark.parametrize("layout", ["blocks", "stream"])
def test_files_do_not_depend_on_how_much_is_dealt_with_at_once(
    tmp_path, monkeypatch, layout, group
):
    expected = reference.encode(WALK, 0.5, group, layout)
    for at_once in (1, 10, 25, 40, 1000):
        for module in (writer, residuals):
            monkeypatch.setattr(module, "AT_ONCE", at_once)
        for steps in (WALK, iter(WALK), ((step[:5], step[5:]) for step in WALK)):
            path = write(tmp_path / "a.dwe", steps, scale=0.5, group=group, layout=layout)
            assert path.read_bytes() == expected


@given(
    arrays(np.int16, st.tuples(st.integers(2, 6), st.just(4), st.integers(1, 3))),
    st.sampled_from(["blocks", "stream"]),
)
def test_whatever_is_written_comes_back(tmp_path_factory, values, layout):
    path = tmp_path_factory.mktemp("dwe") / "a.dwe"
    try:
        expected = reference.encode(values, 0.25, 2, layout)
    except ValueError:
        with pytest.raises(ValueError, match=r"difference of .* does not fit"):
            write(path, values, scale=0.25, group=2, layout=layout)
        return
    assert write(path, values, scale=0.25, group=2, layout=layout).read_bytes() == expected
    with embmap.open(path) as file:
        assert np.array_equal(file[range(4)], values.swapaxes(0, 1) * np.float32(0.25))


def test_steps_come_from_arrays_lists_matrices_and_iterators(tmp_path):
    expected = reference.encode(WALK, 1.0, 4)
    source = write(tmp_path / "source.dwe", WALK, scale=1.0, group=4)
    with embmap.open(source) as file:
        matrices = [file.at(t).vectors.quantized for t in range(file.num_timesteps)]
        sources = {
            "int64": WALK.astype(np.int64),
            "list": list(WALK),
            "lists": WALK.tolist(),
            "iterator": iter(WALK),
            "matrices": matrices,
            "one at a time": (step.astype(np.int32) for step in WALK),
            "blocks": (iter([step[:5], step[5:]]) for step in WALK),
        }
        for name, steps in sources.items():
            path = write(tmp_path / "again.dwe", steps, scale=1.0, group=4)
            assert path.read_bytes() == expected, name
    assert sorted(item.name for item in tmp_path.iterdir()) == ["again.dwe", "source.dwe"]


def test_writing_reports_both_passes(tmp_path):
    steps = []
    write(tmp_path / "a.dwe", WALK, scale=1.0, progress=lambda *step: steps.append(step))
    assert steps == [
        (what, done, 7)
        for what in ("fitting timesteps", "encoding timesteps")
        for done in range(1, 8)
    ]


def test_groups_come_close_to_a_hundred_words(tmp_path):
    for n_words, layout, group in (
        (1000, "blocks", 100),
        (96, "blocks", 96),
        (990, "blocks", 99),
        (101 * 2, "blocks", 101),
        (1013, "stream", 100),
        (7, "stream", 7),
    ):
        path = write(tmp_path / "a", np.zeros((2, n_words, 1), np.int8), scale=1.0, layout=layout)
        with embmap.open(path) as file:
            assert file.info()["group"] == group


MANY = np.arange(4097, dtype=np.int16).reshape(1, 4097, 1).repeat(2, axis=0)
UNWRITABLE = {
    "one step": (WALK[:1], {}, "at least 2 time steps"),
    "no words": (WALK[:, :0], {}, r"shape \(0, 5\)"),
    "floats": (WALK * 0.5, {}, "quantize makes them"),
    "an odd step": ([WALK[0], WALK[1, :3], WALK[2]], {}, "timestep 1 must have"),
    "an odd block": (
        iter([iter([WALK[0], WALK[1, :, :2]])]),
        {},
        "row 12 must have 5 columns",
    ),
    "an odd step of an iterator": (
        iter([WALK[0], WALK[1, :3]]),
        {},
        "timestep 1 must have",
    ),
    "beyond int16": (WALK.astype(np.int64) + 40_000, {}, "int16"),
    "a difference beyond 16 bits": (
        np.array([[[30000]], [[-30000]], [[30000]]]),
        {},
        "timestep 1: a difference of -60000",
    ),
    "too many symbols": (MANY, {}, "different symbols, not 4097"),
    "an odd group": (WALK, {"group": 5}, "stream' takes any"),
    "no group": (WALK, {"group": 0}, "1 to 12"),
    "a group of too many": (WALK, {"group": 13, "layout": "stream"}, "1 to 12"),
    "no scale": (WALK, {"scale": 0.0}, "scale"),
    "an infinite scale": (WALK, {"scale": 1e39}, "scale"),
    "no number for a scale": (WALK, {"scale": float("nan")}, "scale"),
    "another layout": (WALK, {"layout": "tree"}, "blocks, stream"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_does_not_fit_is_refused_and_the_old_file_stays(tmp_path, case):
    quantized, options, message = UNWRITABLE[case]
    if case.endswith("iterator"):
        quantized = iter([WALK[0], WALK[1, :3]])
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=message):
        write(path, quantized, **{"scale": 1.0, **options})
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["old"]


def test_a_model_of_4096_symbols_is_written(tmp_path):
    path = write(tmp_path / "a.dwe", MANY[:, :4096], scale=1.0, group=64)
    with embmap.open(path) as file:
        assert np.array_equal(file.at(0).vectors.quantized, MANY[0, :4096])


@pytest.mark.parametrize("layout", ["blocks", "stream"])
def test_memory_is_bounded_by_a_few_steps(tmp_path, layout):
    n_steps, n_words, dim = 30, 20_000, 8

    def steps():
        for t in range(n_steps):
            yield np.full((n_words, dim), t % 3, np.int16)

    write(tmp_path / "warm.dwe", WALK, scale=1.0, layout=layout)
    tracemalloc.start()
    write(tmp_path / "a.dwe", steps(), scale=1.0, group=100, layout=layout)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    one_step = 2 * n_words * dim
    assert peak < 12 * one_step < n_steps * one_step


def test_quantized_vectors_are_off_by_half_a_step_at_the_most():
    vectors = RNG.standard_normal((3, 20, 4)).astype(np.float32)
    for bits in (2, 8, 11, 16):
        quantized, scale = quantize(vectors, bits)
        assert quantized.dtype == np.int16
        assert np.abs(quantized).max() == 2 ** (bits - 1) - 1
        assert np.float32(scale) == scale
        assert np.abs(quantized * scale - vectors).max() <= scale * 0.5001
    listed, same = quantize(list(vectors), 16)
    assert np.array_equal(listed, quantized)
    assert same == scale


def test_vectors_that_are_no_numbers_are_not_quantized():
    assert quantize(np.zeros((2, 3, 1)))[1] == 1.0
    for vectors, bits in (
        (np.full((2, 3, 1), np.nan), 8),
        (np.full((2, 3, 1), np.inf), 8),
        (np.zeros((2, 3)), 8),
        (np.zeros((2, 3, 1)), 1),
        (np.zeros((2, 3, 1)), 17),
    ):
        with pytest.raises(ValueError, match=r"finite|bits"):
            quantize(vectors, bits)


def test_quantizing_refuses_what_it_would_get_wrong():
    whole = np.arange(12.0).reshape(3, 4)
    for vectors, options, message in (
        ([whole, whole[:1]], {}, "shape"),
        ([whole, whole + 1j], {}, "finite numbers"),
        (np.full((2, 1, 1), 1e41), {}, "float32"),
        (np.full((2, 1, 1), 1e-44), {}, "float32"),
    ):
        with pytest.raises(ValueError, match=message):
            quantize(vectors, **options)
    with pytest.raises(TypeError):
        quantize([whole, whole], 8.5)
    quantized, scale = quantize([whole, whole], np.uint8(8))
    assert quantized.max() == 127
    lowest = np.full((2, 1, 1), -(2**15), np.int16)
    quantized, scale = quantize(lowest, 8)
    assert quantized.tolist() == [[[-127]], [[-127]]]
    assert quantized[0, 0, 0] * scale == pytest.approx(-(2**15))


def test_a_scale_beyond_all_floats_is_refused(tmp_path):
    with pytest.raises(ValueError, match="scale"):
        write(tmp_path / "a", WALK, scale=10**400)


@pytest.fixture
def walked(tmp_path):
    with embmap.open(write(tmp_path / "a.dwe", WALK, scale=1.0, group=4)) as file:
        yield file


def test_truth_values_choose_words_only_as_a_mask(walked):
    mask = np.arange(12) % 5 == 0
    chosen = np.flatnonzero(mask)
    assert np.array_equal(walked[mask], walked[chosen])
    assert np.array_equal(
        walked.similarity_over_time(mask, mask), walked.similarity_over_time(chosen, chosen)
    )
    with pytest.raises(IndexError, match="one-dimensional array, not 0-d"):
        walked[True]
    with pytest.raises(IndexError, match="booleans"):
        walked[mask[:3]]


def test_small_things_are_said_clearly(walked):
    walked.prefetch(walked.find([]))
    with pytest.raises(embmap.UnknownWordError, match="open it with vocab="):
        walked["word"]
    with pytest.raises(TypeError):
        walked.cache_nbytes = 1.5
    walked.close()
    with pytest.raises(embmap.ClosedError):
        walked.cache_nbytes = 3


def test_words_come_in_an_order(tmp_path):
    path = write(tmp_path / "a.dwe", WALK, scale=1.0, group=4)
    for words in ({str(i) for i in range(12)}, iter(["a"] * 12), b"words.txt"):
        with pytest.raises(TypeError, match="vocab must be"):
            embmap.open(path, vocab=words)


def test_a_truncated_map_is_noticed(tmp_path):
    path = write(tmp_path / "a.dwe", WALK, scale=1.0, group=4)
    with embmap.open(path) as file:
        with open(path, "r+b") as raw:
            raw.truncate(0)
        for call in (file.__getitem__, lambda row: file.at(0).vectors[row]):
            with pytest.raises(embmap.TruncatedError, match="shrank"):
                call(3)
