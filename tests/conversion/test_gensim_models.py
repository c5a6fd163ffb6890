"""fastText models as gensim saves them, and models that older versions of gensim saved."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import embmap

pytestmark = pytest.mark.slow

WORDS = ["berlin", "zürich", "東京", "a", "abcabcabcabc"]
LOST = {"word counts", "word attributes"}  # of words; a model has a training state, too
UNKNOWN = ["berliner", "東京都", "bc", "zürcher", "🙂"]


@pytest.fixture(scope="module")
def models():
    return pytest.importorskip("gensim.models", reason="gensim is not installed")


@pytest.fixture(scope="module")
def data():
    gensim = pytest.importorskip("gensim", reason="gensim is not installed")
    folder = Path(gensim.__file__).parent / "test" / "test_data"
    if not folder.is_dir():
        pytest.skip("gensim is installed without its test data")
    return folder


def train(models, **options):
    options = {"min_n": 2, "max_n": 4, "bucket": 50, **options}
    return models.FastText(
        [WORDS] * 3, vector_size=6, min_count=1, workers=1, epochs=2, seed=3, **options
    )


def assert_equal_vectors(path, vectors, unknown=UNKNOWN):
    """Known words are gensim's; unknown ones, which finalfusion scales, point the same way."""
    with embmap.open(path) as file:
        assert list(file) == vectors.index_to_key
        for word in vectors.index_to_key:
            np.testing.assert_allclose(file[word], vectors[word], atol=1e-6)
        for word in unknown:
            theirs = vectors[word]
            np.testing.assert_allclose(file[word], theirs / np.linalg.norm(theirs), atol=1e-6)


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
@pytest.mark.parametrize("part", ["model", "vectors"])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_fasttext_models_come_with_their_buckets(tmp_path, models, protocol, part, beside):
    model = train(models)
    saved = model if part == "model" else model.wv
    path = tmp_path / "a.model"
    saved.save(str(path), sep_limit=1 if beside else 1 << 30, pickle_protocol=protocol)
    assert (tmp_path / "a.model.wv.vectors_ngrams.npy").exists() == (beside and part == "model")
    report = embmap.convert(path, tmp_path / "a.fifu", normalize=False)
    assert report.input_format == "gensim"
    assert set(report.left_out) == LOST | ({"training state"} if part == "model" else set())
    assert_equal_vectors(tmp_path / "a.fifu", model.wv)
    embmap.convert(path, tmp_path / "a.npy")
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), model.wv.vectors, atol=1e-6)


def test_chosen_words_of_a_fasttext_model_keep_their_vectors(tmp_path, models):
    model = train(models)
    model.save(str(tmp_path / "a.model"))
    chosen = sorted(["東京", "a"], key=model.wv.key_to_index.get)
    report = embmap.convert(
        tmp_path / "a.model", tmp_path / "a.fifu", words=chosen, normalize=False
    )
    assert report.n_words == 2
    with embmap.open(tmp_path / "a.fifu") as file:
        for word in chosen:
            np.testing.assert_allclose(file[word], model.wv[word], atol=1e-6)
        np.testing.assert_array_equal(np.asarray(file.vectors)[2:], model.wv.vectors_ngrams)


@pytest.mark.parametrize("options", [{"bucket": 0}, {"max_n": 0}, {"min_n": 5}])
def test_fasttext_models_without_ngrams_have_no_subwords(tmp_path, models, options):
    model = train(models, **options)
    model.save(str(tmp_path / "a.model"))
    embmap.convert(tmp_path / "a.model", tmp_path / "a.fifu", normalize=False)
    assert_equal_vectors(tmp_path / "a.fifu", model.wv, unknown=())
    with embmap.open(tmp_path / "a.fifu") as file:
        assert file.subwords is None


@pytest.mark.parametrize("min_n", [0, 1])
def test_brackets_are_no_ngrams_of_a_known_word(tmp_path, models, min_n):
    model = train(models, min_n=min_n)
    model.save(str(tmp_path / "a.model"))
    embmap.convert(tmp_path / "a.model", tmp_path / "a.fifu", normalize=False)
    assert_equal_vectors(tmp_path / "a.fifu", model.wv, unknown=())
    fasttext = pytest.importorskip("gensim.models.fasttext")
    fasttext.save_facebook_model(model, str(tmp_path / "a.bin"))
    embmap.convert(tmp_path / "a.bin", tmp_path / "b.fifu", normalize=False)
    assert_equal_vectors(tmp_path / "b.fifu", model.wv, unknown=())


@pytest.mark.parametrize(
    "name",
    ["compatible-hash-true.model", "fasttext_old", "fasttext_old_sep", "ft_model_2.3.0"],
)
def test_buckets_that_only_older_versions_read_are_reported(tmp_path, data, name):
    report = embmap.convert(data / name, tmp_path / "a.fifu")
    assert set(report.left_out) == {"subwords", "word counts", "training state"}
    with embmap.open(tmp_path / "a.fifu") as file:
        assert file.subwords is None


def test_known_words_of_an_older_version_are_as_gensim_reads_them(tmp_path, models, data):
    path = data / "compatible-hash-true.model"
    embmap.convert(path, tmp_path / "a.fifu", normalize=False)
    assert_equal_vectors(tmp_path / "a.fifu", models.FastText.load(str(path)).wv, unknown=())


def test_rows_of_ngrams_in_an_older_order_are_refused_with_advice(tmp_path, models):
    vectors = train(models).wv
    vectors.compatible_hash = False
    vectors.save(str(tmp_path / "a.kv"))
    with pytest.raises(embmap.UnsupportedError, match=r"gensim 3\.8\.3"):
        embmap.convert(tmp_path / "a.kv", tmp_path / "a.fifu")


@pytest.mark.parametrize("version", ["0.12.0", "0.13.4", "1.0.1", "2.3.0", "3.0.0", "3.4.0"])
def test_models_of_older_versions_hold_their_words(tmp_path, data, version):
    for kind in ("w2v", "d2v"):
        path = data / f"old_{kind}_models" / f"{kind}_{version}.mdl"
        assert embmap.convert(path, tmp_path / "a.fifu").n_words == 3


@pytest.mark.parametrize("name", ["word2vec_pre_kv_py3_4", "word2vec_pre_kv_sep_py3_4"])
def test_names_that_python_3_mistook_are_read(tmp_path, data, name):
    report = embmap.convert(data / name, tmp_path / "a.npy")
    assert (report.n_words, report.dim) == (9, 2)


def test_relations_are_read_as_their_nodes(tmp_path, models, data):
    path = data / "poincare_test_3.4.0"
    report = embmap.convert(path, tmp_path / "a.npy", dtype="float64")
    theirs = pytest.importorskip("gensim.models.poincare").PoincareModel.load(str(path)).kv
    assert np.load(tmp_path / "a.npy").tobytes() == theirs.vectors.tobytes()
    assert report.words_path.read_text("utf-8").split() == theirs.index_to_key


def test_models_without_vectors_are_named(tmp_path, data):
    with pytest.raises(embmap.UnsupportedError, match="LdaModel holds no words with vectors"):
        embmap.convert(data / "lda_3_0_1_model", tmp_path / "a.npy")


def test_a_model_of_3_6_keeps_its_words(tmp_path, data):
    (tmp_path / "a.kv").write_bytes(gzip.decompress((data / "ft_kv_3.6.0.model.gz").read_bytes()))
    report = embmap.convert(tmp_path / "a.kv", tmp_path / "a.fifu")
    assert (report.n_words, set(report.left_out)) == (12, {"subwords", "word counts"})


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
@pytest.mark.parametrize("part", ["model", "vectors"])
def test_models_that_gensim_compressed_are_read(tmp_path, models, suffix, part):
    model = train(models)
    path = tmp_path / f"a.kv{suffix}"
    (model if part == "model" else model.wv).save(str(path), sep_limit=1)
    assert len(list(tmp_path.glob("*vectors_ngrams.npz"))) == 1
    report = embmap.convert(path, tmp_path / "a.fifu", normalize=False)
    assert set(report.left_out) == LOST | ({"training state"} if part == "model" else set())
    assert_equal_vectors(tmp_path / "a.fifu", model.wv)
    ngrams = next(tmp_path.glob("*vectors_ngrams.npz"))
    ngrams.write_bytes(ngrams.read_bytes()[:-30])
    with pytest.raises(embmap.FormatError, match="not an npz file"):
        embmap.convert(path, tmp_path / "b.fifu")


def test_document_vectors_are_named(tmp_path, models):
    from gensim.models.doc2vec import TaggedDocument

    documents = [TaggedDocument(WORDS, ["one"]), TaggedDocument(WORDS, ["two"])]
    model = models.Doc2Vec(documents, vector_size=4, min_count=1, epochs=1, workers=1)
    model.save(str(tmp_path / "a.model"))
    report = embmap.convert(tmp_path / "a.model", tmp_path / "a.npy")
    assert set(report.left_out) == {"document vectors", "training state", *LOST}
    assert np.load(tmp_path / "a.npy").tobytes() == model.wv.vectors.tobytes()
