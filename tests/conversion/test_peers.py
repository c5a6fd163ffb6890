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


FASTTEXT = ["crime-and-punishment.bin", "non_ascii_fasttext.bin", "toy-model-pretrained.bin"]


@pytest.mark.parametrize("name", FASTTEXT)
@pytest.mark.parametrize("through", ["fastText", "finalfusion"])
@pytest.mark.parametrize("extension", [".bin", ".kv"])
def test_gensim_composes_the_same_vectors_from_our_models(tmp_path, name, through, extension):
    fasttext = pytest.importorskip("gensim.models.fasttext")
    path = pytest.importorskip("gensim.test.utils").datapath(name)
    expected = fasttext.load_facebook_vectors(path)
    if through == "finalfusion":
        embmap.convert(path, tmp_path / "a.fifu")
        path = tmp_path / "a.fifu"
    out = tmp_path / f"b{extension}"
    form = "fasttext" if extension == ".bin" else None
    report = embmap.convert(path, out, output_format=form)
    lost = () if extension == ".bin" else ("metadata",)
    if through == "fastText" and extension == ".kv":
        lost += ("word counts", "output matrix")
    assert report.left_out == lost
    if extension == ".bin":
        got = fasttext.load_facebook_model(str(out)).wv
    else:
        got = fasttext.FastTextKeyedVectors.load(str(out))
    assert got.index_to_key == expected.index_to_key
    np.testing.assert_allclose(got.vectors, expected.vectors, atol=1e-6)
    for word in ("unknownword", "zürich", "東京"):
        np.testing.assert_allclose(got[word], expected[word], atol=1e-6)
    embmap.convert(out, tmp_path / "c.npy")
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), expected.vectors, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_gensim_loads_our_keyed_vectors(tmp_path, source, dtype):
    models = pytest.importorskip("gensim.models")
    words = ["a" * 300, *WORDS[1:]]
    embmap.finalfusion.write(source, words, VECTORS)
    report = embmap.convert(source, tmp_path / "a.kv", dtype=dtype)
    assert (report.output_format, report.dtype) == ("gensim", dtype)
    loaded = models.KeyedVectors.load(str(tmp_path / "a.kv"))
    assert type(loaded) is models.KeyedVectors
    assert loaded.index_to_key == words
    assert loaded.vectors.dtype == dtype
    assert loaded.vectors.tolist() == VECTORS.astype(dtype).tolist()
    assert loaded.key_to_index == {word: row for row, word in enumerate(words)}
    assert loaded.most_similar("a" * 300, topn=1)[0][0] in words
    loaded.add_vectors(["new"], VECTORS[:1])
    loaded.save(str(tmp_path / "b.kv"))
    assert embmap.convert(tmp_path / "b.kv", tmp_path / "b.npy").n_words == 5
    embmap.convert(tmp_path / "a.kv", tmp_path / "c.kv")
    assert (tmp_path / "c.kv").read_bytes() == (tmp_path / "a.kv").read_bytes()


def test_many_words_are_loaded_by_gensim(tmp_path):
    models = pytest.importorskip("gensim.models")
    words = [f"w{i}" for i in range(2500)]
    embmap.finalfusion.write(tmp_path / "a", words, np.arange(7500.0).reshape(2500, 3))
    embmap.convert(tmp_path / "a", tmp_path / "a.kv")
    loaded = models.KeyedVectors.load(str(tmp_path / "a.kv"))
    assert [loaded.get_index(word) for word in words] == list(range(2500))
    embmap.convert(tmp_path / "a", tmp_path / "a.bin", output_format="fasttext")
    loaded = pytest.importorskip("gensim.models.fasttext").load_facebook_vectors(
        str(tmp_path / "a.bin")
    )
    assert loaded.index_to_key == words
    assert loaded["w2499"].tolist() == [7497, 7498, 7499]


def test_safetensors_reads_ours(tmp_path, source):
    numpy = pytest.importorskip("safetensors.numpy")
    embmap.convert(source, tmp_path / "a.safetensors")
    (tensor,) = numpy.load_file(tmp_path / "a.safetensors").values()
    assert tensor.tobytes() == VECTORS.tobytes()
    embmap.embd.from_safetensors(tmp_path / "a.safetensors", vocab=WORDS)
    with embmap.open(tmp_path / "a.weights") as file:
        assert file["東京"].tolist() == VECTORS[2].tolist()
