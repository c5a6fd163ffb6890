"""What the conformance folder shows about DWE files, with files made here.

Files come from the reference encoder and are compared, through the public face, with what the
reference decoder and the reference queries say.
"""

import math
import pickle
import struct

import numpy as np
import pytest

import embmap
from embmap.formats.dwe import groups as groups_module
from tests.conformance.generated_dwe import (
    each_layout,
    reads_like_the_reference,
    same,
    scaled,
    shared_chunk,
    steps,
)
from tests.reference import dwe as reference

pytestmark = pytest.mark.slow

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
    words = reference.parse(data).halfwords
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
