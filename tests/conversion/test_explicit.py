"""Subwords on the way to finalfusion files: kept, left out, made explicit, and quantized."""

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized
from embmap.subwords import BucketIndexer, ExplicitIndexer, FastTextIndexer
from tests.conversion.sources import RNG, VECTORS, WORDS

INDEXERS = {
    "bucket": BucketIndexer(3, 4, 4),
    "fasttext": FastTextIndexer(2, 4, 11),
    "explicit": ExplicitIndexer.of(["<be", "ber", "üri"], min_n=3, max_n=3),
}


@pytest.mark.parametrize("kind", INDEXERS)
def test_subwords_are_kept_and_left_out(tmp_path, kind):
    indexer = INDEXERS[kind]
    matrix = RNG.standard_normal((5 + indexer.n_buckets, 4)).astype("f4")
    path = embmap.finalfusion.write(
        tmp_path / "a.fifu", WORDS, matrix, subwords=indexer, norms=np.arange(5), metadata='t = "x"'
    )
    embmap.convert(path, tmp_path / "b.fifu", words=WORDS[1:])
    with embmap.open(path) as before, embmap.open(tmp_path / "b.fifu") as after:
        assert list(after) == WORDS[1:]
        assert after.subwords.kind == kind
        assert after.metadata == {"t": "x"}
        assert after.norms.tolist() == [1, 2, 3, 4]
        for word in ("東京", "berber", "bürin"):
            np.testing.assert_array_equal(after[word], before[word])
    report = embmap.convert(path, tmp_path / "c.fifu", subwords="none")
    assert report.left_out == ("subwords",)
    with embmap.open(tmp_path / "c.fifu") as file:
        assert file.subwords is None
        assert file.shape == (5, 4)
    assert set(embmap.convert(path, tmp_path / "c.vec").left_out) == {
        "norms",
        "subwords",
        "metadata",
    }


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("kind", ["bucket", "fasttext"])
def test_buckets_become_explicit_ngrams(tmp_path, kind, quantized):
    indexer = INDEXERS[kind]
    n = 5 + indexer.n_buckets
    storage = {"vectors": RNG.standard_normal((n, 4)).astype("f4")}
    if quantized:
        books = RNG.standard_normal((2, 5, 2)).astype("f4")
        codes = RNG.integers(0, 5, (n, 2), np.uint8)
        storage = {"vectors": None, "quantized": Quantized(codes, books, np.eye(4), np.ones(n))}
    path = embmap.finalfusion.write(
        tmp_path / "a.fifu", WORDS, subwords=indexer, metadata='t = "x"', **storage
    )
    embmap.convert(path, tmp_path / "b.fifu", subwords="explicit")
    with embmap.open(path) as before, embmap.open(tmp_path / "b.fifu") as after:
        assert after.subwords.kind == "explicit"
        assert after.metadata == {"t": "x"}
        assert after.info()["storage"]["kind"] == ("quantized" if quantized else "ndarray")
        assert list(after) == WORDS
        for word in WORDS:
            np.testing.assert_array_equal(after[word], before[word])
            np.testing.assert_array_equal(
                after.vectors[after.subword_rows(word)], before.vectors[before.subword_rows(word)]
            )
        assert after.verify().ok


def test_explicit_ngrams_are_those_of_finalfusion_python(tmp_path):
    peer = pytest.importorskip("finalfusion")
    indexer = INDEXERS["bucket"]
    matrix = RNG.standard_normal((5 + indexer.n_buckets, 4)).astype("f4")
    path = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, matrix, subwords=indexer)
    embmap.convert(path, tmp_path / "b.fifu", subwords="explicit")
    theirs = peer.load_finalfusion(str(path)).bucket_to_explicit()
    ours = peer.load_finalfusion(str(tmp_path / "b.fifu"))
    assert set(ours.vocab.subword_indexer.ngrams) == set(theirs.vocab.subword_indexer.ngrams)
    for word in ("berliner", "zür"):
        np.testing.assert_allclose(ours[word], theirs[word], rtol=1e-6)


@pytest.mark.parametrize("opq", [False, True])
def test_finalfusion_files_are_quantized_on_the_way(tmp_path, opq):
    random = np.random.default_rng(0)
    words = [f"word{i}" for i in range(700)]
    indexer = embmap.subwords.BucketIndexer(3, 4, 6)
    # Few different rows: 256 centroids hold them all, so nothing is lost but rounding.
    rows = random.standard_normal((40, 8)).astype(np.float32)
    vectors = rows[random.integers(0, 40, 700 + indexer.n_buckets)]
    source = embmap.finalfusion.write(tmp_path / "a.fifu", words, vectors, subwords=indexer)
    target = tmp_path / "b.fifu"
    report = embmap.convert(source, target, quantize=4, opq=opq, words=words[100:])
    assert report.n_words == 600
    with embmap.open(source) as before, embmap.open(target) as after:
        assert after.info()["storage"]["kind"] == "quantized"
        assert list(after) == words[100:]
        assert after.vectors.shape == (600 + indexer.n_buckets, 8)
        assert np.allclose(after["word650"], before["word650"], atol=1e-4)
        assert np.allclose(after["unheard"], before["unheard"], atol=1e-4)
        assert after.verify().ok


def test_quantizing_is_for_finalfusion_files_alone(tmp_path):
    source = embmap.finalfusion.write(tmp_path / "a.fifu", ["a"], np.ones((1, 4), np.float32))
    for options, message in (
        ({"quantize": 2}, "for finalfusion files"),
        ({"opq": True}, "for finalfusion files"),
    ):
        with pytest.raises(ValueError, match=message):
            embmap.convert(source, tmp_path / "b.txt", **options)
    with pytest.raises(ValueError, match="opq needs quantize"):
        embmap.convert(source, tmp_path / "b.fifu", opq=True)
    with pytest.raises(ValueError, match="q must divide"):
        embmap.convert(source, tmp_path / "b.fifu", quantize=3)
    assert [item.name for item in tmp_path.iterdir()] == ["a.fifu"]


@pytest.mark.parametrize("name", ["b.kv", "b.vec", "b.npy"])
def test_explicit_subwords_are_refused_by_outputs_that_cannot_hold_them(tmp_path, name):
    embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS)
    message = "subwords explicit is for finalfusion files, not"
    with pytest.raises(ValueError, match=message):
        embmap.convert(tmp_path / "a.fifu", tmp_path / name, subwords="explicit")
    assert not (tmp_path / name).exists()
