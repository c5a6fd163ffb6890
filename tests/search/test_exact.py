"""Exact search: the ranking that a brute-force comparison in float64 gives, from every storage."""

import ast
import gc
import math
import pickle
import re
import threading
import weakref
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import embmap
from embmap.codecs import kernels, product
from embmap.finalfusion import Quantized
from embmap.search import exact as exact_search
from embmap.search import ranking
from embmap.subwords import BucketIndexer, FloretIndexer
from embmap.vectors.product import ProductMatrix
from tests.kernels import needs_numba

METRICS = ["cosine", "dot", "euclidean"]
RNG = np.random.default_rng(7)


def names(n):
    return [f"w{i}" for i in range(n)]


def reference(rows, query, n, metric, excluded=()):
    """Row numbers and scores, one row after the other, in float64."""
    rows, query = np.asarray(rows, np.float64), np.asarray(query, np.float64)
    ranking = []
    for i, row in enumerate(rows):
        if i in excluded or not np.isfinite(row).all():
            continue
        if metric == "dot":
            score = float(row @ query)
        elif metric == "euclidean":
            score = -float(np.linalg.norm(row - query))
        else:
            lengths = np.linalg.norm(row) * np.linalg.norm(query)
            score = float(row @ query / lengths) if lengths else 0.0
        ranking.append((i, score))
    return sorted(ranking, key=lambda item: (-item[1], item[0]))[:n]


def agrees(found, expected, tolerance=1e-9):
    """The same scores, and the same rows unless two scores differ only by rounding."""
    assert len(found) == len(expected)
    scores = np.array([neighbor.score for neighbor in found])
    expected_scores = np.array([score for _, score in expected])
    scale = max(np.abs(expected_scores).max(initial=0), 1e-300)
    np.testing.assert_allclose(scores, expected_scores, atol=tolerance * scale, rtol=0)
    gaps = np.abs(np.diff(expected_scores)) / scale
    for i, (neighbor, (row, _)) in enumerate(zip(found, expected, strict=True)):
        apart = gaps[max(i - 1, 0) : i + 1]
        if len(apart) and (apart > 10 * tolerance).all() and i < len(expected) - 1:
            assert neighbor.row == row
        assert neighbor.word in (None, f"w{neighbor.row}")


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks and many spans in a small matrix."""
    monkeypatch.setattr(exact_search, "_BLOCK_NBYTES", 1 << 12)
    monkeypatch.setattr(exact_search, "_SCORES", 200)
    monkeypatch.setattr(exact_search, "_PARALLEL", 1)
    monkeypatch.setattr(ranking, "_POOL", 8)
    monkeypatch.setenv("EMBMAP_THREADS", "3")


def dense(tmp_path, rows, backend="mmap", **parts):
    n_words = len(rows) - (parts["subwords"].n_buckets if "subwords" in parts else 0)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", names(n_words), rows, **parts)
    return embmap.open(path, backend=backend)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "f4", "f8"])
def test_rankings_are_those_of_brute_force(tmp_path, small_blocks, backend, metric, dtype):
    rows = (RNG.standard_normal((400, 12)) * 20).astype(dtype)
    with dense(tmp_path, rows, backend) as file:
        queries = RNG.standard_normal((12, 12))
        for m in (1, 3, 12):
            answers = file.most_similar(queries[:m], 7, metric)
            for query, found in zip(queries[:m], answers, strict=True):
                agrees(found, reference(rows, query, 7, metric))
        for word, found in zip(
            ("w3", "w9"), file.most_similar(["w3", "w9"], 5, metric), strict=True
        ):
            row = int(word[1:])
            agrees(found, reference(rows, rows[row], 5, metric, {row}))
            assert found == file.most_similar(word, 5, metric)


def test_results_do_not_depend_on_blocks_threads_or_company(tmp_path, monkeypatch, backend):
    rows = RNG.standard_normal((2000, 16)).astype("f4")
    rows[500:1000] = rows[:500]  # ties
    answers = []
    for nbytes, threads in ((1 << 12, "1"), (1 << 13, "4"), (1 << 23, "2")):
        monkeypatch.setattr(exact_search, "_BLOCK_NBYTES", nbytes)
        monkeypatch.setattr(exact_search, "_SCORES", nbytes >> 6)
        monkeypatch.setattr(exact_search, "_PARALLEL", 1)
        monkeypatch.setenv("EMBMAP_THREADS", threads)
        with dense(tmp_path, rows, backend) as file:
            for m in (1, 2, 30):
                found = file.most_similar(names(2000)[:m], 12)
                answers.append(found[0])
    assert all(answer == answers[0] for answer in answers)
    assert (answers[0][0].row, round(answers[0][0].score, 6)) == (500, 1)


@pytest.mark.parametrize("metric", METRICS)
def test_vectors_too_long_for_one_product_are_ranked_alike(tmp_path, metric):
    rows = RNG.standard_normal((40, 20_000)).astype("f4")
    with dense(tmp_path, rows) as file:
        for m in (1, 6):
            for i, found in enumerate(file.most_similar(rows[:m], 5, metric)):
                agrees(found, reference(rows, rows[i], 5, metric))


@pytest.mark.parametrize("metric", METRICS)
def test_of_equal_scores_the_smaller_rows_come_first(tmp_path, small_blocks, metric):
    rows = np.tile(RNG.standard_normal((3, 9)).astype("f4"), (700, 1))
    with dense(tmp_path, rows) as file:
        found = file.most_similar(rows[1], 20, metric)
        best = reference(rows, rows[1], 20, metric)[0][0]
        assert [neighbor.row for neighbor in found] == list(range(best, best + 60, 3))
        zeros = file.most_similar(np.zeros(9), 4, "cosine", exclude=[1])
        assert [(neighbor.row, neighbor.score) for neighbor in zeros] == [
            (0, 0), (2, 0), (3, 0), (4, 0),
        ]  # fmt: skip


def test_rows_that_are_not_finite_never_win(tmp_path, small_blocks):
    rows = RNG.standard_normal((300, 4)).astype("f4")
    rows[10, 1], rows[20, 0], rows[30], rows[40] = np.nan, np.inf, -np.inf, 0
    with dense(tmp_path, rows) as file:
        for metric in METRICS:
            for query in (rows[0], -rows[0]):
                found = file.most_similar(query, 300, metric)
                agrees(found, reference(rows, query, 300, metric))
                assert len(found) == 297
        with pytest.raises(ValueError, match="not finite"):
            file.most_similar("w10")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", [1e-38, 1e-25, 1e-12, 1e12, 1e19, 1e37])
def test_numbers_whose_squares_float32_cannot_hold_are_ranked_all_the_same(tmp_path, metric, size):
    rows = RNG.standard_normal((200, 6))
    rows[::2] *= size
    rows = rows.astype("f4")
    with dense(tmp_path, rows) as file:
        for query in (rows[0], rows[1], rows[0].astype("f8") * 1e30):
            agrees(file.most_similar(query, 9, metric), reference(rows, query, 9, metric))


@given(
    rows=arrays(
        np.float32,
        st.tuples(st.integers(1, 40), st.just(3)),
        elements=st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0, 1e-30, 1e30, np.inf, np.nan]),
    ),
    query=arrays(np.float64, 3, elements=st.sampled_from([0.0, 1.0, -2.0, 1e-20, 1e20])),
    n=st.integers(0, 45),
    metric=st.sampled_from(METRICS),
)
def test_whatever_the_numbers_brute_force_agrees(tmp_path_factory, rows, query, n, metric):
    with dense(tmp_path_factory.mktemp("any"), rows) as file:
        agrees(file.most_similar(query, n, metric), reference(rows, query, n, metric), 1e-7)


def test_only_rows_of_words_are_neighbors(tmp_path, backend):
    indexer = BucketIndexer(3, 6, 5)
    rows = RNG.standard_normal((50 + 32, 8)).astype("f4")
    with dense(tmp_path, rows, backend, subwords=indexer) as file:
        found = file.most_similar(rows[60], 100)
        assert len(found) == 50
        agrees(found, reference(rows[:50], rows[60], 100, "cosine"))
        unknown = file.most_similar("w1w2w3", 5)
        agrees(unknown, reference(rows[:50], file["w1w2w3"], 5, "cosine"))
        both = file.most_similar(["w1w2w3", "w7"], 5)
        assert both == [unknown, file.most_similar("w7", 5)]
        assert file.similarity("w1w2w3", "w7") == pytest.approx(
            float(file["w1w2w3"] @ rows[7] / np.linalg.norm(rows[7])), abs=1e-6
        )


def test_a_file_without_words_gives_rows_and_one_of_subwords_alone_gives_none(tmp_path):
    rows = RNG.standard_normal((30, 4)).astype("f4")
    with embmap.open(embmap.cvc.write(tmp_path / "a.cvc", rows)) as file:
        found = file.most_similar(file[3], 2)
        agrees(found, reference(file[:], file[3], 2, "cosine"), 1e-6)
        assert (found[0].row, found[0].word) == (3, None)
        assert file.most_similar(file[3], 1, exclude=[3])[0].row != 3
    path = embmap.finalfusion.write(tmp_path / "b", None, rows[:8], subwords=FloretIndexer(2, 3, 8))
    with embmap.open(path) as file:
        assert file.most_similar("anything") == []


@pytest.mark.parametrize("compression", ["fp16", "int8"])
def test_compressed_files_are_searched_as_they_decode(tmp_path, small_blocks, compression):
    rows = RNG.standard_normal((500, 8)).astype("f4")
    path = embmap.cvc.write(tmp_path / "a.cvc", rows, compression=compression, chunk_rows=64)
    with embmap.open(path, vocab=names(500)) as file:
        decoded = file[:]
        for metric in METRICS:
            found = file.most_similar(["w5", "w6"], 6, metric)
            agrees(found[1], reference(decoded, decoded[6], 6, metric, {6}), 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tokens_of_a_model_are_searched(tmp_path, dtype):
    rows = RNG.standard_normal((60, 8)).astype(dtype)
    path = embmap.embd.write(
        tmp_path / "a.weights", {"embeddings.word_embeddings.weight": rows}, vocab=names(50)
    )
    with embmap.open(path) as file:
        agrees(file.most_similar("w5", 60), reference(rows[:50], rows[5], 60, "cosine", {5}), 1e-6)


def test_bfloat16_tokens_are_searched(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    rows = RNG.standard_normal((60, 8)).astype(ml_dtypes.bfloat16)
    tensors = {"embeddings.word_embeddings.weight": rows}
    path = embmap.embd.write(tmp_path / "a.weights", tensors, vocab=names(60))
    with embmap.open(path) as file:
        agrees(file.most_similar("w5", 7), reference(rows, rows[5], 7, "cosine", {5}), 1e-6)
        assert file.most_similar(rows[5], 1)[0].row == 5


def test_unaligned_rows_are_searched_block_by_block(tmp_path, small_blocks):
    rows = RNG.standard_normal((400, 8)).astype("f4")
    path = dense(tmp_path, rows).path
    data = path.read_bytes()
    position = data.index(rows.tobytes())
    # One byte of padding more, and the chunk says so: legal, and no longer aligned.
    start = data.index(b"\x02\0\0\0", 12 + 8 + 400)
    start = next(
        i for i in range(start, position) if data[i : i + 4] == b"\x02\0\0\0" and i < position - 28
    )
    length = int.from_bytes(data[start + 4 : start + 12], "little")
    padding = position - (start + 12 + 16)
    shift = 1 if padding < 4 else -1
    changed = (
        data[: start + 4]
        + (length + shift).to_bytes(8, "little")
        + data[start + 12 : start + 28]
        + bytes(padding + shift)
        + data[position:]
    )
    path.write_bytes(changed)
    with embmap.open(path) as file:
        assert not file.vectors.mapped().flags.aligned
        for m in (1, 30):
            found = file.most_similar(names(400)[:m], 5)[0]
            agrees(found, reference(rows, rows[0], 5, "cosine", {0}))


def rotation(d):
    return np.linalg.qr(RNG.standard_normal((d, d)))[0].astype("f4")


@pytest.mark.parametrize("kernel", ["numpy", "numba"])
@pytest.mark.parametrize("k", [7, 256])
@pytest.mark.parametrize("projection", [None, "rotation", "any"])
@pytest.mark.parametrize("norms", [False, True])
def test_quantized_rows_are_searched_by_their_codes(
    tmp_path, small_blocks, monkeypatch, kernel, k, projection, norms
):
    if kernel == "numba":
        pytest.importorskip("numba", reason="numba is not installed")
    monkeypatch.setattr(kernels, "CHOICE", kernel)
    turned = {None: None, "rotation": rotation(12), "any": RNG.standard_normal((12, 12))}
    quantized = Quantized(
        RNG.integers(0, k, (600, 4), np.uint8),
        RNG.standard_normal((4, k, 3)).astype("f4"),
        turned[projection],
        RNG.random(600).astype("f4") if norms else None,
    )
    path = embmap.finalfusion.write(tmp_path / "a", names(600), None, quantized=quantized)
    with embmap.open(path) as file:
        rows = file.vectors[:]
        monkeypatch.setattr(ProductMatrix, "_span", None if projection != "any" else
                            ProductMatrix._span)  # fmt: skip
        for metric in METRICS:
            for word, found in zip(
                ("w1", "w2"), file.most_similar(["w1", "w2"], 9, metric), strict=True
            ):
                row = int(word[1:])
                agrees(found, reference(rows, rows[row], 9, metric, {row}), 1e-6)


def test_many_queries_of_quantized_rows_decode_them_once(tmp_path, small_blocks):
    quantized = Quantized(
        RNG.integers(0, 9, (600, 4), np.uint8), RNG.standard_normal((4, 9, 3)).astype("f4")
    )
    path = embmap.finalfusion.write(tmp_path / "a", names(600), None, quantized=quantized)
    with embmap.open(path) as file:
        found = file.most_similar(names(50), 5)
        assert [file.most_similar(word, 5) for word in names(50)] == found


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("dim", [2, 3, 6, 10])
def test_leading_columns_of_quantized_rows_need_only_their_codes(
    tmp_path, small_blocks, monkeypatch, dim, norms
):
    quantized = Quantized(
        RNG.integers(0, 7, (600, 4), np.uint8),
        RNG.standard_normal((4, 7, 3)).astype("f4"),
        None,
        RNG.random(600).astype("f4") if norms else None,
    )
    path = embmap.finalfusion.write(tmp_path / "a", names(600), None, quantized=quantized)
    among = np.arange(0, 600, 9)
    with embmap.open(path) as file:
        cut = file.vectors[:, :dim]
        if dim % 3 == 0:
            monkeypatch.setattr(ProductMatrix, "_span", None)
        for metric in METRICS:
            found = file.most_similar("w9", 9, metric, dim=dim)
            agrees(found, reference(cut, cut[9], 9, metric, {9}), 1e-6)
            found = file.most_similar("w9", 9, metric, dim=dim, among=among)
            others = set(range(600)) - set(among.tolist()) | {9}
            agrees(found, reference(cut, cut[9], 9, metric, others), 1e-6)


def test_a_code_without_a_centroid_is_named(tmp_path):
    codes = RNG.integers(0, 7, (50, 4), np.uint8)
    codes[31, 2] = 1
    quantized = Quantized(codes, RNG.standard_normal((4, 7, 3)).astype("f4"))
    path = embmap.finalfusion.write(tmp_path / "a", names(50), None, quantized=quantized)
    data = bytearray(path.read_bytes())
    data[data.index(codes.tobytes()) + 31 * 4 + 2] = 9
    path.write_bytes(data)
    with embmap.open(path) as file, pytest.raises(embmap.FormatError, match="codes of row 31"):
        file.most_similar("w1")


def test_table_sums_are_the_same_compiled_and_not(monkeypatch):
    pytest.importorskip("numba", reason="numba is not installed")
    codes = RNG.integers(0, 200, (1003, 9), np.uint8)
    tables = RNG.standard_normal((3, 9, 200)).astype("f4")
    sums = []
    for choice in ("numpy", "numba"):
        monkeypatch.setattr(kernels, "CHOICE", choice)
        sums.append(product.table_sums(codes, tables))
    assert np.array_equal(*sums)
    expected = tables[:, np.arange(9), codes].astype("f8").sum(axis=2)
    np.testing.assert_allclose(sums[0], expected, atol=1e-5)


def test_time_steps_of_dynamic_files_keep_their_own_similarity(tmp_path):
    integers = RNG.integers(-40, 40, (3, 30, 5), np.int16)
    path = embmap.dwe.write(tmp_path / "a.dwe", integers, scale=0.1, group=10)
    with embmap.open(path, vocab=names(30)) as file:
        last = integers[2] * 0.1
        agrees(file.most_similar("w4", 6), reference(last, last[4], 6, "cosine", {4}), 1e-6)
        assert file.similarity_over_time(["w1"], ["w2"]).shape == (1, 3)
        assert file.similarity("w1", "w2") == file.at(-1).similarity("w1", "w2")
        first = integers[0] * 0.1
        found = file.at(0).most_similar("w4", 6)
        agrees(found, reference(first, first[4], 6, "cosine", {4}), 1e-6)
        assert isinstance(file.most_related("w1", -1, 1)[0], embmap.Neighbor)


def test_analogies_are_asked_with_unit_vectors(tmp_path):
    rows = RNG.standard_normal((80, 6)).astype("f4") * RNG.random((80, 1)).astype("f4") * 9
    units = rows / np.linalg.norm(rows.astype("f8"), axis=1, keepdims=True)
    with dense(tmp_path, rows) as file:
        found = file.analogy("w1", "w2", "w3", 5)
        target = units[2] - units[1] + units[3]
        agrees(found, reference(units, target, 5, "cosine", {1, 2, 3}), 1e-7)
        assert file.analogy(["w1", "w4"], ["w2", "w4"], ["w3", "w4"], 5)[0] == found
        assert file.analogy([], [], []) == []
        with pytest.raises(ValueError, match="same length"):
            file.analogy(["w1"], ["w2"], ["w3", "w4"])
        with pytest.raises(embmap.UnknownWordError):
            file.analogy("w1", "w2", "none")


def test_exclude_and_n(tmp_path):
    rows = RNG.standard_normal((20, 6)).astype("f4")
    with dense(tmp_path, rows) as file:
        assert file.most_similar("w3", 1, exclude=())[0].word == "w3"
        found = file.most_similar("w3", 99, exclude=["w3", 5, -1, "not a word"])
        assert {neighbor.row for neighbor in found} == set(range(20)) - {3, 5, 19}
        assert len(file.most_similar("w3", 99)) == 19
        assert file.most_similar("w3", 0) == []
        assert file.most_similar(["w3", "w4"], 0) == [[], []]
        assert file.most_similar([]) == []
        assert file.most_similar(rows[:0]) == []
        assert file.most_similar(rows[4].tolist(), 1)[0].row == 4
        assert file.most_similar(np.array(["w3"]), 2) == [file.most_similar("w3", 2)]
        for wrong in (rows[0, :3], rows[np.newaxis, :2], 5, np.zeros((2, 2, 6)), [np.nan] * 6):
            with pytest.raises(ValueError):  # noqa: PT011
                file.most_similar(wrong)
        for arguments in (("w3", -1), ("w3", 1, "manhattan")):
            with pytest.raises(ValueError):  # noqa: PT011
                file.most_similar(*arguments)
        for wrong in ({"w3": 1}, b"w3", None):
            with pytest.raises(TypeError):
                file.most_similar(wrong)
        with pytest.raises(TypeError):
            file.most_similar("w3", exclude="w3")
        with pytest.raises(IndexError):
            file.most_similar("w3", exclude=[20])
        with pytest.raises(embmap.UnknownWordError):
            file.most_similar("none")
        with pytest.raises(embmap.UnknownWordError):
            file.similarity("w1", "none")


def test_similarity_is_a_cosine(tmp_path):
    rows = np.array([[3, 4], [4, 3], [0, 0], [-3, -4]], "f4")
    with dense(tmp_path, rows) as file:
        assert file.similarity("w0", "w1") == pytest.approx(0.96)
        assert file.similarity("w0", "w0") == pytest.approx(1)
        assert file.similarity("w0", "w3") == pytest.approx(-1)
        assert file.similarity("w0", "w2") == 0


def test_threads_may_search_one_file(tmp_path, small_blocks):
    rows = RNG.standard_normal((500, 8)).astype("f4")
    with dense(tmp_path, rows) as file:
        expected = [dense(tmp_path, rows).most_similar(f"w{i}") for i in range(8)]
        found = [None] * 8

        def search(i):
            found[i] = file.most_similar(f"w{i}")

        threads = [threading.Thread(target=search, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == expected


def test_a_searched_file_closes_goes_and_is_pickled(tmp_path):
    file = dense(tmp_path, RNG.standard_normal((50, 8)).astype("f4"))
    found = file.most_similar("w1")
    with pickle.loads(pickle.dumps(file)) as again:
        assert again.most_similar("w1") == found
    gone = weakref.ref(file)
    gc.disable()
    try:
        file.close()
        with pytest.raises(embmap.ClosedError):
            file.most_similar("w1")
        del file
        assert gone() is None
    finally:
        gc.enable()


def test_a_search_never_holds_more_than_a_few_blocks(tmp_path):
    import tracemalloc

    rows = RNG.standard_normal((100_000, 64)).astype("f4")
    with dense(tmp_path, rows) as file:
        file.most_similar("w1")
        tracemalloc.start()
        try:
            file.most_similar("w1")
            file.most_similar(rows[5], 10, "euclidean")
            assert tracemalloc.get_traced_memory()[1] < rows.nbytes // 4
        finally:
            tracemalloc.stop()


# Known answers, and what others say


def test_the_neighbors_that_finalfusion_and_its_tests_know(conformance):
    folder = conformance / "finalfusion"
    with embmap.open(folder / "py-similarity.fifu") as file:
        found = file.most_similar("Berlin", 40)
        assert [neighbor.word for neighbor in found[:3]] == ["Potsdam", "Hamburg", "Leipzig"]
        scores = [neighbor.score for neighbor in found]
        assert scores[:3] == pytest.approx([0.88485, 0.87575, 0.85514], abs=1e-5)
        assert len(found) == 40
    with embmap.open(folder / "rs-similarity.fifu") as file:  # rows that are not of unit length
        assert [neighbor.word for neighbor in file.most_similar("Berlin", 40)] == [
            neighbor.word for neighbor in found
        ]
    with embmap.open(folder / "py-simple_vocab.fifu") as file:
        best = file.analogy("Paris", "Frankreich", "Berlin", 1)[0]
        assert best.word == "Deutschland"
        assert best.score == pytest.approx(0.76461, abs=1e-5)
    with embmap.open(folder / "gen-fasttext.fifu") as file:
        for word, expected in (
            ("über", {"auf": 0.568513, "vor": 0.551551, "durch": 0.547349}),
            ("unknown", {"einer": 0.691177, "und": 0.576449, "des": 0.570398}),
        ):
            found = file.most_similar(word, 3)
            assert [neighbor.word for neighbor in found] == list(expected)
            scores = [neighbor.score for neighbor in found]
            assert scores == pytest.approx(list(expected.values()), abs=1e-6)


@pytest.fixture
def unit_file(tmp_path):
    rows = RNG.standard_normal((400, 20))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("f4")
    with dense(tmp_path, rows) as file:
        yield file


def test_finalfusion_finds_the_same(unit_file):
    finalfusion = pytest.importorskip("finalfusion", reason="finalfusion is not installed")
    theirs = finalfusion.load_finalfusion(unit_file.path)
    for word in ("w0", "w17"):
        expected = theirs.word_similarity(word, 12)
        found = unit_file.most_similar(word, 12)
        assert [neighbor.word for neighbor in found] == [result.word for result in expected]
        scores = [result.similarity for result in expected]
        assert [neighbor.score for neighbor in found] == pytest.approx(scores, abs=1e-5)
    expected = theirs.analogy("w1", "w2", "w3", 6)
    found = unit_file.analogy("w1", "w2", "w3", 6)
    assert [neighbor.word for neighbor in found] == [result.word for result in expected]


@pytest.mark.filterwarnings("ignore")
def test_gensim_finds_the_same(unit_file):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    theirs = models.KeyedVectors(20)
    theirs.add_vectors(list(unit_file), unit_file[:] * np.linspace(1, 9, 400, dtype="f4")[:, None])
    for word in ("w0", "w17"):
        expected = theirs.most_similar(word, topn=12)
        found = unit_file.most_similar(word, 12)
        assert [neighbor.word for neighbor in found] == [key for key, _ in expected]
        scores = [score for _, score in expected]
        assert [neighbor.score for neighbor in found] == pytest.approx(scores, abs=1e-5)
    expected = theirs.most_similar(positive=["w2", "w3"], negative=["w1"], topn=6)
    found = unit_file.analogy("w1", "w2", "w3", 6)
    assert [neighbor.word for neighbor in found] == [key for key, _ in expected]


def test_the_snippets_of_the_document_run_and_say_what_they_return(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "search.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    n_checked = 0
    for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        lines = snippet.splitlines()
        for statement in ast.parse(snippet).body:
            promised = re.search(r"# => (.*)", lines[statement.lineno - 1])
            if promised:
                assert repr(eval(ast.unparse(statement), names)) == promised[1]
                n_checked += 1
            else:
                exec(ast.unparse(statement), names)
    assert n_checked >= 8


HUGE = 1e308
CORNERS = np.array(
    [[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, -1, -1], [-1, -1, -1, -1], [1, 1, 1, 0.5], [0, 0, 0, 0.1]]
)
EXTREME = {
    "large": CORNERS * HUGE,
    "small": CORNERS * 1e-300,
    "mixed": CORNERS * [[HUGE], [1e-300], [1], [HUGE], [1e150], [1e-160]],
}


def exact_order(rows, query, metric):
    """Rank rows with whole numbers of any length, and fractions."""
    query = [Fraction(x) for x in query.tolist()]
    keys = []
    for row in rows.tolist():
        row = [Fraction(x) for x in row]
        dot = sum(a * b for a, b in zip(row, query, strict=True))
        if metric == "dot":
            keys.append(dot)
        elif metric == "euclidean":
            keys.append(-sum((a - b) ** 2 for a, b in zip(row, query, strict=True)))
        else:  # the square of the cosine, with its sign
            squares = sum(a * a for a in row) * sum(b * b for b in query)
            keys.append((1 if dot > 0 else -1) * dot * dot / squares)
    return sorted(range(len(rows)), key=lambda i: (-keys[i], i)), keys


@pytest.mark.parametrize(
    ("numbers", "metric"),
    [
        ("large", "cosine"),
        ("large", "dot"),
        ("large", "euclidean"),
        ("small", "cosine"),
        ("small", "euclidean"),
        ("mixed", "cosine"),
    ],
)
@pytest.mark.parametrize("n_copies", [1, 2000])
def test_numbers_at_the_ends_of_float64_are_ranked_exactly(tmp_path, numbers, metric, n_copies):
    rows = EXTREME[numbers]
    stored = np.tile(rows, (n_copies, 1))
    words = [f"w{i}" for i in range(len(stored))]
    embmap.finalfusion.write(tmp_path / "a", words, stored)
    with embmap.open(tmp_path / "a") as file:
        for i, query in enumerate(rows):
            found = file.most_similar(query, n=len(rows) * n_copies, metric=metric)
            order, keys = exact_order(rows, query, metric)
            ranked = [key for key in sorted(keys, reverse=True) for _ in range(n_copies)]
            assert [keys[near.row % len(rows)] for near in found] == ranked
            if metric == "cosine":
                assert found[0].score == pytest.approx(1)
                cosine = math.copysign(math.sqrt(abs(keys[order[-1]])), keys[order[-1]])
                assert found[-1].score == pytest.approx(cosine)
                assert file.similarity(words[i], words[i]) == pytest.approx(1)
            assert not any(math.isnan(near.score) for near in found)
            few = file.most_similar(query, n=2, metric=metric)
            assert few == found[:2]


@needs_numba
@pytest.mark.parametrize("kernel", ["numpy", "numba"])
def test_scattered_rows_are_compared_where_they_lie(tmp_path, small_blocks, monkeypatch, kernel):
    monkeypatch.setattr(kernels, "CHOICE", kernel)
    rows = RNG.standard_normal((1000, 37)).astype("f4")
    rows[::20] *= np.float32(1e-30)
    rows[5::20] *= np.float32(1e25)
    rows[40:60] = 0
    rows[60, 3], rows[61, 4] = np.nan, np.inf
    among = RNG.permutation(1000)[:90]
    others = set(range(1000)) - set(among.tolist())
    for metric in METRICS:
        with dense(tmp_path, rows) as file:
            for query in (rows[3], rows[0]):
                found = file.most_similar(query, 80, metric, among=among)
                agrees(found, reference(rows, query, 80, metric, others))
                file.most_similar(query)  # the lengths are known from now on
                assert file.most_similar(query, 80, metric, among=among) == found
                both = file.most_similar([query, query], 80, metric, among=among)
                assert both == [found, found]
