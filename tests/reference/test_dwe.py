"""The reference implementation of DWE does what the format says, worked out by hand, and answers
what the original program answers for every file of the conformance folder."""

import hashlib
import json
import math
import struct

import numpy as np
import pytest

from tests.reference import dwe as reference

FILLER = 2**32 - 1  # what the original returns for words that are not there
# Not what the builder of the original writes: differences wrap, or a Python encoder made the file.
WRAPS = ("wrap_residual_A.dwe", "wrap_residual_B.dwe")
NATURAL_ORDER = "exotic_natural_order_B.dwe"
ONE_SYMBOL = "single_symbol_model_B.dwe"

GOOD = pytest.mark.conformance_files("dwe/*.dwe", where=lambda path: path.name != ONE_SYMBOL)
MALFORMED = pytest.mark.conformance_files("dwe/malformed/*.dwe")
MADE_FROM = {"A": "t3_A.dwe", "B": "jump_ragged_B.dwe"}
READ = ("A_minor7", "B_minor7", "B_scale_neg", "B_scale_inf", "B_scale_zero")
READ_WITH_PROBLEMS = ("B_scale_inf", "B_scale_zero")
CANNOT_BE_DETECTED = ("A_T_2",)
# Only decoding finds these; all others are refused before.
FOUND_BY_DECODING = (
    "A_C_12",
    "A_K_9",
    "A_chunk_addr_last",
    "A_chunk_state_small",
    "A_data_flip",
    "B_J_6",
    "B_J_8",
    "B_K_6",
    "B_K_max",
    "B_V_28",
    "B_data_flip",
    "B_data_flip_tail",
    "B_jump_state_flip",
)


def random_values(shape, spread, seed=1):
    """Steps that differ little from each other."""
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.integers(-spread, spread + 1, shape), axis=0).astype(np.int16)


# ------------------------------------------------------------------------------------- the pieces


def test_frequencies_are_packed_as_in_the_example_of_the_facts():
    values = [0x167, 0x289, 0x3AB, 0x0CD, 0x5EF]
    packed = struct.pack("<4H", 0x0167, 0x2893, 0xAB0C, 0xD5EF)
    halfwords = list(struct.unpack("<4H", packed))
    assert reference.pack12(values) == halfwords
    assert reference.unpack12(halfwords, 5) == values


@pytest.mark.parametrize(
    ("values", "halfwords"),
    [
        ([0xFFF], [0x0FFF]),
        ([0x123, 0x456], [0x0012, 0x3456]),
        ([0x123, 0x456, 0x789], [0x0001, 0x2345, 0x6789]),
        ([0x123, 0x456, 0x789, 0xABC], [0x1234, 0x5678, 0x9ABC]),
    ],
)
def test_the_padding_of_packed_frequencies_is_on_the_left(values, halfwords):
    assert reference.pack12(values) == halfwords
    assert reference.unpack12(halfwords, len(values)) == values
    n_symbols = len(values) + 1
    assert len(halfwords) == 3 * n_symbols // 4


@pytest.mark.parametrize(
    ("left", "right", "mean"),
    [
        (1, 2, 1),
        (-1, -2, -1),
        (-1, 0, 0),
        (3, -4, 0),
        (-7, 0, -3),
        (32767, 32767, 32767),
        (-32768, -32768, -32768),
        (-32768, 32767, 0),
    ],
)
def test_predictions_are_truncated_toward_zero(left, right, mean):
    assert reference.predict(np.int16([left]), np.int16([right])) == [mean]


def test_values_wrap_to_16_bits():
    wrapped = [reference.wrap_i16(value) for value in (32767, 32768, -32768, -32769, 65535)]
    assert wrapped == [32767, -32768, -32768, 32767, -1]
    # Between 30000 and 30000, -10000 is 40000 below what is expected, and stored as 25536.
    values = np.int16([30000, -10000, 30000]).reshape(3, 1, 1)
    residuals = reference.apply_tree(values, wrap=True)
    assert residuals.ravel().tolist() == [30000, 25536, 30000]
    np.testing.assert_array_equal(reference.undo_tree(residuals), values, strict=True)
    with pytest.raises(ValueError, match="step 1 does not fit"):
        reference.apply_tree(values)


def test_parents_come_before_children_from_left_to_right():
    assert reference.tree_order(2) == [0, 1]
    assert reference.tree_order(3) == [0, 2, 1]
    assert reference.tree_order(4) == [0, 3, 1, 2]
    assert reference.tree_order(9) == [0, 8, 4, 2, 1, 3, 6, 5, 7]
    for n in range(2, 40):
        assert sorted(reference.tree_order(n)) == list(range(n))


def test_the_coder_reads_a_word_after_the_symbol_that_needs_it():
    # Slot 0 is of symbol 7, whose frequency is 1024: 0x10000 / 4096 * 1024 = 0x4000, too low.
    model = {7: 1024, 9: 3072}
    start, end = (0, 0x10000), (1, 0x4000ABCD)
    assert reference.decode_symbols([0xABCD], start, model, 1) == ([7], end)
    with pytest.raises(reference.InvalidFile, match="runs out of halfwords"):
        reference.decode_symbols([], start, model, 1)
    encoder = reference.Encoder()
    encoder.state = 0x4000ABCD
    encoder.push([7], model)
    assert (encoder.state, encoder.halfwords) == (0x10000, [0xABCD])


def test_models_are_those_of_the_rule_worked_out_by_hand():
    model = reference.best_model
    assert list(model([1, 0, 0, 0]).items()) == [(0, 3072), (1, 1024)]
    # 1365 each, and the unit left goes to the first of those that gain the same.
    assert list(model([5, -1, 3]).items()) == [(-1, 1366), (3, 1365), (5, 1365)]
    assert list(model([5, 5]).items()) == [(5, 4095), (6, 1)]
    assert list(model([32767]).items()) == [(32767, 4095), (-32768, 1)]
    assert list(model([-1] * 10**6 + [4]).items()) == [(-1, 4095), (4, 1)]
    assert reference.best_model(list(range(4096))) == dict.fromkeys(range(4096), 1)
    with pytest.raises(ValueError, match="4097 different symbols"):
        model(list(range(4097)))


@pytest.mark.parametrize("seed", range(5))
def test_moving_a_unit_makes_no_model_better(seed):
    symbols = np.random.default_rng(seed).geometric(0.02 + 0.1 * seed, 3000).tolist()
    model = reference.best_model(symbols)
    assert sum(model.values()) == 4096
    assert list(model) == sorted(model, key=lambda s: (-model[s], s))
    gains, losses = {}, {}
    for s, f in model.items():
        gains[s] = symbols.count(s) * math.log2((f + 1) / f)
        losses[s] = symbols.count(s) * math.log2(f / (f - 1)) if f > 1 else math.inf
    for buyer in model:
        assert all(gains[buyer] <= losses[seller] for seller in model if seller != buyer)


def test_no_more_symbols_come_from_a_word_than_the_guard_allows():
    state, count = 2**32 - 1, 0
    while state >= reference.LOWEST:
        state -= state // 4096  # the least that a symbol takes
        count += 1
    assert count == reference.MOST_SYMBOLS
    # The bound is reached: the writer itself puts this many symbols in no word at all.
    model = {0: 4095, 1: 1}
    encoder = reference.Encoder()
    encoder.push([0] * (count - 1), model)
    assert encoder.halfwords == []
    symbols, end = reference.decode_symbols([], (0, encoder.state), model, count - 1)
    assert (set(symbols), end) == ({0}, (0, reference.LOWEST))
    with pytest.raises(reference.InvalidFile, match="cannot come from 0 u16"):
        reference.decode_symbols([], (0, encoder.state), model, count)


# -------------------------------------------------------------------------------------- the files

# Two steps of two words of one dimension, all of them 7: each model holds 7 and, since one symbol
# is not enough, 8. Encoding a 7 takes the state from 0x10000 + 16 n to 0x10000 + 16 (n + 1).
SEVENS = np.full((2, 2, 1), 7, np.int16)
SEVENS_MODEL = struct.pack("<4H", 2, 7, 8, 0x0FFF)
SEVENS_FILES = {
    "blocks": struct.pack("<4s8If", b"\0dwe", 1, 0, 24, 20, 2, 2, 1, 1, 0.5)
    + struct.pack("<2I", 12, 16)
    + SEVENS_MODEL
    + struct.pack("<2I", 20, 21)
    + SEVENS_MODEL
    + struct.pack("<2I", 22, 23)
    + struct.pack("<8H", *[0x0001, 0x0010] * 4),
    "stream": struct.pack("<4s8If", b"\0dwe", 1, 0, 22, 14, 2, 2, 1, 1, 0.5)
    + SEVENS_MODEL * 2
    + struct.pack("<8I", 0, 0x10040, 0, 0x10030, 0, 0x10020, 0, 0x10010),
}
each_layout = pytest.mark.parametrize("layout", reference.LAYOUTS)


@each_layout
def test_a_file_made_by_hand_is_read_and_written(layout):
    data = SEVENS_FILES[layout]
    assert reference.encode(SEVENS, 0.5, 1, layout) == data
    for forced in (None, layout):
        decoded = reference.decode(data, forced)
        assert (decoded.layout, decoded.group, decoded.scale) == (layout, 1, np.float32(0.5))
        assert decoded.problems == []
        np.testing.assert_array_equal(decoded.quantized, SEVENS, strict=True)
    (other,) = set(reference.LAYOUTS) - {layout}
    with pytest.raises(reference.InvalidFile, match=f"not {other}"):
        reference.decode(data, other)


@each_layout
@pytest.mark.parametrize(
    ("shape", "group", "spread"),
    [
        ((2, 1, 1), 1, 3),
        ((3, 4, 1), 2, 0),
        ((4, 6, 3), 6, 1),
        ((9, 6, 5), 3, 40),
        ((6, 20, 30), 1, 4),
        ((3, 10, 300), 5, 3000),
    ],
)
def test_what_is_encoded_is_what_is_decoded(layout, shape, group, spread):
    values = random_values(shape, spread)
    data = reference.encode(values, 0.1, group, layout, minor=3)
    decoded = reference.decode(data)
    np.testing.assert_array_equal(decoded.quantized, values, strict=True)
    np.testing.assert_array_equal(decoded.residuals, reference.apply_tree(values), strict=True)
    assert (decoded.layout, decoded.group, decoded.minor) == (layout, group, 3)
    assert decoded.scale == np.float32(0.1)
    if layout == "stream":
        assert reference.loose_ends(reference.parse(data)) == []


@pytest.mark.parametrize("group", [2, 3, 5, 7])
def test_the_last_group_of_a_stream_may_be_ragged(group):
    values = random_values((5, 7, 3), 20)
    decoded = reference.decode(reference.encode(values, 0.1, group, "stream"))
    np.testing.assert_array_equal(decoded.quantized, values, strict=True)
    parsed = reference.parse(reference.encode(values, 0.1, group, "stream"))
    assert [len(starts) for starts in parsed.starts] == [math.ceil(7 / group)] * 5


@each_layout
def test_steps_and_symbols_may_come_in_any_order(layout):
    values = random_values((5, 6, 3), 20)
    usual = reference.encode(values, 0.1, 2, layout)
    models = [dict(sorted(model.items())) for model in reference.parse(usual).models]
    gap = 3 if layout == "blocks" else 0
    for order in (range(5), range(4, -1, -1)):
        data = reference.encode(values, 0.1, 2, layout, models=models, order=order, gap=gap)
        assert data != usual
        np.testing.assert_array_equal(reference.decode(data).quantized, values, strict=True)


def test_a_chunk_that_does_not_end_in_the_lowest_state_is_refused():
    data = bytearray(SEVENS_FILES["blocks"])
    struct.pack_into("<H", data, 4 * 22 + 2, 0x0020)  # one symbol more
    with pytest.raises(reference.InvalidFile, match="chunk 0 of step 1 ends in state 0x10010"):
        reference.decode(bytes(data))


def test_a_group_that_does_not_end_where_the_next_starts_is_refused():
    data = bytearray(SEVENS_FILES["stream"])
    struct.pack_into("<I", data, 4 * 17, 0x10020)  # the state of the second group
    with pytest.raises(reference.InvalidFile, match="group 0 of step 0"):
        reference.decode(bytes(data))


def test_a_step_that_ends_where_no_step_starts_is_a_loose_end():
    data = bytearray(SEVENS_FILES["stream"])
    struct.pack_into("<2I", data, 4 * 18, 0, 0x10120)
    struct.pack_into("<2I", data, 4 * 20, 0, 0x10110)
    reference.decode(bytes(data))
    assert reference.loose_ends(reference.parse(bytes(data))) == [0, 1]


@pytest.mark.parametrize(
    ("layout", "address", "value"),
    [
        pytest.param(layout, address, value, id=f"{layout} {name} {value}")
        for layout in reference.LAYOUTS
        for name, address, values in [
            ("magic", 0, [0x65776401]),
            ("major", 1, [0, 2]),
            ("size", 3, [0, 1, 2**32 - 1]),
            ("steps", 5, [0, 1, 3, 2**32 - 1]),
            ("words", 6, [0, 2**31, 2**32 - 1]),
            ("dimensions", 7, [0, 2**31, 2**32 - 1]),
            ("group", 8, [0, 3, 2**32 - 1]),
        ]
        for value in values
    ],
)
def test_numbers_in_the_header_that_cannot_be_are_refused(layout, address, value):
    data = bytearray(SEVENS_FILES[layout])
    struct.pack_into("<I", data, 4 * address, value)
    with pytest.raises(reference.InvalidFile):
        reference.decode(bytes(data))


@each_layout
def test_files_that_end_early_are_refused(layout):
    data = SEVENS_FILES[layout]
    for length in range(0, len(data), 2):
        short = bytearray(data[:length])
        with pytest.raises(reference.InvalidFile):
            reference.decode(bytes(short))
        if length >= 40:
            struct.pack_into("<I", short, 12, length // 4)
            with pytest.raises(reference.InvalidFile):
                reference.decode(bytes(short))


@pytest.mark.parametrize("scale", [0.0, math.inf, math.nan])
def test_a_scale_factor_that_is_no_use_is_a_problem(scale):
    decoded = reference.decode(reference.encode(SEVENS, scale, 1))
    assert len(decoded.problems) == 1
    np.testing.assert_array_equal(decoded.quantized, SEVENS, strict=True)


# ------------------------------------------------------------------------------------ the queries


def test_dot_products_wrap_to_32_bits():
    values = np.full((2, 2, 2), -32768, np.int16)
    assert reference.dot_products(values, 0, 1).tolist() == [-(2**31)] * 2


def test_changes_are_those_of_the_rule_worked_out_by_hand():
    # The dot products of word 0 with each word: 0 at the first step, and these at the last.
    last = [1, 5, -5, 3, -7, 5, 0, 3]
    values = np.zeros((2, 8, 1), np.int16)
    values[1, :, 0] = last
    changes = reference.largest_changes
    assert changes(values, 0, 0) == []
    assert changes(values, 0, 3) == [4, 1, 5]
    assert changes(values, 0, 4) == [4, 1, 5, 2]
    assert changes(values, 0, 4, min_increasing=3) == [4, 1, 5, 3]
    assert changes(values, 0, 3, min_decreasing=2) == [4, 2, 1]
    assert changes(values, 0, 2, min_increasing=2) == [1, 5]
    # There are two that decrease: the third is the one that increases least, and comes last.
    assert changes(values, 0, 3, min_decreasing=3) == [4, 2, 6]
    assert changes(values, 0, 7) == [4, 1, 5, 2, 3, 7, 6]
    assert changes(values, 0, 100) == [4, 1, 5, 2, 3, 7, 6]
    with pytest.raises(ValueError, match="more increasing and decreasing"):
        changes(values, 0, 3, 2, 2)


# ------------------------------------------------------------------------- the conformance folder


@GOOD
def test_files_decode_to_their_known_values(conformance_file):
    data = conformance_file.read_bytes()
    answers = json.loads(conformance_file.with_suffix(".json").read_text(encoding="utf-8"))
    assert answers["sha256"] == hashlib.sha256(data).hexdigest()
    decoded = reference.decode(data)
    with np.load(conformance_file.with_suffix(".npz")) as expected:
        np.testing.assert_array_equal(decoded.quantized, expected["quantized"], strict=True)
        np.testing.assert_array_equal(decoded.residuals, expected["residuals"], strict=True)
        assert decoded.scale == expected["scale_factor"]
    group = "chunk_size" if answers["layout"] == "A" else "jump_interval"
    assert decoded.layout == {"A": "blocks", "B": "stream"}[answers["layout"]]
    assert decoded.group == answers[group]
    assert decoded.problems == []
    if decoded.layout == "stream":
        assert reference.loose_ends(reference.parse(data)) == []


@GOOD
def test_files_are_written_byte_for_byte(conformance_file):
    data, name = conformance_file.read_bytes(), conformance_file.name
    decoded = reference.decode(data)
    options = {}
    if name in WRAPS:
        with pytest.raises(ValueError, match="does not fit in 16 bits"):
            reference.encode(decoded.quantized, decoded.scale, decoded.group, decoded.layout)
        options["wrap"] = True
    if name == NATURAL_ORDER:
        models = reference.parse(data).models
        best = [reference.best_model(step.ravel().tolist()) for step in decoded.residuals]
        assert all(model != other for model, other in zip(models, best, strict=True))
        options |= {"order": range(len(models)), "models": models}
    written = reference.encode(
        decoded.quantized, decoded.scale, decoded.group, decoded.layout, **options
    )
    assert written == data


@GOOD
def test_queries_are_answered_as_the_original_does(conformance_file):
    answers = json.loads(conformance_file.with_suffix(".json").read_text(encoding="utf-8"))
    decoded = reference.decode(conformance_file.read_bytes())
    values = decoded.quantized
    for query in answers["pairwise_trajectories"]:
        words1, words2 = query["words1"], query["words2"]
        found = reference.similarity(values, decoded.scale, words1, words2)
        assert found.dtype == np.float32
        assert found.view(np.uint32).tolist() == query["f32_bits"]
        for word1, word2, row in zip(
            words1, words2, query.get("dot_products_i32", ()), strict=False
        ):
            products = [
                int(reference.dot_products(values, t, word1)[word2]) for t in range(len(row))
            ]
            assert products == row
    for query in answers["most_related_to_at_t"]:
        for word, row in zip(query["target_words"], query["result"], strict=True):
            expected = [other for other in row if other != FILLER]
            assert reference.most_related(values, query["t"], word, query["amt"]) == expected
    for query in answers["largest_changes_wrt"]:
        least = query["min_increasing"], query["min_decreasing"]
        found = reference.largest_changes(values, query["target_word"], query["amt"], *least)
        assert found == query["result"]


def test_a_model_of_one_symbol_is_refused(conformance):
    data = (conformance / "dwe" / ONE_SYMBOL).read_bytes()
    with pytest.raises(reference.InvalidFile, match="a model of 1 symbols"):
        reference.decode(data)


@MALFORMED
def test_malformed_files_are_refused_or_read_right(conformance, conformance_file):
    data, name = conformance_file.read_bytes(), conformance_file.stem
    if name not in (*READ, *CANNOT_BE_DETECTED):
        if name in FOUND_BY_DECODING:
            reference.parse(data)
        else:
            with pytest.raises(reference.InvalidFile):
                reference.parse(data)
        with pytest.raises(reference.InvalidFile):
            reference.decode(data)
        return
    decoded = reference.decode(data)
    assert bool(decoded.problems) == (name in READ_WITH_PROBLEMS)
    sound = reference.decode((conformance / "dwe" / MADE_FROM[name[0]]).read_bytes())
    expected = sound.quantized
    if name in CANNOT_BE_DETECTED:
        # What was the difference of the step between two takes the place of the last step.
        expected = sound.residuals[: len(decoded.quantized)]
    np.testing.assert_array_equal(decoded.quantized, expected, strict=True)
