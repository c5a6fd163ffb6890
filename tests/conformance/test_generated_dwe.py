"""What the conformance folder shows about DWE files, with files made here.

Files come from the reference encoder and are compared, through the public face, with what the
reference decoder and the reference queries say.
"""

import concurrent.futures
import gc
import importlib.util
import json
import math
import multiprocessing
import os
import pickle
import struct
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from embmap.codecs import kernels
from embmap.formats.dwe import groups as groups_module
from embmap.io import positional_reads
from tests.reference import dwe as reference

HAS_NUMBA = importlib.util.find_spec("numba") is not None
each_layout = pytest.mark.parametrize("layout", reference.LAYOUTS)


@pytest.fixture(params=["numpy", "numba"])
def kernel(request, monkeypatch):
    """Run the test with each kind of kernel."""
    if request.param == "numba" and not HAS_NUMBA:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(kernels, "CHOICE", request.param)
    monkeypatch.setattr(kernels, "_jit", None)
    return request.param


@pytest.fixture
def best_kernel(monkeypatch):
    """Run the test with the faster kind of kernel, of those there are."""
    monkeypatch.setattr(kernels, "CHOICE", "numba" if HAS_NUMBA else "numpy")


@pytest.fixture
def path(tmp_path):
    """Where a file may stand."""
    return tmp_path / "file.dwe"


def steps(*shape, spread=20, seed=1):
    """Integers (T, V, K) that differ little from one time step to the next."""
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.integers(-spread, spread + 1, shape), axis=0).astype(np.int16)


def written(path, *arguments, **options):
    """A file from the reference encoder."""
    path.write_bytes(reference.encode(*arguments, **options))
    return path


def same(found, expected, what=""):
    """Check that two arrays are equal to the bit, any NaN for any NaN."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    np.testing.assert_array_equal(found, expected, str(what))
    if found.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        signs = np.signbit(found[numbers]), np.signbit(expected[numbers])
        np.testing.assert_array_equal(*signs, str(what))


def scaled(integers, scale):
    """Numbers that integers mean, in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return integers.astype(np.float32) * np.float32(scale)


def rows_are(matrix, expected):
    """Check every way to rows of a matrix."""
    n = len(expected)
    assert (matrix.shape, matrix.dtype) == (expected.shape, expected.dtype)
    assert not matrix.zero_copy
    same(np.asarray(matrix), expected)
    rng = np.random.default_rng(n)
    picked = rng.permutation(n)[:6].tolist()
    for i in picked:
        same(matrix[i], expected[i], i)
        same(matrix[i - n], expected[i], i)
        same(matrix[i : i + 1], expected[i : i + 1], i)
    for start, stop, step in ((1, n - 1, 1), (n // 3, n // 2, 1), (0, n, 3), (n, 0, -2), (n, n, 1)):
        same(matrix[start:stop:step], expected[start:stop:step], (start, stop, step))
    for start in range(n):
        assert matrix[start:start].shape == (0, *expected.shape[1:])
    twice = np.array(picked + [i - n for i in picked[:3]], np.int64)
    same(matrix[twice], expected[twice])
    same(matrix[np.arange(n) % 2 == 0], expected[::2])
    same(matrix[[]], expected[:0])
    out = np.full((twice.size, *expected.shape[1:]), 7, expected.dtype)
    assert matrix.take(twice, out) is out
    same(out, expected[twice])
    assert [start for start, _ in matrix.blocks(4)] == list(range(0, n, 4))
    same(np.concatenate([block for _, block in matrix.blocks(4)]), expected)
    for beyond in (n, -n - 1):
        with pytest.raises(IndexError):
            matrix[beyond]
        with pytest.raises(IndexError):
            matrix[[0, beyond]]


def trajectories_are(f, over_time):
    """Check every way to trajectories: shape (V, T, K)."""
    n = len(over_time)
    same(f[range(n)], over_time)
    same(f[:], over_time)
    rng = np.random.default_rng(n)
    picked = rng.permutation(n)[:5].tolist()
    for i in picked:
        same(f[i], over_time[i], i)
        same(f[np.int32(i)], over_time[i], i)
        same(f[i - n], over_time[i], i)
    twice = picked + [i - n for i in picked[:3]]
    for key in (twice, np.array(twice), np.array(twice, np.int8)):
        same(f[key], over_time[twice])
    for start, stop, step in ((1, n - 1, 1), (n // 3, n // 2, 1), (n, 0, -2), (2, 2, 1)):
        same(f[start:stop:step], over_time[start:stop:step])
    for nothing in ([], np.empty(0, np.int64)):
        same(f[nothing], over_time[:0])
    for beyond in (n, -n - 1):
        for read in (lambda i: f[i], lambda i: f[[0, i]], lambda i: f[np.array([i])]):
            with pytest.raises(IndexError, match="row"):
                read(beyond)


def queries_are(f, integers, scale):
    """Check the answers about some words."""
    n_steps, n, _ = integers.shape
    square = scaled(np.float32(scale), scale)
    first, second = [0, n - 1, n // 2], [n - 1, n - 1, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = reference.similarity(integers, scale, first, second)
    same(f.similarity_over_time(first, second), expected)
    for word, t in ((0, 0), (n - 1, n_steps - 1), (n // 2, n_steps // 2)):
        products = reference.dot_products(integers, t, word)
        for many in sorted({0, n // 2, n - 1}):
            found = f.most_related(word, t, many)
            assert [each.row for each in found] == reference.most_related(integers, t, word, many)
            scores = scaled(products[[each.row for each in found]], square)
            same(np.array([each.score for each in found], np.float32), scores)
        from_the_end = f.most_related(word - n, t - n_steps, n - 1)
        assert [each.row for each in from_the_end] == [each.row for each in found]
        last = reference.dot_products(integers, -1, word).astype(np.int64)
        changes = last - reference.dot_products(integers, 0, word)
        for many, *least in ((0, 0, 0), (n - 1, 0, 0), (n - 1, n // 3, n // 2), (n // 2, 1, 0)):
            if sum(least) > many:
                continue
            found = f.largest_changes(word, many, *least)
            rows = [each.row for each in found]
            assert rows == reference.largest_changes(integers, word, many, *least)
            scores = scaled(changes[rows], square)
            same(np.array([each.score for each in found], np.float32), scores)


def reads_like_the_reference(path, backend, data=None):
    """Check that an open file says what the reference decoder says, and return that."""
    if data is not None:
        path.write_bytes(data)
    decoded = reference.decode(path.read_bytes())
    integers, scale = decoded.quantized, decoded.scale
    n_steps, n, dim = integers.shape
    numbers = scaled(integers, scale)
    with embmap.open(path, backend=backend) as f:
        assert (f.format, f.layout, f.shape) == ("dwe", decoded.layout, (n, n_steps, dim))
        assert (len(f), f.dim, f.num_timesteps, f.dtype) == (n, dim, n_steps, np.float32)
        same(np.float32(f.scale), scale)
        rows_are(f.at(n_steps // 3).vectors, numbers[n_steps // 3])
        rows_are(f.at(-1 - n_steps // 2).vectors.quantized, integers[-1 - n_steps // 2])
        for t in range(n_steps):
            same(np.asarray(f.at(t).vectors.quantized), integers[t], t)
            same(np.asarray(f.at(t - n_steps).vectors), numbers[t], t)
        over_time = np.ascontiguousarray(numbers.swapaxes(0, 1))
        rows_are(f.vectors, over_time)
        trajectories_are(f, over_time)
        queries_are(f, integers, scale)
        report = f.verify()
        assert report.ok == (not decoded.problems)
        assert bool(report.problems) == bool(decoded.problems)
        info = json.loads(json.dumps(f.info(), allow_nan=False))
        assert info["shape"] == [n, n_steps, dim]
        assert (info["group"], info["version"]) == (decoded.group, f"1.{decoded.minor}")
    return decoded


# ------------------------------------------------------------------------------ shapes and groups


@each_layout
@pytest.mark.parametrize("n_steps", range(2, 13))
def test_any_number_of_time_steps_is_read(path, layout, n_steps):
    backend = ("mmap", "read")[n_steps % 2]
    group = 3 if layout == "blocks" else 4
    values = steps(n_steps, 6, 3)
    decoded = reads_like_the_reference(
        path, backend, reference.encode(values, 0.1, group, layout, minor=n_steps)
    )
    same(decoded.quantized, values)


@each_layout
@pytest.mark.parametrize("group", [1, 2, 4, 12])
def test_groups_of_any_size_are_read(path, backend, layout, group):
    values = steps(5, 12, 3)
    decoded = reads_like_the_reference(path, backend, reference.encode(values, 0.1, group, layout))
    assert decoded.group == group


@pytest.mark.parametrize("group", [2, 3, 5, 7, 10, 12])
def test_the_last_group_of_a_stream_may_be_ragged(path, backend, kernel, group):
    reads_like_the_reference(path, backend, reference.encode(steps(4, 13, 3), 0.1, group, "stream"))


@each_layout
@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 1, 5), (4, 2, 1), (3, 4, 1), (2, 3, 37)])
def test_small_and_odd_shapes_are_read(path, backend, layout, shape):
    values = steps(*shape, spread=300)
    reads_like_the_reference(path, backend, reference.encode(values, 0.1, 1, layout))


@each_layout
def test_words_of_one_file_need_not_be_many_or_few(path, layout, monkeypatch):
    values = steps(7, 13 if layout == "stream" else 12, 3)
    data = reference.encode(values, 0.1, 3, layout)
    for at_once in (1, 100, 1000):  # bytes decoded at once
        monkeypatch.setattr(groups_module, "_AT_ONCE", at_once)
        for most_models in (2, 3, 7):
            monkeypatch.setattr(groups_module, "_MOST_MODELS", max(most_models, 2))
            if at_once < 1000 and most_models > 2:
                continue
            reads_like_the_reference(path, "mmap", data)


# ----------------------------------------------------------------------------- models and residuals


@each_layout
@pytest.mark.parametrize("symbol", [0, 32767, -32768])
def test_a_step_of_one_symbol_is_read(path, backend, layout, symbol):
    values = steps(3, 4, 3)
    values[0] = symbol
    values[2] = symbol
    values[1] = symbol  # whose differences are all 0
    reads_like_the_reference(path, backend, reference.encode(values, 0.1, 2, layout))
    values[1, 3, 2] = 5
    reads_like_the_reference(path, backend, reference.encode(values, 0.1, 2, layout, wrap=True))


@each_layout
def test_the_compressed_section_may_be_empty(path, backend, kernel, layout):
    values = np.full((4, 6, 2), -3, np.int16)
    data = reference.encode(values, 0.1, 2, layout)
    words = reference.parse(data).words
    assert layout == "blocks" or words == []
    reads_like_the_reference(path, backend, data)


@each_layout
def test_a_model_of_4096_symbols_is_read(path, backend, kernel, layout):
    rng = np.random.default_rng(0)
    values = np.stack([rng.permutation(4096), rng.permutation(4096)]) - 2048
    values = values.reshape(2, 64, 64).astype(np.int16)
    data = reference.encode(values, 0.1, 16, layout)
    assert [len(model) for model in reference.parse(data).models] == [4096, 4096]
    path.write_bytes(data)
    with embmap.open(path, backend=backend) as f:
        for t in (0, 1):
            same(np.asarray(f.at(t).vectors.quantized), values[t])
        same(f[40], scaled(values[:, 40], 0.1))
        assert f.verify().problems == []


@each_layout
@pytest.mark.parametrize("n_symbols", [2, 3, 4, 5, 6, 7, 8, 9])
def test_models_of_any_size_are_read(path, layout, n_symbols):
    values = np.arange(6 * n_symbols).reshape(2, n_symbols, 3) % n_symbols
    values = values.astype(np.int16)
    data = reference.encode(values, 0.1, n_symbols, layout)
    assert [len(model) for model in reference.parse(data).models] == [n_symbols] * 2
    reads_like_the_reference(path, "mmap", data)


@each_layout
def test_differences_wrap(path, backend, kernel, layout):
    rng = np.random.default_rng(4)
    values = rng.choice([-32768, -32767, -1, 0, 1, 32766, 32767], (6, 4, 3)).astype(np.int16)
    with pytest.raises(ValueError, match="does not fit"):
        reference.encode(values, 0.1, 2, layout)
    decoded = reads_like_the_reference(
        path, backend, reference.encode(values, 1e-5, 2, layout, wrap=True)
    )
    same(decoded.quantized, values)


def test_dot_products_wrap_to_32_bits(path, backend, kernel):
    values = np.full((3, 4, 2), -32768, np.int16)
    values[1:, 1] = 32767
    values[2, 2] = [32767, -32768]
    reads_like_the_reference(path, backend, reference.encode(values, 0.5, 2, "stream", wrap=True))
    with embmap.open(path, backend=backend) as f:
        assert f.similarity_over_time([0], [3]).tolist() == [[-(2.0**29)] * 3]


def test_equal_products_are_ranked_by_row(path, backend):
    values = np.zeros((3, 8, 1), np.int16)
    values[0, :, 0] = [1, 2, 2, 1, 2, 1, 1, 2]
    values[2, :, 0] = [1, 5, -5, 3, -7, 5, 0, 3]
    reads_like_the_reference(path, backend, reference.encode(values, 1, 2))
    with embmap.open(path, backend=backend) as f:
        assert [each.row for each in f.most_related(0, 0, 7)] == [1, 2, 4, 7, 3, 5, 6]
        assert f.most_related(0, 0, 2) == [(1, None, 2.0), (2, None, 2.0)]
        # They change by 0, 3, -7, 2, -9, 4, -1, 1.
        assert [each.row for each in f.largest_changes(0, 3)] == [4, 2, 5]
        assert f.largest_changes(0, 2, 1, 1) == [(4, None, -9.0), (5, None, 4.0)]
        assert f.largest_changes(0, 1, 1) == [(5, None, 4.0)]


@each_layout
@pytest.mark.parametrize("order", [range(5), [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_steps_and_symbols_may_come_in_any_order(path, backend, layout, order):
    values = steps(5, 6, 3)
    models = reference.parse(reference.encode(values, 0.1, 2, layout)).models
    natural = [dict(sorted(model.items())) for model in models]
    for gap in (0, 1, 5) if layout == "blocks" else (0,):
        data = reference.encode(values, 0.1, 2, layout, models=natural, order=order, gap=gap)
        same(reads_like_the_reference(path, backend, data).quantized, values)


@each_layout
def test_models_may_have_symbols_that_never_come(path, backend, layout):
    values = steps(3, 4, 2, spread=1)
    model = {1000 + i: 7 for i in range(20)} | dict.fromkeys(range(-10, 10), 100)
    model[-11] = 4096 - sum(model.values())
    data = reference.encode(values, 0.1, 2, layout, models=[model] * 3)
    same(reads_like_the_reference(path, backend, data).quantized, values)


def shared_chunk(values, shape, group):
    """A file of blocks in which all groups of all time steps are one chunk: two words u32 each."""
    n_steps, n_words, dim = shape
    assert values.shape == (group, dim)
    symbols = values.ravel().tolist()
    model = reference.best_model(symbols)
    encoder = reference.Encoder()
    encoder.push(symbols, model)
    state = [encoder.state >> 16, encoder.state & 0xFFFF]
    chunk = np.array([*state, *encoder.words[::-1]], "<u2")
    head = np.array(reference.write_model(model), "<u2")
    head, chunk = (np.append(part, [0] * (part.size % 2)).astype("<u2") for part in (head, chunk))
    n_groups = n_words // group
    address = 10 + n_steps
    meta_size = address + head.size // 2 + n_groups
    size = meta_size + chunk.size // 2
    return b"".join(
        [
            struct.pack("<4s8If", b"\0dwe", 1, 0, size, meta_size, n_steps, n_words, dim, group, 1),
            struct.pack("<I", address) * n_steps,
            head.tobytes(),
            struct.pack("<I", meta_size) * n_groups,
            chunk.tobytes(),
        ]
    )


def test_groups_and_models_may_be_shared(path, backend, kernel):
    symbols = steps(1, 3, 4)[0]
    decoded = reads_like_the_reference(path, backend, shared_chunk(symbols, (5, 12, 4), 3))
    same(decoded.quantized[0], np.tile(symbols, (4, 1)))
    same(decoded.quantized[2], np.tile(2 * symbols, (4, 1)))


def test_there_may_be_more_time_steps_than_models_are_kept(path, backend):
    values = steps(1100, 1, 1, spread=1)
    path.write_bytes(reference.encode(values, 0.5, 1, "stream"))
    with embmap.open(path, backend=backend) as f:
        for _ in range(2):
            same(f[0], scaled(values[:, 0], 0.5))
            for t in (0, 1, 549, 1098, 1099):
                same(f.at(t).vectors.quantized[0], values[t, 0])
        assert f.verify().problems == []


# ----------------------------------------------------------------------------------- the header

SCALES = {
    "one": (0x3F800000, True),
    "negative": (0xBDCCCCCD, True),
    "subnormal": (0x00000001, True),
    "greatest": (0x7F7FFFFF, True),
    "zero": (0x00000000, False),
    "negative zero": (0x80000000, False),
    "infinite": (0x7F800000, False),
    "negative infinite": (0xFF800000, False),
    "NaN": (0x7FC00000, False),
    "signaling NaN": (0x7F800001, False),
    "negative signaling NaN": (0xFFBFFFFF, False),
}


@each_layout
@pytest.mark.parametrize("kind", SCALES)
def test_any_scale_is_read_and_one_of_no_use_is_reported(path, layout, kind):
    pattern, ok = SCALES[kind]
    data = bytearray(reference.encode(steps(3, 4, 3), 1, 2, layout))
    struct.pack_into("<I", data, 36, pattern)
    reads_like_the_reference(path, "mmap", bytes(data))
    with embmap.open(path) as f:
        report = f.verify()
        assert report.ok == ok
        if not ok:
            (problem,) = report.problems
            assert (problem.severity, problem.offset) == ("error", 36)
            assert "scale factor" in problem.message
        assert (f.info()["scale"] is None) == (not math.isfinite(f.scale))


@each_layout
@pytest.mark.parametrize("minor", [1, 2**32 - 1])
def test_any_minor_version_is_read(path, backend, layout, minor):
    reads_like_the_reference(
        path, backend, reference.encode(steps(3, 4, 3), 0.1, 2, layout, minor=minor)
    )


@each_layout
def test_only_the_layout_of_the_bytes_is_read(path, backend, layout):
    values = steps(3, 6, 3)
    path.write_bytes(reference.encode(values, 0.1, 2, layout))
    (other,) = set(reference.LAYOUTS) - {layout}
    with embmap.open(path, backend=backend, layout=layout) as f:
        same(np.asarray(f.at(1).vectors.quantized), values[1])
        assert f.layout == layout
    with pytest.raises(embmap.FormatError):
        embmap.open(path, backend=backend, layout=other)
    with pytest.raises(ValueError, match="layout must be one of blocks, stream"):
        embmap.open(path, backend=backend, layout="flat")


def filled(data, first, words):
    """Bytes with other u16, counted from the start of the file."""
    return data[: 2 * first] + np.array(words, "<u2").tobytes() + data[2 * (first + len(words)) :]


def test_sizes_that_fit_both_layouts_leave_it_to_the_models(path, backend):
    # The gap before the first block is read as a stream: its address is the size of a model, and
    # the numbers of symbols in the gap put the models' end at meta_size, which blocks do not need.
    values = steps(2, 4, 3)
    data = reference.encode(values, 0.1, 2, "blocks", gap=80)
    assert struct.unpack_from("<I", data, 40) == (92,)
    assert 20 + 1 + 92 + 3 * 92 // 4 == 182 < 2 * 92
    data = filled(data, 182, [2])
    data = data[:16] + struct.pack("<I", 93) + data[20:]
    with pytest.raises(reference.InvalidFile, match="not stream"):
        reference.parse(data, "stream")
    same(reads_like_the_reference(path, backend, data).quantized, values)


def test_a_file_of_both_layouts_asks_which(path, backend):
    # Two steps of two words of one dimension, beyond 65536 words: only there can addresses be
    # different symbols.
    n, size = 200, 65_600
    model = [n, 0, 7, 1, *range(100, 100 + n - 3), *reference.pack12([1] * (n - 1))]
    model += reference.write_model({5: 4095, 6: 1})
    jump_table = (20 + len(model) + 1) // 2
    header = (b"\0dwe", 1, 0, size, jump_table, 2, 2, 1, 1, 0.5)
    data = struct.pack("<4s8If", *header) + bytes(4 * (size - 10))
    data = filled(data, 20, model)
    data = filled(data, 2 * jump_table, [0, 1] * 8)  # offset 65536, state 65536, in turns
    data = filled(data, 2 * 65_543, [2, 8, 9, 2048, 65_550 % 65_536, 1, 65_552 % 65_536, 1])
    data = filled(data, 2 * n, [2, 8, 9, 2048, 65_550 % 65_536, 1, 65_552 % 65_536, 1])
    data = filled(data, 2 * 65_550, [1, 16, 0, 0, 1, 2048, 0, 0])
    assert struct.unpack_from("<2I", data, 40) == (n, 65_543)
    for layout in reference.LAYOUTS:
        assert reference.parse(data, layout).layout == layout
    with pytest.raises(reference.InvalidFile, match="both possible"):
        reference.parse(data)
    path.write_bytes(data)
    with pytest.raises(embmap.FormatError, match="layout="):
        embmap.open(path, backend=backend)
    for layout in reference.LAYOUTS:
        with embmap.open(path, backend=backend, layout=layout) as f:
            assert f.layout == layout
            assert pickle.loads(pickle.dumps(f)).layout == layout


# ------------------------------------------------------------------------------------ an open file

WORDS = ["the", "café", "✓", "x" * 300, "The", "naïve"]


@pytest.fixture(params=reference.LAYOUTS)
def integers(request, path):
    """The integers of a file at `path`, of six words and five time steps."""
    values = steps(5, 6, 3)
    written(path, values, 0.25, 3 if request.param == "blocks" else 4, request.param)
    return values


def test_words_are_given_in_a_list_or_a_file(path, backend, integers, tmp_path):
    lines = tmp_path / "words.txt"
    lines.write_bytes("\n".join([*WORDS, ""]).encode())
    numbers = scaled(integers, 0.25)
    for vocab in (WORDS, tuple(WORDS), lines, str(lines)):
        with embmap.open(path, backend=backend, vocab=vocab) as f:
            assert list(f) == list(f.vocab) == WORDS
            assert len(f) == 6
            assert "✓" in f
            assert "✗" not in f
            assert 0 not in f
            for row, word in enumerate(WORDS):
                same(f[word], numbers[:, row])
                same(f[np.str_(word)], numbers[:, row])
                same(f.get(word), numbers[:, row])
                same(f.at(-1)[word], numbers[-1, row])
                same(f.at()[word], numbers[-1, row])
                same(f.at(1).batch([word])[0], numbers[1, row])
            assert f.get("✗") is None
            assert f.get("✗", 5) == 5
            assert f.find(["naïve", "✗", "the"]).tolist() == [5, -1, 0]
            same(f[["naïve", "the"]], numbers[:, [5, 0]].swapaxes(0, 1))
            same(f[np.array(["naïve", "the"])], numbers[:, [5, 0]].swapaxes(0, 1))
            same(f.batch(["naïve", "the"]), numbers[:, [5, 0]].swapaxes(0, 1))
            same(f.batch(["✗", "the"], missing="zero")[1], numbers[:, 0])
            assert np.isnan(f.batch(["✗", "the"], missing="nan")[0]).all()
            same(
                f.similarity_over_time(["the", 1], [5, "✓"]), f.similarity_over_time([0, 1], [5, 2])
            )
            for found in (f.most_related("the", 2, 5), f.largest_changes("the", 5, 1, 1)):
                assert [each.word for each in found] == [WORDS[each.row] for each in found]
            assert [tuple(each) for each in f.most_related("✓", 0, 1)] == [
                (found.row, WORDS[found.row], found.score) for found in f.most_related(2, 0, 1)
            ]
            assert f.verify().ok


def test_booleans_choose_words(path, backend, integers):
    over_time = scaled(integers, 0.25).swapaxes(0, 1)
    with embmap.open(path, backend=backend) as f:
        for chosen in ([0, 2, 4], [5], [0], [], range(6), [1, 2, 5]):
            mask = np.isin(np.arange(6), chosen)
            same(f[mask], over_time[mask])
            same(f[mask.tolist()], over_time[mask])
            same(f.vectors[mask], over_time[mask])


def test_words_that_are_not_there_are_named(path, backend, integers):
    with embmap.open(path, backend=backend, vocab=WORDS) as f:
        for read in (
            lambda: f["✗"],
            lambda: f[["the", "✗"]],
            lambda: f.at(0)["✗"],
            lambda: f.similarity_over_time(["the"], ["✗"]),
            lambda: f.most_related("✗", 0, 1),
            lambda: f.largest_changes("✗", 1),
            lambda: f.batch(["✗"]),
        ):
            with pytest.raises(embmap.UnknownWordError, match="✗"):
                read()
        with pytest.raises(embmap.UnknownWordError, match="'✗' and 1 more"):
            f[["✗", "the", "?"]]


def test_a_file_has_no_words_of_its_own(path, backend, integers):
    with embmap.open(path, backend=backend) as f:
        assert f.vocab is None
        assert len(f) == 6
        assert "the" not in f
        assert f.metadata == {}
        with pytest.raises(TypeError, match="no words"):
            iter(f)
        for read in (lambda: f["the"], lambda: f[["the"]]):
            with pytest.raises(embmap.UnknownWordError):
                read()
        assert f.get("the", "none") == "none"
    for n in (5, 7):
        with pytest.raises(ValueError, match=f"{n} words were given for 6 rows"):
            embmap.open(path, backend=backend, vocab=(WORDS * 2)[:n])


def test_what_is_asked_for_has_to_exist(path, backend, integers):
    with embmap.open(path, backend=backend) as f:
        for t in (5, -6, 2**40):
            for read in (f.at, lambda t: f.most_related(0, t, 1)):
                with pytest.raises(IndexError, match=f"timestep {t} of 5"):
                    read(t)
        for row in (6, -7, 2**70):
            for read in (
                lambda row: f[row],
                lambda row: f.at(0)[row],
                lambda row: f.similarity_over_time([0], [row]),
                lambda row: f.most_related(row, 0, 1),
                lambda row: f.largest_changes(row, 1),
            ):
                with pytest.raises(IndexError, match=f"row {row} of 6"):
                    read(row)
        for n in (6, 7, 2**32, -1):
            for read in (lambda n: f.most_related(0, 0, n), lambda n: f.largest_changes(0, n)):
                with pytest.raises(ValueError, match=f"n must be 0 to 5, .*, not {n}"):
                    read(n)
        for least in ((2, 2), (4, 0), (0, 4), (-1, 0), (0, -1)):
            with pytest.raises(ValueError, match="together at most n = 3"):
                f.largest_changes(0, 3, *least)
        with pytest.raises(ValueError, match="must have 2 words, not 1"):
            f.similarity_over_time([0, 1], [0])
        with pytest.raises(ValueError, match="cache_nbytes"):
            f.cache_nbytes = -1
        for wrong in (None, b"the", {}):
            with pytest.raises(TypeError):
                f[wrong]
        for wrong in (None, 1.5, b"the", {}, object()):
            with pytest.raises(IndexError, match="rows are chosen by"):
                f[[wrong]]
        for read in (f.batch, lambda words: f.similarity_over_time(words, words)):
            with pytest.raises(TypeError, match="list of words"):
                read("the")
        with pytest.raises(IndexError, match="5 booleans for 6 rows"):
            f[[True] * 5]
        assert f.similarity_over_time([], []).shape == (0, 5)


@each_layout
def test_a_file_of_one_word_has_no_neighbors(path, backend, layout):
    written(path, steps(3, 1, 4), 0.5, 1, layout)
    with embmap.open(path, backend=backend) as f:
        assert f.most_related(0, 0, 0) == f.largest_changes(0, 0) == []
        with pytest.raises(ValueError, match=r"n must be 0 to 0, .* not 10"):
            f.most_related(0, 0)


def test_a_file_says_what_is_known_unread(path, backend, integers):
    with embmap.open(path, backend=backend, vocab=WORDS) as f:
        layout = f.layout
        shown = repr(f)
        for part in ("file.dwe", "6 x 5 x 3", layout, "6 words", "not read"):
            assert part in shown
        assert "6 x 3" in repr(f.at(1).vectors)
        info = json.loads(json.dumps(f.info()))
        assert info["shape"] == [6, 5, 3]
        assert (info["format"], info["layout"], info["scale"]) == ("dwe", layout, 0.25)
        assert (info["version"], info["n_words"], info["nbytes"]) == (
            "1.0",
            6,
            path.stat().st_size,
        )
        assert [part["name"] for part in info["chunks"]] == [f"timestep {t}" for t in range(5)]
        models = reference.parse(path.read_bytes()).models
        assert [part["symbols"] for part in info["chunks"]] == [len(model) for model in models]
        for part in info["chunks"]:
            assert 0 < part["offset"] <= info["nbytes"] - part["nbytes"]
        f.prefetch()
        f.prefetch([0, -1])


def test_a_closed_file_is_not_read(path, backend, integers):
    f = embmap.open(path, backend=backend, vocab=WORDS)
    step, trajectory = f.at(1).vectors, f[2]
    before = trajectory.copy()
    f.close()
    same(trajectory, before)
    for read in (
        lambda: f["the"],
        lambda: f[0],
        lambda: f[[0]],
        lambda: f[0:1],
        lambda: f[0],
        lambda: f[[0]],
        lambda: f.at(0).vectors,
        lambda: f.similarity_over_time([0], [0]),
        lambda: f.most_related(0, 0, 1),
        lambda: f.largest_changes(0, 1),
        lambda: len(f),
        lambda: f.vectors,
        lambda: f.info(),
        lambda: f.verify(),
        lambda: pickle.dumps(f),
        lambda: f.prefetch(),
        lambda: iter(f),
        lambda: "the" in f,
    ):
        with pytest.raises(embmap.ClosedError):
            read()
    assert "closed" in repr(f)
    same(np.asarray(step.quantized), integers[1])  # what was handed out stays valid


def test_a_pickled_file_opens_again(path, backend, integers):
    with embmap.open(path, backend=backend, vocab=WORDS) as f:
        data = pickle.dumps(f)
        again = pickle.loads(data)
    assert (again.path, again.layout, again.info()["backend"]) == (path, f.layout, backend)
    same(again["✓"], scaled(integers[:, 2], 0.25))
    with pytest.raises(TypeError, match="pickle the file"):
        pickle.dumps(again.at(0).vectors)
    path.write_bytes(reference.encode(steps(5, 6, 4), 0.25, 2))
    with pytest.raises(embmap.FormatError, match="changed since it was pickled"):
        pickle.loads(data)


def test_answers_may_be_written_to_and_change_nothing(path, backend, integers):
    with embmap.open(path, backend=backend, vocab=WORDS) as f:
        for _ in range(2):
            for read in (
                lambda: f["the"],
                lambda: f[[0, 1]],
                lambda: f.at(0).vectors[0],
                lambda: f.at(0).vectors.quantized[0],
                lambda: f.at(0).vectors.quantized[0:6],
                lambda: f.at(2).vectors.quantized[0:6],
                lambda: f.at(4).vectors.quantized[[0, 5]],
                lambda: f.batch(["the"]),
            ):
                read()[...] = 77
        for t in range(5):
            same(np.asarray(f.at(t).vectors.quantized), integers[t])
        same(f[:], np.ascontiguousarray(scaled(integers, 0.25).swapaxes(0, 1)))


@pytest.mark.parametrize("cache_nbytes", [0, 2000, 1 << 20])
def test_threads_share_a_file(path, backend, kernel, cache_nbytes):
    values = steps(9, 40, 4)
    written(path, values, 0.5, 4, "stream")
    numbers = scaled(values, 0.5)
    with embmap.open(path, backend=backend) as f:
        f.cache_nbytes = cache_nbytes

        def read(seed):
            rng = np.random.default_rng(seed)
            for _ in range(12):
                row, t = int(rng.integers(40)), int(rng.integers(9))
                same(f[row], numbers[:, row])
                same(f.at(t).vectors.quantized[row], values[t, row])
                rows = rng.integers(0, 40, 3)
                same(f.at(t).vectors[rows], numbers[t, rows])
            return seed

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert list(pool.map(read, range(6))) == list(range(6))


def forked(answer):
    """What a forked child answers."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(answer()))
    child.start()
    try:
        assert receiver.poll(20)
        return receiver.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_may_use_its_parents_file(path, backend, integers):
    numbers = scaled(integers, 0.25)
    with embmap.open(path, backend=backend) as f:
        assert forked(lambda: f[1].tolist()) == numbers[:, 1].tolist()
        same(f[1], numbers[:, 1])
        assert forked(lambda: f[[0, 1]].tolist()) == numbers[:, :2].swapaxes(0, 1).tolist()
        with f.at(0).vectors.groups._lock:  # as another thread might, when the child is forked
            assert forked(lambda: f.at(2).vectors[4].tolist()) == numbers[2, 4].tolist()


# --------------------------------------------------------------------------------------- the cache


@each_layout
@pytest.mark.parametrize("cache_nbytes", [0, 1, 47, 48, 200, 1000, 1 << 20])
def test_a_cache_of_any_size_gives_the_same_answers(path, backend, layout, cache_nbytes):
    values = steps(5, 12, 4)
    written(path, values, 0.5, 3, layout)
    numbers = scaled(values, 0.5)
    rng = np.random.default_rng(cache_nbytes)
    with embmap.open(path, backend=backend) as f:
        assert f.cache_nbytes > 0
        f.cache_nbytes = cache_nbytes
        assert f.cache_nbytes == cache_nbytes
        for _ in range(40):
            t, row = int(rng.integers(5)), int(rng.integers(12))
            same(f[row], numbers[:, row])
            same(f.at(t).vectors.quantized[row], values[t, row])
            same(f.at(t).vectors[row // 2 : row], numbers[t, row // 2 : row])
            assert f.at(t).vectors.groups._cached_nbytes <= cache_nbytes
        queries_are(f, values, 0.5)


def kept_by(f, use):
    """How many bytes more are in use after some calls than before them."""
    gc.collect()
    tracemalloc.start()
    try:
        use(f)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


GROUP, DIM, MOST_KEPT = 25, 8, 160
BUDGET = MOST_KEPT * GROUP * DIM * 2


@pytest.fixture
def many_groups(path, best_kernel):
    """A file of 100 groups and 16 time steps, which keeps 160 of the 1600 pairs of them."""
    path.write_bytes(shared_chunk(steps(1, GROUP, DIM)[0], (16, 100 * GROUP, DIM), GROUP))
    with embmap.open(path) as f:
        f.cache_nbytes = BUDGET
        for t in (0, 15, 7):
            _ = f.at(t).vectors[0]
        _ = f[0]
        yield f


def over_all_groups(f):
    for group in range(100):
        _ = f[group * GROUP]


def with_one_step_of_the_latest(f):
    for group in range(100):
        _ = f[group * GROUP]
        if group % 3 == 0:  # what was used last is kept, and not what it was decoded with
            for earlier in range(max(group - 60, 0), group):
                _ = f.at(0).vectors[earlier * GROUP]


@pytest.mark.parametrize("use", [over_all_groups, with_one_step_of_the_latest])
def test_no_more_is_kept_than_the_budget(many_groups, use):
    kept = kept_by(many_groups, use)
    assert kept < BUDGET + 700 * MOST_KEPT  # the integers, and some bytes to find them again


def test_what_is_kept_is_not_decoded_again(many_groups, monkeypatch):
    f = many_groups
    expected = f[17 * GROUP], f.at(3).vectors[17 * GROUP + 5]
    monkeypatch.setattr(groups_module, "decode", None)
    same(f[17 * GROUP], expected[0])
    same(f.at(3).vectors[17 * GROUP + 5], expected[1])


def test_a_budget_that_is_lowered_is_kept_at_once(many_groups):
    def use(f):
        over_all_groups(f)
        f.cache_nbytes = 0
        _ = f[5 * GROUP]

    assert kept_by(many_groups, use) < BUDGET * 3 // 4
    many_groups.cache_nbytes = BUDGET
    same(many_groups[5 * GROUP], many_groups[0])


def test_a_step_read_by_blocks_takes_the_memory_of_blocks(path, best_kernel):
    n, rows_per_block = 1000 * GROUP, 20 * GROUP
    path.write_bytes(shared_chunk(steps(1, GROUP, DIM)[0], (16, n, DIM), GROUP))
    with embmap.open(path) as f:
        f.cache_nbytes = 0
        whole = np.asarray(f.at(7).vectors.quantized)
        same(f.at(7).vectors.quantized[::-7], whole[::-7])
        for step in (f.at(7).vectors.quantized, f.at(0).vectors):
            gc.collect()
            tracemalloc.start()
            try:
                sizes = [block.shape for _, block in step.blocks(rows_per_block)]
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert sizes == [(rows_per_block, DIM)] * 50
            assert peak < whole.nbytes


def test_a_query_takes_bounded_memory(path, monkeypatch):
    n, dim = 4000, 200
    path.write_bytes(shared_chunk(steps(1, 5, dim)[0], (16, n, dim), 5))
    with embmap.open(path) as f:
        expected = f.most_related(3, 7, 20), f.largest_changes(3, 20, 2, 2)
        limit = 1 << 18  # bytes decoded at once
        monkeypatch.setattr(groups_module, "_AT_ONCE", limit)
        gc.collect()
        tracemalloc.start()
        try:
            assert f.most_related(3, 7, 20) == expected[0]
            assert f.largest_changes(3, 20, 2, 2) == expected[1]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The products of all words and what ranks them, and a few copies of what is decoded at once.
    assert peak < 25 * 8 * n + 8 * limit < 2 * 2 * n * dim


# ---------------------------------------------------------------------------------- what is touched


@each_layout
def test_opening_touches_no_data(path, backend, layout):
    values = steps(4, 8, 5)
    data = bytearray(reference.encode(values, 0.5, 2, layout))
    parsed = reference.parse(bytes(data))
    first = 4 * parsed.meta_size
    if layout == "stream":
        first = len(data) - 2 * len(parsed.words)
    data[first:] = np.random.default_rng(0).bytes(len(data) - first)
    path.write_bytes(data)
    with embmap.open(path, backend=backend, vocab=[*"abcdefgh"]) as f:
        assert f.shape == (8, 4, 5)
        assert (f.layout, list(f)) == (layout, [*"abcdefgh"])
        repr(f)
        repr(f.at(2).vectors)
        f.info()
        with pytest.raises(embmap.FormatError):
            f[range(8)]
        assert not f.verify().ok


@each_layout
def test_opening_reads_no_table_and_no_data(path, layout, monkeypatch):
    values = steps(4, 8, 5)
    data = reference.encode(values, 0.5, 2, layout)
    path.write_bytes(data)
    reads = []

    def counted(number, nbytes, offset):
        reads.append((offset, offset + nbytes))
        return os.pread(number, nbytes, offset)

    if not hasattr(os, "pread"):
        pytest.skip("there is no pread here")
    monkeypatch.setattr(positional_reads, "pread", counted)
    with embmap.open(path, backend="read") as f:
        (address,) = struct.unpack_from("<I", data, 16)
        assert max(end for _, end in reads) <= 4 * address
        assert sum(end - start for start, end in reads) < 200
        reads.clear()
        same(f.at(0).vectors.quantized[0], values[0, 0])  # one group of two time steps at the most
        assert sum(end - start for start, end in reads) < len(data) // 2


# ------------------------------------------------------------------------ kernels and threads alike


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_steps=st.integers(2, 9),
    n_groups=st.integers(1, 6),
    group=st.integers(1, 4),
    dim=st.integers(1, 9),
    ragged=st.integers(0, 3),
    spread=st.sampled_from([0, 1, 30, 3000]),
)
def test_both_kernels_and_both_layouts_read_what_was_encoded(
    tmp_path_factory, seed, n_steps, n_groups, group, dim, ragged, spread
):
    n = n_groups * group
    values = steps(n_steps, n, dim, spread=spread, seed=seed)
    path = tmp_path_factory.getbasetemp() / "any.dwe"
    for layout in reference.LAYOUTS:
        if layout == "stream":
            values = values[:, : max(n - ragged, group)]
        path.write_bytes(reference.encode(values, 0.1, group, layout))
        for choice in ("numpy", "numba"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kernels, "CHOICE", choice)
                patch.setattr(kernels, "_jit", None)
                with embmap.open(path, backend="mmap" if seed % 2 else "read") as f:
                    same(
                        np.asarray(f.vectors),
                        np.ascontiguousarray(scaled(values, 0.1).swapaxes(0, 1)),
                    )
                    for t in range(n_steps):
                        same(np.asarray(f.at(t).vectors.quantized), values[t])


@pytest.mark.parametrize("n_workers", ["1", "2", "3"])
def test_any_number_of_threads_reads_the_same(path, backend, kernel, monkeypatch, n_workers):
    symbols = steps(1, 50, 6)[0]
    path.write_bytes(shared_chunk(symbols, (4, 251 * 50, 6), 50))
    monkeypatch.setenv("EMBMAP_THREADS", n_workers)
    with embmap.open(path, backend=backend) as f:
        found = np.asarray(f.at(1).vectors.quantized)
        assert 3 * found.size > 200_000  # where more than one thread sets to work
        same(found, np.tile(2 * symbols, (251, 1)))
        assert f.verify().problems == []


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
def test_a_number_of_threads_that_is_none_is_said_so(path, monkeypatch):
    path.write_bytes(shared_chunk(steps(1, 50, 6)[0], (2, 700 * 50, 6), 50))
    monkeypatch.setattr(kernels, "CHOICE", "numba")
    with embmap.open(path) as f:
        monkeypatch.setenv("EMBMAP_THREADS", "many")
        with pytest.raises(ValueError, match="EMBMAP_THREADS"):
            np.asarray(f.at(0).vectors)
        monkeypatch.setenv("EMBMAP_THREADS", "1")
        assert np.asarray(f.at(0).vectors).shape == (35_000, 6)
