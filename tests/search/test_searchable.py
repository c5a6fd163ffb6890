"""What can be asked about nearness: of all words or some, by sums of words, by leading numbers."""

import tracemalloc

import numpy as np
import pytest

import embmap
from embmap.formats.cvc.chunks import ChunkedMatrix
from embmap.search import exact as exact_search
from embmap.search import ranking

RNG = np.random.default_rng(11)
N, DIM = 400, 12
WORDS = [f"w{i}" for i in range(N)]
ROWS = (RNG.standard_normal((N, DIM)) * np.linspace(0.5, 4, N)[:, np.newaxis]).astype("f4")
SPREAD = np.sort(RNG.choice(N, 20, replace=False))
METRICS = ["cosine", "dot", "euclidean"]


@pytest.fixture(params=["one block", "small blocks"])
def blocks(request, monkeypatch):
    """Searches in one block, and in many blocks of several threads."""
    if request.param == "small blocks":
        for name, value in (("_BLOCK_NBYTES", 1 << 12), ("_GATHERED_NBYTES", 1 << 8)):
            monkeypatch.setattr(exact_search, name, value)
        for name, value in (("_SCORES", 100), ("_PARALLEL", 1)):
            monkeypatch.setattr(exact_search, name, value)
        monkeypatch.setattr(ranking, "_POOL", 8)
        monkeypatch.setenv("EMBMAP_THREADS", "3")


@pytest.fixture
def file(tmp_path, backend):
    path = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, ROWS)
    with embmap.open(path, backend=backend) as opened:
        yield opened


def scores_of(rows, query, metric="cosine"):
    """The scores of all rows, in float64."""
    rows, query = np.asarray(rows, np.float64), np.asarray(query, np.float64)
    if metric == "dot":
        return rows @ query
    if metric == "euclidean":
        return -np.linalg.norm(rows - query, axis=1)
    return rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)


def agrees(found, scores, among, n, excluded=()):
    """Whether neighbors are the best of some rows."""
    rows = [int(row) for row in among if row not in excluded]
    best = sorted(rows, key=lambda row: (-scores[row], row))[:n]
    assert [neighbor.row for neighbor in found] == best
    np.testing.assert_allclose([each.score for each in found], scores[best], rtol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [None, 5, DIM])
def test_a_search_among_rows_finds_the_best_of_them(file, blocks, metric, dim):
    for rows in (SPREAD, np.arange(150, 170), np.r_[3:9, 300:320], np.arange(0, N, 2), [N - 1]):
        mask = np.isin(np.arange(N), rows)
        row = int(rows[len(rows) // 2])
        scores = scores_of(ROWS[:, :dim], ROWS[row, :dim], metric)
        for among in (rows, [WORDS[i] for i in rows], mask, np.asarray(rows)[::-1] - N):
            found = file.most_similar(WORDS[row], 7, metric, among=among, dim=dim)
            agrees(found, scores, rows, 7, {row})
        several = file.most_similar(ROWS[[row, 5]], 7, metric, among=mask, dim=dim)
        agrees(several[0], scores, rows, 7)
        file.most_similar("w1", metric=metric)  # from now on the lengths of all rows are known
        assert file.most_similar(ROWS[[row, 5]], 7, metric, among=mask, dim=dim) == several


def test_the_words_of_a_query_and_excluded_rows_are_no_answers_among_rows_either(file):
    everything = file.most_similar("w7", N, among=SPREAD, exclude=[])
    assert len(everything) == SPREAD.size
    left = [each for each in everything if each.row not in (SPREAD[3], SPREAD[5])]
    exclude = [int(SPREAD[3]), WORDS[SPREAD[5]], "w0" if SPREAD[0] else "w1", "none"]
    assert file.most_similar("w7", N, among=SPREAD, exclude=exclude) == left
    assert file.most_similar("w7", among=["w7"]) == []


@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_only_the_chunks_and_rows_that_are_asked_for_are_decoded(
    tmp_path, monkeypatch, backend, compression
):
    path = embmap.cvc.write(
        tmp_path / "a.cvc",
        ROWS,
        compression=compression,
        chunk_rows=40,
        layout="1.0",
        sections=[
            {"start": 10, "stop": 50, "metadata": {"source": "wiki", "year": 1900}},
            {"start": 50, "stop": 60, "metadata": {"source": "news"}},
            {"start": 390, "stop": 400, "metadata": {"source": "wiki"}},
        ],
    )
    decoded = []
    real = ChunkedMatrix._rows_of_chunk

    def recording(self, number, rows, *out):
        decoded.append((number, rows.size))
        return real(self, number, rows, *out)

    with embmap.open(path, backend=backend) as file:
        rows = file[:]
        scores = scores_of(rows, rows[45])
        monkeypatch.setattr(ChunkedMatrix, "_rows_of_chunk", recording)
        monkeypatch.setattr(ChunkedMatrix, "_span", None)
        agrees(file.most_similar(rows[45], 3, among=[1, 45, 47]), scores, [1, 45, 47], 3)
        assert {number for number, _ in decoded} == {0, 1}
        assert sum(size for _, size in decoded) <= 2 * 3  # once to compare, once exactly
        monkeypatch.undo()
        wiki = np.r_[10:50, 390:400]
        assert np.array_equal(file.section(source="wiki"), wiki)
        found = file.most_similar(rows[45], 60, among={"source": "wiki"})
        agrees(found, scores, wiki, 60)
        found = file.most_similar(rows[45], 60, among={"source": "wiki", "year": 1900})
        agrees(found, scores, range(10, 50), 60)
        with pytest.raises(ValueError, match="among must not be empty: no section matches"):
            file.most_similar(rows[45], among={"source": "books"})


@pytest.mark.parametrize("norms", [False, True])
def test_quantized_rows_are_searched_by_their_codes_among_rows_too(tmp_path, norms, blocks):
    quantized = embmap.finalfusion.Quantized(
        RNG.integers(0, 9, (N, 4), np.uint8),
        RNG.standard_normal((4, 9, 3)).astype("f4"),
        None,
        RNG.random(N).astype("f4") + 1 if norms else None,
    )
    path = embmap.finalfusion.write(tmp_path / "a", WORDS, None, quantized=quantized)
    with embmap.open(path) as file:
        rows = file.vectors[:]
        for metric in METRICS:
            for among in (SPREAD, np.arange(40, 60), np.arange(1, N)):
                found = file.most_similar(rows[3], 9, metric, among=among)
                agrees(found, scores_of(rows, rows[3], metric), among, 9)
        found = file.most_similar(rows[3], 9, among=SPREAD, dim=7)
        agrees(found, scores_of(rows[:, :7], rows[3, :7]), SPREAD, 9)


def test_a_code_without_a_centroid_is_named_by_its_row_in_the_file(tmp_path):
    codes = RNG.integers(0, 7, (N, 4), np.uint8)
    codes[311, 2] = 1
    quantized = embmap.finalfusion.Quantized(codes, RNG.standard_normal((4, 7, 3)).astype("f4"))
    path = embmap.finalfusion.write(tmp_path / "a", WORDS, None, quantized=quantized)
    data = bytearray(path.read_bytes())
    data[data.index(codes.tobytes()) + 311 * 4 + 2] = 9
    path.write_bytes(data)
    with embmap.open(path) as file:
        assert file.most_similar("w1", among=[2, 3, 5])
        with pytest.raises(embmap.FormatError, match="codes of row 311"):
            file.most_similar("w1", among=[2, 3, 5, 311])


def test_a_time_step_is_searched_among_rows(tmp_path):
    history = np.cumsum(RNG.integers(-40, 40, (3, N, DIM)), axis=0).astype(np.int16)
    path = embmap.dwe.write(tmp_path / "a.dwe", history, scale=0.5, group=20)
    with embmap.open(path, vocab=WORDS) as file:
        for t in (0, 2):
            scores = scores_of(history[t], history[t][7])
            agrees(file.at(t).most_similar("w7", 5, among=SPREAD), scores, SPREAD, 5, {7})
        assert file.most_similar("w7", 5, among=SPREAD) == file.at(2).most_similar(
            "w7", 5, among=SPREAD
        )


WRONG = [
    ({"among": []}, ValueError, "among must not be empty"),
    ({"among": np.zeros(N, bool)}, ValueError, "among must not be empty"),
    ({"among": [0, N]}, IndexError, f"a row in among must .* below {N}, not {N}"),
    ({"among": [-N - 1]}, IndexError, f"a row in among must be at least -{N}"),
    ({"among": np.ones(N - 1, bool)}, ValueError, f"a mask of {N} rows, not of {N - 1}"),
    ({"among": ["w1", "none", "w2", "never"]}, embmap.UnknownWordError, "'none' and 1 more"),
    ({"among": [[1, 2]]}, ValueError, "among must have one dimension, not 2"),
    ({"among": [0.5]}, TypeError, "among takes words, rows, a mask"),
    ({"among": ["w1", 2]}, TypeError, "among takes either words or rows"),
    ({"among": "w1"}, TypeError, "among takes words, rows, a mask"),
    ({"among": {"source": "wiki"}}, ValueError, "finalfusion files have no sections"),
    ({"dim": 0}, ValueError, f"dim must be from 1 to {DIM}, not 0"),
    ({"dim": DIM + 1}, ValueError, f"dim must be from 1 to {DIM}, not {DIM + 1}"),
    ({"dim": 3, "approximate": True}, ValueError, "dim must be None for an approximate search"),
    ({"exclude": [N]}, IndexError, "a row in exclude must"),
    ({"positive": ["w1"]}, ValueError, "query must be None if positive or negative is given"),
    ({"query": None}, TypeError, "ask for a word"),
    ({"query": None, "positive": []}, ValueError, "positive and negative must have a word"),
    ({"query": None, "positive": [("w1", np.nan)]}, ValueError, "weight in positive must be a fin"),
    ({"query": None, "negative": [["w1", "w2"]]}, TypeError, "negative must list words and vec"),
    ({"query": None, "positive": [[1.0, 2.0]]}, ValueError, "a vector must have the shape"),
    ({"query": None, "positive": "none"}, embmap.UnknownWordError, "none"),
    ({"query": None, "positive": [np.full(DIM, np.inf)]}, ValueError, "not finite"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG, ids=str)
def test_each_wrong_argument_has_one_clear_error(file, options, error, message):
    with pytest.raises(error, match=message):
        file.most_similar(**{"query": "w1", **options})


def test_a_filtered_search_holds_no_more_than_some_blocks(tmp_path):
    rows = RNG.standard_normal((150_000, 64)).astype("f4")
    path = embmap.finalfusion.write(tmp_path / "a", [f"w{i}" for i in range(len(rows))], rows)
    mask = RNG.random(len(rows)) < 0.15
    with embmap.open(path) as file:
        file.most_similar(rows[5], among=mask)
        tracemalloc.start()
        try:
            file.most_similar(rows[5], among=mask)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def test_an_approximate_search_among_rows_has_exact_scores(tmp_path):
    pytest.importorskip("usearch", reason="usearch is not installed")
    rows = RNG.standard_normal((4000, 16)).astype("f4")
    path = embmap.finalfusion.write(tmp_path / "a", [f"w{i}" for i in range(4000)], rows)
    with embmap.open(path) as file:
        file.build_ann()
        for among in (np.arange(0, 4000, 2), SPREAD, np.arange(3)):
            expected = file.most_similar("w0", 10, among=among)
            found = file.most_similar("w0", 10, among=among, approximate=True)
            assert len(found) == len(expected)
            assert {each.row for each in found} <= set(among.tolist()) - {0}
            scores = {each.row: each.score for each in file.most_similar("w0", 4000)}
            assert all(each.score == scores[each.row] for each in found)
            assert len({each.row for each in found} & {each.row for each in expected}) >= 8 or (
                len(expected) < 8 and found == expected
            )


@pytest.mark.filterwarnings("ignore")
def test_gensim_finds_the_same_by_sums_of_words_and_vectors(file):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    theirs = models.KeyedVectors(DIM)
    theirs.add_vectors(WORDS, ROWS)
    for positive, negative in (
        (["w1", "w2"], ["w3"]),
        ("w1", None),
        (["w1", ("w2", 0.25), ("w4", -0.5)], [("w3", -2.0), "w9"]),
        ([ROWS[5], "w6"], [(ROWS[7], 0.5)]),
        (ROWS[8], ["w9"]),
        (None, ["w9"]),
        (["w1", "w1"], ["w1"]),
    ):
        expected = theirs.most_similar(positive, negative, topn=15)
        found = file.most_similar(positive=positive, negative=negative, n=15)
        assert [each.word for each in found] == [word for word, _ in expected]
        scores = [score for _, score in expected]
        assert [each.score for each in found] == pytest.approx(scores, abs=1e-5)
        first = theirs.most_similar(positive, negative, topn=15, restrict_vocab=100)
        found = file.most_similar(positive=positive, negative=negative, n=15, among=range(100))
        assert [each.word for each in found] == [word for word, _ in first]
    with pytest.raises(ValueError, match="no input"):
        theirs.most_similar([], [])


def test_huge_vectors_and_weights_have_a_mean(file):
    huge = np.array(ROWS[5], np.float64) * 1e307
    found = file.most_similar(positive=[(huge, 1e308), (huge, 1e308)], n=1)
    assert (found[0].row, round(found[0].score, 6)) == (5, 1)
    nothing = file.most_similar(positive=[("w1", 0)], n=2)
    assert [(each.row, each.score) for each in nothing] == [(0, 0), (2, 0)]


def test_an_analogy_is_a_sum_of_words(file):
    for n in (1, 7):
        found = file.most_similar(positive=["w2", "w3"], negative=["w1"], n=n)
        assert [each.row for each in file.analogy("w1", "w2", "w3", n)] == [e.row for e in found]


# Ranks, the odd word out, and word pairs


def test_a_rank_is_a_place_among_the_neighbors(tmp_path, backend, blocks):
    rows = ROWS.copy()
    rows[100:130] = rows[60] * 3  # ties do not count
    rows[7], rows[8, 1], rows[9] = 0, np.nan, 1e-30
    path = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, rows)
    with embmap.open(path, backend=backend) as file:
        for word in ("w3", "w60", "w200"):
            everything = file.most_similar(word, N)
            scores = np.array([each.score for each in everything])
            for neighbor in everything[::7]:
                expected = 1 + np.count_nonzero(scores > neighbor.score)
                assert file.rank(word, neighbor.word) == expected
            assert file.rank(word, word) == 1
        assert type(file.rank("w1", "w2")) is int
        for unknown in (("none", "w1"), ("w1", "none")):
            with pytest.raises(embmap.UnknownWordError):
                file.rank(*unknown)
        with pytest.raises(ValueError, match="not finite"):
            file.rank("w1", "w8")


@pytest.mark.filterwarnings("ignore")
def test_gensim_ranks_words_and_finds_the_odd_one_alike(file):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    theirs = models.KeyedVectors(DIM)
    theirs.add_vectors(WORDS, ROWS)
    for first, second in zip(WORDS[:40], WORDS[160:200], strict=True):
        assert file.rank(first, second) == theirs.rank(first, second)
    for start in range(0, N, 10):
        words = WORDS[start : start + 3 + start % 9]
        assert file.doesnt_match(words) == theirs.doesnt_match(words)
    assert file.doesnt_match(["w1"]) == theirs.doesnt_match(["w1"])
    for empty in ([], ()):
        with pytest.raises(ValueError, match="words must not be empty"):
            file.doesnt_match(empty)
    with pytest.raises(TypeError):
        file.doesnt_match("w1")
    with pytest.raises(embmap.UnknownWordError):
        file.doesnt_match(["w1", "none"])


PAIRS = [(f"w{i}", f"w{(7 * i) % 410}", float(i % 11)) for i in range(3, 80)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_gensim_evaluates_word_pairs_alike(tmp_path, file, delimiter):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    theirs = models.KeyedVectors(DIM)
    theirs.add_vectors(WORDS, ROWS)
    path = tmp_path / "pairs"
    lines = ["# some pairs", delimiter.join(("Word 1", "Word 2", "Human (mean)"))]
    lines += [delimiter.join(map(str, pair)) for pair in [*PAIRS, ("none", "w1", 3.5)]]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    pearson, spearman, percent = theirs.evaluate_word_pairs(
        str(path), delimiter=delimiter, case_insensitive=False
    )
    found = file.evaluate_word_pairs(path)
    assert found.pearson == pytest.approx(pearson[0], abs=1e-6)
    assert found.spearman == pytest.approx(spearman[0], abs=1e-6)
    assert found.oov_ratio == pytest.approx(percent / 100)
    assert found.n_pairs == round((len(PAIRS) + 1) * (1 - percent / 100))
    assert file.evaluate_word_pairs([*PAIRS, ("none", "w1", 3.5)]) == found


def test_word_pairs_are_those_of_a_plain_computation(file):
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for dim in (None, 3):
        cosines = [file.similarity(a, b, dim=dim) for a, b, _ in PAIRS if int(b[1:]) < N]
        scores = [score for _, b, score in PAIRS if int(b[1:]) < N]
        found = file.evaluate_word_pairs([(a.upper(), b, s) for a, b, s in PAIRS], dim=dim,
                                         lowercase=True)  # fmt: skip
        assert found.pearson == pytest.approx(stats.pearsonr(scores, cosines)[0])
        assert found.spearman == pytest.approx(stats.spearmanr(scores, cosines)[0])
    constant = file.evaluate_word_pairs([("w1", "w2", 3), ("w4", "w5", 3)])
    assert (str(constant.pearson), str(constant.spearman)) == ("nan", "nan")
    huge = file.evaluate_word_pairs([("w1", "w1", 1e308), ("w4", "w5", -1e308)])
    assert (huge.pearson, huge.spearman) == pytest.approx((1, 1))


def test_wrong_word_pairs_are_named(tmp_path, file):
    path = tmp_path / "pairs.csv"
    for text, message in (
        ("w1,w2,3\n\nw1,w2\n", "line 3: must be two words and a number, not 'w1,w2'"),
        ("w1,w2,3\nw1,w2,x\n", "line 2"),
        ("w1,w2,3\nw1,w2,nan\n", "line 2"),
        ("w1,w2,3\nw1,w2,3,4\n", "line 2"),
        ("", "none of the 0 pairs"),
        ("none,w1,3\n", "none of the 1 pairs has both words in the vocabulary"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            file.evaluate_word_pairs(path)
    path.write_bytes(b"w1,w2,\xff\n")
    with pytest.raises(ValueError, match="byte 6: not UTF-8"):
        file.evaluate_word_pairs(path)
    with pytest.raises(FileNotFoundError):
        file.evaluate_word_pairs(tmp_path / "none.csv")
