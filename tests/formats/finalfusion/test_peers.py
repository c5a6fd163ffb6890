"""What finalfusion-python writes we read, and what we write it reads."""

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized
from embmap.subwords import BucketIndexer, ExplicitIndexer, FastTextIndexer

pytestmark = pytest.mark.slow

finalfusion = pytest.importorskip("finalfusion", reason="finalfusion is not installed")
peer_storage = pytest.importorskip("finalfusion.storage")
peer_subword = pytest.importorskip("finalfusion.subword")
peer_vocab = pytest.importorskip("finalfusion.vocab")
PQ = pytest.importorskip("finalfusion.storage.quantized").PQ
Metadata = pytest.importorskip("finalfusion.metadata").Metadata
Norms = pytest.importorskip("finalfusion.norms").Norms


WORDS = ["Berlin", "tübingen", "日本語", "a", "🙂"]
UNKNOWN = ["Berliner", "tübinger", "日本", "xyz"]
RNG = np.random.default_rng(0)


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def vocabularies():
    ngrams = ["<Be", "Ber", "ber", "ing", "日本"]
    return {
        "simple": (peer_vocab.SimpleVocab(WORDS), None, 0),
        "bucket": (
            peer_vocab.FinalfusionBucketVocab(WORDS, peer_subword.FinalfusionHashIndexer(5, 3, 6)),
            BucketIndexer(3, 6, 5),
            32,
        ),
        "fasttext": (
            peer_vocab.FastTextVocab(WORDS, peer_subword.FastTextIndexer(31, 2, 4)),
            FastTextIndexer(2, 4, 31),
            31,
        ),
        "explicit": (
            peer_vocab.ExplicitVocab(WORDS, peer_subword.ExplicitIndexer(ngrams, 2, 3)),
            ExplicitIndexer.of(ngrams, min_n=2, max_n=3),
            5,
        ),
    }


def storages(n_rows):
    dense = unit(RNG.standard_normal((n_rows, 12)))
    q, k, part = 4, 7, 3
    codes = RNG.integers(0, k, (n_rows, q), np.uint8)
    books = RNG.standard_normal((q, k, part), np.float32)
    projection = np.linalg.qr(RNG.standard_normal((12, 12)))[0].astype(np.float32)
    norms = RNG.random(n_rows, np.float32)
    return {
        "ndarray": (peer_storage.NdArray(dense), {"vectors": dense}),
        "quantized": (
            peer_storage.QuantizedArray(PQ(books, None), codes, None),
            {"vectors": None, "quantized": Quantized(codes, books)},
        ),
        "quantized with everything": (
            peer_storage.QuantizedArray(PQ(books, projection), codes, norms),
            {"vectors": None, "quantized": Quantized(codes, books, projection, norms)},
        ),
    }


def same(ours, theirs):
    assert list(ours) == theirs.vocab.words
    assert ours.shape == theirs.storage.shape
    for row, word in enumerate(WORDS):
        np.testing.assert_allclose(ours[word], theirs.embedding(word), atol=1e-6)
        np.testing.assert_allclose(ours[row], theirs.storage[row], atol=1e-6)
    for word in UNKNOWN:
        expected = theirs.embedding(word)
        if expected is None:
            assert ours.get(word) is None
        else:
            np.testing.assert_allclose(ours[word], expected, atol=1e-6)
            assert ours.subword_rows(word).tolist() == theirs.vocab.subword_indices(word)
    if theirs.norms is not None:
        assert np.array_equal(ours.norms, np.asarray(theirs.norms))
        for word in WORDS:
            vector, norm = ours.embedding_with_norm(word)
            expected, expected_norm = theirs.embedding_with_norm(word)
            np.testing.assert_allclose(vector, expected, atol=1e-6)
            assert norm == pytest.approx(expected_norm)
    if theirs.metadata is not None:
        assert ours.metadata == dict(theirs.metadata)


@pytest.mark.parametrize("storage", list(storages(5)))
@pytest.mark.parametrize("kind", list(vocabularies()))
@pytest.mark.parametrize("norms", [False, True])
def test_files_are_read_both_ways(tmp_path, kind, storage, norms):
    vocabulary, indexer, n_buckets = vocabularies()[kind]
    stored, parts = storages(len(WORDS) + n_buckets)[storage]
    lengths = RNG.random(len(WORDS), np.float32) if norms else None
    theirs = finalfusion.Embeddings(
        stored,
        vocabulary,
        norms=None if lengths is None else Norms(lengths),
        metadata=Metadata({"dims": 12, "name": "ü"}),
    )
    theirs.write(tmp_path / "theirs.fifu")
    for backend in ("mmap", "read"):
        with embmap.open(tmp_path / "theirs.fifu", backend=backend) as ours:
            same(ours, theirs)
    embmap.finalfusion.write(
        tmp_path / "ours.fifu",
        WORDS,
        **parts,
        norms=lengths,
        metadata='dims = 12\nname = "ü"\n',
        subwords=indexer,
    )
    for mmap in (False, True):
        read = finalfusion.load_finalfusion(tmp_path / "ours.fifu", mmap=mmap)
        with embmap.open(tmp_path / "ours.fifu") as ours:
            same(ours, read)
            assert ours.verify().problems == []
