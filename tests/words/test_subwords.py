"""The four indexers and their kernels, against the slow ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from embmap.codecs import kernels
from embmap.codecs.ngram_hashes import Text, bucket_hashes, fasttext_hashes, murmur3_lanes
from embmap.io.mapping import BytesFile
from embmap.subwords import BucketIndexer, ExplicitIndexer, FastTextIndexer, FloretIndexer
from embmap.vectors.dense import dense_matrix
from embmap.vectors.segments import segment_sums
from tests.kernels import needs_numba
from tests.reference import finalfusion as reference

WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=6)
LENGTHS = st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))
UNICODE = ["", "a", "tübingen", "日本語", "🙂🙂", "x" * 40, "a\0b", "naïve\u0301"]


def bracketed(words):
    return [f"<{word}>" for word in words]


def slow(words, min_n, max_n, hash_of):
    return [
        [hash_of(ngram) for ngram in reference.ngrams(word, min_n, max_n)]
        for word in bracketed(words)
    ]


def split(hashes, counts):
    return [part.tolist() for part in np.split(hashes, np.cumsum(counts)[:-1])]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("lengths", [(3, 6), (1, 1), (2, 40), (5, 2**32 - 1)])
def test_kernels_hash_as_the_reference_does(lengths):
    text = Text.of(bracketed(UNICODE))
    found = split(*bucket_hashes(text, *lengths))
    assert found == slow(UNICODE, *lengths, reference.bucket_hash)
    found = split(*fasttext_hashes(text, *lengths))
    assert found == slow(UNICODE, *lengths, reference.fasttext_hash)


@settings(max_examples=60, deadline=None)
@given(words=WORDS.filter(len), lengths=LENGTHS)
def test_any_words_hash_as_the_reference_hashes_them(words, lengths):
    text = Text.of(bracketed(words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "CHOICE", "numpy")
        assert split(*bucket_hashes(text, *lengths)) == slow(words, *lengths, reference.bucket_hash)
        found = split(*fasttext_hashes(text, *lengths))
    assert found == slow(words, *lengths, reference.fasttext_hash)


@settings(max_examples=60, deadline=None)
@given(words=WORDS.filter(len), seed=st.integers(0, 2**32 - 1))
def test_murmur_hashes_as_the_reference_does(words, seed):
    text = Text.of(bracketed(words))
    lanes = murmur3_lanes(text, text.ends - text.lengths(), text.lengths(), seed)
    for word, lane in zip(bracketed(words), lanes.tolist(), strict=True):
        h1, h2 = reference.murmur3_x64_128(word.encode(), seed)
        assert lane == [h1 & 0xFFFFFFFF, h1 >> 32, h2 & 0xFFFFFFFF, h2 >> 32]


@needs_numba
def test_both_kernels_sum_to_the_same_bits(monkeypatch):
    rng = np.random.default_rng(3)
    data = rng.standard_normal((500, 33), np.float32)
    matrix = dense_matrix(BytesFile(data.tobytes()), 0, data.shape, "<f4")
    counts = rng.integers(0, 50, 100)
    rows = rng.integers(0, 500, counts.sum())
    sums = []
    for choice in ("numpy", "numba"):
        monkeypatch.setattr(kernels, "CHOICE", choice)
        sums.append(segment_sums(matrix, rows, counts))
    assert np.array_equal(*sums)


def indexers():
    return [
        BucketIndexer(3, 6, 10),
        BucketIndexer(1, 3, 0),
        FastTextIndexer(3, 6, 97),
        FloretIndexer(2, 3, 50, 4, 7, "[", "]"),
        FloretIndexer(2, 5, 50, 1, 0, "", ""),
        ExplicitIndexer.of(["<a", "ab", "b>", "日本"], [1, 0, 1, 2], min_n=2, max_n=3),
    ]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("indexer", indexers(), ids=lambda indexer: indexer.kind)
def test_a_batch_gives_what_single_words_give(indexer, monkeypatch):
    words = [*UNICODE, "ab", "ba"]
    rows, counts = indexer.buckets(words)
    single = [indexer.buckets([word])[0].tolist() for word in words]
    assert split(rows, counts) == single
    monkeypatch.setattr("embmap.words.subwords._BATCH_NGRAMS", 10)
    assert split(*indexer.buckets(words)) == single
    assert rows.dtype == counts.dtype == np.int64
    assert rows.max() < indexer.n_buckets
    assert [part.size for part in indexer.buckets([])] == [0, 0]


def test_ngrams_go_from_the_longest_of_each_start():
    indexer = BucketIndexer(3, 4)
    assert indexer.ngrams("abc") == ["<abc", "<ab", "abc>", "abc", "bc>"]
    assert BucketIndexer(3, 6).ngrams("") == []
    assert len(BucketIndexer(3, 6).ngrams("abcdefghijkl")) == 42


def test_stored_ngrams_share_rows_and_others_have_none():
    indexer = ExplicitIndexer.of(["<a", "ab", "b>"], [1, 0, 1], min_n=2, max_n=2)
    assert indexer.n_buckets == 2
    assert indexer.buckets(["ab", "xy"])[0].tolist() == [1, 0, 1]
    assert indexer.buckets(["ab", "xy"])[1].tolist() == [3, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: BucketIndexer(0, 3),
        lambda: BucketIndexer(4, 3),
        lambda: BucketIndexer(3, 6, 64),
        lambda: FastTextIndexer(3, 6, -1),
        lambda: FloretIndexer(2, 3, 10, 5),
        lambda: FloretIndexer(2, 3, 0),
        lambda: FloretIndexer(2, 3, 10, 1, 2**32),
        lambda: ExplicitIndexer.of(["ab"], [1]),
        lambda: ExplicitIndexer.of(["ab"], [0, 1]),
    ],
)
def test_impossible_parameters_are_refused(make):
    with pytest.raises(ValueError, match=r"."):
        make()


def test_a_word_with_absurdly_many_ngrams_is_refused():
    indexer = BucketIndexer(1, 2**32 - 1)
    for call in (lambda word: indexer.buckets([word]), indexer.ngrams):
        with pytest.raises(embmap.UnsupportedError, match="too many"):
            call("x" * 3000)
    assert BucketIndexer(3, 6).buckets(["x" * 400_000])[0].size == 4 * 400_000 - 6


@pytest.mark.parametrize("lengths", [(1, 1), (3, 6), (2, 40), (5, 2**32 - 1), (30, 31)])
def test_ngrams_are_counted_before_they_are_made(lengths, monkeypatch):
    indexer = BucketIndexer(*lengths)
    for n in (0, 1, 5, 30):
        ngrams = reference.ngrams(f"<{'x' * n}>", *lengths)
        letters = sum(map(len, ngrams))
        monkeypatch.setattr("embmap.words.subwords._MOST_LETTERS", letters)
        assert len(indexer.ngrams("x" * n)) == len(ngrams)
        monkeypatch.setattr("embmap.words.subwords._MOST_LETTERS", letters - 1)
        if letters:
            with pytest.raises(embmap.UnsupportedError, match="too many"):
                indexer.ngrams("x" * n)


def test_fasttext_without_buckets_has_no_subwords():
    rows, counts = FastTextIndexer(3, 6, 0).buckets(["word", "other"])
    assert rows.size == 0
    assert counts.tolist() == [0, 0]


def test_a_surrogate_is_hashed_as_its_replacement():
    assert np.array_equal(BucketIndexer().buckets(["\ud800"])[0], BucketIndexer().buckets(["?"])[0])


@needs_numba
@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.text(max_size=12), min_size=1, max_size=6),
    lengths=LENGTHS,
    seed=st.integers(0, 99),
)
def test_one_loop_composes_what_the_steps_compose(tmp_path_factory, words, lengths, seed):
    indexer = BucketIndexer(*lengths, 4)
    rows = np.random.default_rng(seed).standard_normal((17, 21)).astype("f4")
    rows[seed % 16 + 1] = [1e38, 1e-38, 0, np.inf, np.nan, -1, 3e-45][seed % 7]
    path = tmp_path_factory.getbasetemp() / "composed.fifu"
    embmap.finalfusion.write(path, ["\0known"], rows, subwords=indexer)
    composed = []
    for choice in ("numpy", "numba"):
        with pytest.MonkeyPatch.context() as patch, embmap.open(path) as file:
            patch.setattr(kernels, "CHOICE", choice)
            patch.setattr("embmap.words.subwords._WORTH_A_THREAD", 2)
            batch = file.batch(words, missing="zero")
            for word, vector in zip(words, batch, strict=True):
                single = file.get(word)
                assert np.array_equal(0 * vector if single is None else single, vector, True) or (
                    single is None and not vector.any()
                )
            composed.append(batch)
    assert np.array_equal(*composed, equal_nan=True)


def test_composed_words_with_too_many_ngrams_are_refused(kernel, tmp_path):
    indexer = BucketIndexer(1, 2**32 - 1, 2)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", ["w"], np.eye(5)[:, :3], subwords=indexer)
    with embmap.open(path) as file, pytest.raises(embmap.UnsupportedError, match="too many"):
        file.batch(["a", "x" * 3000])
