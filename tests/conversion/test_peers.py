"""What embmap converts, gensim, finalfusion-python and safetensors read; and the other way."""

import gc

import numpy as np
import pytest

import embmap

pytestmark = pytest.mark.slow

WORDS = ["berlin", "zürich", "東京", "a"]
VECTORS = np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32)
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)


@pytest.fixture
def source(tmp_path):
    return embmap.finalfusion.write(tmp_path / "source.fifu", WORDS, VECTORS)


@pytest.mark.parametrize("binary", [True, False])
def test_gensim_reads_and_writes_word2vec(tmp_path, source, binary):
    models = pytest.importorskip("gensim.models")
    path = tmp_path / ("a.bin" if binary else "a.vec")
    embmap.convert(source, path)
    read = models.KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert read.index_to_key == WORDS
    assert read.vectors.tobytes() == VECTORS.tobytes()
    read.save_word2vec_format(str(tmp_path / "b"), binary=binary)
    report = embmap.convert(tmp_path / "b", tmp_path / "b.npy")
    assert report.input_format == ("word2vec" if binary else "word2vec-text")
    assert np.load(tmp_path / "b.npy").tobytes() == VECTORS.tobytes()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_gensim_reads_glove(tmp_path, source):
    models = pytest.importorskip("gensim.models")
    embmap.convert(source, tmp_path / "a.txt")
    # gensim leaves the file open that it counts the lines of.
    read = models.KeyedVectors.load_word2vec_format(str(tmp_path / "a.txt"), no_header=True)
    gc.collect()
    assert read.vectors.tobytes() == VECTORS.tobytes()


@pytest.mark.parametrize(
    ("name", "loader", "writer"),
    [
        ("a.bin", "load_word2vec", "write_word2vec"),
        ("a.vec", "load_text_dims", "write_text_dims"),
        ("a.txt", "load_text", "write_text"),
    ],
)
def test_finalfusion_python_reads_and_writes_the_same(tmp_path, source, name, loader, writer):
    peer = pytest.importorskip("finalfusion")
    compat = pytest.importorskip("finalfusion.compat")
    embmap.convert(source, tmp_path / name)
    theirs = getattr(peer, loader)(str(tmp_path / name))
    embmap.convert(tmp_path / name, tmp_path / "b.fifu")
    ours = peer.load_finalfusion(str(tmp_path / "b.fifu"))
    assert theirs.vocab.words == ours.vocab.words == WORDS
    np.testing.assert_allclose(ours.storage, theirs.storage, atol=1e-6)
    np.testing.assert_allclose(ours.norms, theirs.norms, rtol=1e-6)
    getattr(compat, writer)(str(tmp_path / f"c-{name}"), ours)
    embmap.convert(tmp_path / f"c-{name}", tmp_path / "c.npy")
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), VECTORS, rtol=1e-5)


def test_safetensors_reads_ours(tmp_path, source):
    numpy = pytest.importorskip("safetensors.numpy")
    embmap.convert(source, tmp_path / "a.safetensors")
    (tensor,) = numpy.load_file(tmp_path / "a.safetensors").values()
    assert tensor.tobytes() == VECTORS.tobytes()
    embmap.embd.from_safetensors(tmp_path / "a.safetensors", vocab=WORDS)
    with embmap.open(tmp_path / "a.weights") as file:
        assert file["東京"].tolist() == VECTORS[2].tolist()
