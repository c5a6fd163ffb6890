"""DWE files of the conformance folder, bit for bit, by both back ends and both kinds of kernels."""

import json

import numpy as np
import pytest

import embmap

FILLER = 2**32 - 1  # what the original returns for words that are not there
ONE_SYMBOL = "single_symbol_model_B.dwe"
GOOD = pytest.mark.conformance_files("dwe/*.dwe", where=lambda path: path.name != ONE_SYMBOL)

MADE_FROM = {"A": "t3_A.dwe", "B": "jump_ragged_B.dwe"}
READ = ("A_minor7", "B_minor7", "B_scale_neg", "B_scale_inf", "B_scale_zero")
READ_WITH_PROBLEMS = ("B_scale_inf", "B_scale_zero")
CANNOT_BE_DETECTED = "A_T_2"  # a block file whose number of steps was lowered
# Opened, because opening does not look at the damage; reading and verifying find it.
FOUND_BY_READING = (
    *("A_C_12", "A_C_4", "A_K_9", "A_V_18", "A_chunk_addr_0", "A_chunk_addr_N"),
    *("A_chunk_addr_last", "A_chunk_state_small", "A_data_flip", "A_freq_ffff"),
    *("A_trunc_data_fixed_size", "B_J_6", "B_J_8", "B_K_6", "B_V_28", "B_V_30", "B_data_flip"),
    *("B_data_flip_tail", "B_freq_ffff", "B_freq_sum_4097", "B_freq_zero", "B_jump_off_end"),
    *("B_jump_off_row1", "B_jump_state_0", "B_jump_state_flip", "B_jump_state_small"),
    "B_trunc_data_fixed_size",
)


def same(found, expected):
    """Check that two arrays are equal to the bit, any NaN for any NaN."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def tensor_of(path):
    """The integers (T, V, K) beside a file, and the numbers they mean."""
    with np.load(path.with_suffix(".npz")) as known:
        integers, scale = known["quantized"], np.float32(known["scale_factor"])
    return integers, integers.astype(np.float32) * scale


def answers_of(path):
    """What the original program answers about a file."""
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


@GOOD
def test_every_file_gives_its_tensor(conformance_file, backend, kernel):
    integers, numbers = tensor_of(conformance_file)
    known = answers_of(conformance_file)
    with embmap.open(conformance_file, backend=backend) as f:
        assert (f.format, f.layout) == ("dwe", {"A": "blocks", "B": "stream"}[known["layout"]])
        assert f.shape == np.moveaxis(integers, 0, 1).shape
        assert f.scale == known["scale_factor"]
        info = json.loads(json.dumps(f.info(), allow_nan=False))
        assert info["group"] == known.get("chunk_size", known.get("jump_interval"))
        for t in range(len(integers)):
            same(np.asarray(f.at(t).vectors.quantized), integers[t])
            same(np.asarray(f.at(t).vectors), numbers[t])
        same(np.asarray(f.vectors), np.ascontiguousarray(numbers.swapaxes(0, 1)))
        same(np.asarray(f.at().vectors), numbers[-1])
        assert f.verify().problems == []


@GOOD
def test_any_rows_are_those_of_the_whole(conformance_file, backend, kernel):
    integers, numbers = tensor_of(conformance_file)
    n_steps, n, _ = integers.shape
    rng = np.random.default_rng(0)
    rows = rng.integers(-n, n, 12)
    spans = [slice(0, n), slice(1, n // 2), slice(n // 3, n // 3 + 5), slice(n, 0, -2)]
    with embmap.open(conformance_file, backend=backend) as f:
        f.cache_nbytes = 0 if kernel == "numba" else f.cache_nbytes
        for t in {0, n_steps // 2, n_steps - 1, int(rng.integers(n_steps))}:
            for matrix, whole in (
                (f.at(t).vectors, numbers[t]),
                (f.at(t).vectors.quantized, integers[t]),
            ):
                same(matrix[rows], whole[rows])
                for row in rows[:3].tolist():
                    same(matrix[row], whole[row])
                for span in spans:
                    same(matrix[span], whole[span])
                joined = [block for _, block in matrix.blocks(7)]
                same(np.concatenate(joined), whole)
        over_time = numbers.swapaxes(0, 1)
        same(f[rows], over_time[rows])
        same(f[rows.tolist()], over_time[rows])
        for row in rows[:3].tolist():
            same(f[row], over_time[row])
        for span in spans[1:]:
            same(f[span], over_time[span])
        f.prefetch(rows)


@GOOD
def test_words_given_to_a_file_name_its_rows(conformance_file, backend):
    _, numbers = tensor_of(conformance_file)
    words = [f"wörd{i}" for i in range(numbers.shape[1])]
    with embmap.open(conformance_file, backend=backend, vocab=words) as f:
        assert list(f) == words
        picked = [0, len(words) - 1, len(words) // 2]
        names = [words[i] for i in picked]
        for i, name in zip(picked, names, strict=True):
            same(f[name], numbers[:, i])
            same(f.at(0)[name], numbers[0, i])
        same(f[names], numbers[:, picked].swapaxes(0, 1))
        same(f.batch(names), numbers[:, picked].swapaxes(0, 1))
        assert f.find([*names, "word"]).tolist() == [*picked, -1]
        if len(words) > 1:
            (other,) = f.most_related(names[0], 0, 1)
            assert other.word == words[other.row]


@GOOD
def test_queries_are_answered_as_the_original_does(conformance_file, backend, kernel):
    integers, _ = tensor_of(conformance_file)
    known = answers_of(conformance_file)
    with embmap.open(conformance_file, backend=backend) as f:
        square = np.float32(f.scale) * np.float32(f.scale)

        def scores_are(neighbors, products):
            rows = [each.row for each in neighbors]
            expected = products[rows].astype(np.float32) * square
            assert [each.score for each in neighbors] == expected.tolist()
            assert {each.word for each in neighbors} <= {None}

        for query in known["pairwise_trajectories"]:
            found = f.similarity_over_time(query["words1"], query["words2"])
            assert found.dtype == np.float32
            assert found.view(np.uint32).tolist() == query["f32_bits"]
        for query in known["most_related_to_at_t"]:
            step = integers[query["t"]].astype(np.int32)
            at_most = min(query["amt"], len(f) - 1)
            several = f.most_related(query["target_words"], query["t"], at_most)
            assert [[each.row for each in found] for found in several] == [
                row[:at_most] for row in query["result"]
            ]
            for word, row in zip(query["target_words"], query["result"], strict=True):
                expected = [other for other in row if other != FILLER]
                if len(expected) < query["amt"]:
                    with pytest.raises(ValueError, match="other words"):
                        f.most_related(word, query["t"], query["amt"])
                found = f.most_related(word, query["t"], len(expected))
                assert [each.row for each in found] == expected
                scores_are(found, step @ step[word])
        for query in known["largest_changes_wrt"]:
            word, least = query["target_word"], (query["min_increasing"], query["min_decreasing"])
            found = f.largest_changes(word, query["amt"], *least)
            assert [each.row for each in found] == query["result"]
            first, last = (integers[t].astype(np.int64) for t in (0, -1))
            scores_are(found, last @ last[word] - first @ first[word])


# -------------------------------------------------------------------------------------- bad files


def test_a_model_of_one_symbol_is_refused(conformance, backend):
    with pytest.raises(embmap.FormatError, match="timestep 0 cannot have 1 symbols"):
        embmap.open(conformance / "dwe" / ONE_SYMBOL, backend=backend)


@pytest.mark.conformance_files(
    "dwe/malformed/*.dwe", where=lambda path: path.stem in (*READ, CANNOT_BE_DETECTED)
)
def test_odd_files_are_read_right(conformance, conformance_file, backend):
    name = conformance_file.stem
    made_from = conformance / "dwe" / MADE_FROM[name[0]]
    expected, _ = tensor_of(made_from)
    if name == CANNOT_BE_DETECTED:
        # What was the difference of the step between two takes the place of the last step.
        with np.load(made_from.with_suffix(".npz")) as known:
            expected = known["residuals"][:2]
    with embmap.open(conformance_file, backend=backend) as f:
        assert f.num_timesteps == len(expected)
        for t, step in enumerate(expected):
            same(np.asarray(f.at(t).vectors.quantized), step)
            with np.errstate(invalid="ignore"):
                same(np.asarray(f.at(t).vectors), step.astype(np.float32) * np.float32(f.scale))
        report = f.verify()
        assert report.ok != (name in READ_WITH_PROBLEMS)
        assert report.ok or "scale factor" in report.problems[0].message


@pytest.mark.conformance_files(
    "dwe/malformed/*.dwe",
    where=lambda path: path.stem not in (*READ, CANNOT_BE_DETECTED, *FOUND_BY_READING),
)
def test_malformed_files_are_refused_when_they_are_opened(conformance_file, backend):
    with pytest.raises(embmap.FormatError) as caught:
        embmap.open(conformance_file, format="dwe", backend=backend)
    assert str(conformance_file) in str(caught.value)


@pytest.mark.conformance_files(
    "dwe/malformed/*.dwe", where=lambda path: path.stem in FOUND_BY_READING
)
def test_what_opening_lets_through_is_refused_when_read_and_reported(
    conformance_file, backend, kernel
):
    with embmap.open(conformance_file, backend=backend) as f:
        report = f.verify()
        assert not report.ok
        assert all("timestep" in problem.message for problem in report.problems)
        with pytest.raises(embmap.FormatError, match="timestep") as caught:
            np.asarray(f.vectors)
        assert str(conformance_file) in str(caught.value)
        refused = 0
        for t in range(f.num_timesteps):
            try:
                np.asarray(f.at(t).vectors)
            except embmap.FormatError:
                refused += 1
        assert refused
