"""The vectors of a spaCy pipeline out of a file."""

import importlib.metadata
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import embmap
from embmap.subwords import BucketIndexer, FloretIndexer

spacy = pytest.importorskip("spacy", reason="spaCy is not installed")

from spacy.vectors import Vectors  # noqa: E402

from embmap.spacy import FileVectors, create_vectors, set_vectors  # noqa: E402

WORDS = ["apple", "pear", "plum"]
VECTORS = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
TEXT = "apple plum cherry apple"


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS)


@pytest.fixture
def nlp(path):
    return pipeline(path)


def pipeline(path, **options):
    nlp = spacy.blank("en")
    set_vectors(nlp, path, **options)
    return nlp


def stock():
    """A pipeline with spaCy's own vectors."""
    nlp = spacy.blank("en")
    keys = [nlp.vocab.strings.add(word) for word in WORDS]
    nlp.vocab.vectors = Vectors(strings=nlp.vocab.strings, data=VECTORS.copy(), keys=keys)
    return nlp


def add_sums(doc):
    """A component: what it sees of the vectors goes into an attribute of the document."""
    keys = doc.to_array("ORTH")
    doc.user_data["sums"] = doc.vocab.vectors.get_batch(keys).sum(axis=1).tolist()
    return doc


def test_words_have_the_vectors_that_spacy_gives_them(nlp):
    doc, expected = nlp(TEXT), stock()(TEXT)
    for token, other in zip(doc, expected, strict=True):
        assert (token.has_vector, token.is_oov) == (other.has_vector, other.is_oov)
        assert token.vector.tolist() == other.vector.tolist()
    assert doc.vector.tolist() == expected.vector.tolist()
    assert doc[:2].vector.tolist() == expected[:2].vector.tolist()
    assert doc[0].similarity(doc[1]) == expected[0].similarity(expected[1])
    assert nlp.vocab.has_vector("pear")
    assert nlp.vocab.get_vector("pear").tolist() == VECTORS[1].tolist()


def test_a_batch_has_zeros_for_unknown_words(nlp):
    vectors = nlp.vocab.vectors
    keys = nlp(TEXT).to_array("ORTH")
    expected = [VECTORS[0], VECTORS[2], np.zeros(8), VECTORS[0]]
    for asked in (keys, TEXT.split(), keys.tolist()):
        assert vectors.get_batch(asked).tolist() == np.array(expected).tolist()
    assert vectors.get_batch([]).shape == (0, 8)
    assert (vectors.shape, vectors.size, len(vectors), vectors.n_keys) == ((3, 8), 24, 3, 3)


def test_the_embedding_layer_of_spacy_takes_them(nlp):
    from spacy.ml.staticvectors import StaticVectors

    doc, expected = nlp(TEXT), stock()(TEXT)
    model = StaticVectors(4, 8)
    model.initialize([doc])
    np.testing.assert_allclose(
        model.predict([doc]).data, model.predict([expected]).data, rtol=1e-6, atol=1e-6
    )


def test_a_pipeline_that_is_saved_keeps_its_file(nlp, path, tmp_path, monkeypatch):
    nlp.to_disk(tmp_path / "saved")
    size = sum(each.stat().st_size for each in (tmp_path / "saved").rglob("*") if each.is_file())
    assert size < 1 << 20
    monkeypatch.chdir(tmp_path / "saved")
    loaded = spacy.load(tmp_path / "saved")
    assert isinstance(loaded.vocab.vectors, FileVectors)
    assert loaded(TEXT).vector.tolist() == nlp(TEXT).vector.tolist()
    moved = path.rename(path.with_name("b.fifu"))
    with pytest.raises(FileNotFoundError, match=r"a\.fifu"):
        spacy.load(tmp_path / "saved")
    loaded = spacy.load(tmp_path / "saved", config={"nlp.vectors.path": str(moved)})
    assert loaded("pear")[0].vector.tolist() == VECTORS[1].tolist()
    embmap.finalfusion.write(moved, WORDS, VECTORS[:, :4])
    with pytest.raises(ValueError, match="4 numbers; the pipeline was saved with vectors of 8"):
        spacy.load(tmp_path / "saved", config={"nlp.vectors.path": str(moved)})


def test_a_configuration_names_the_file(tmp_path):
    np.save(tmp_path / "a.npy", VECTORS.astype("f2"))
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    settings = {
        "@vectors": "embmap.Vectors.v1",
        "path": str(tmp_path / "a.npy"),
        "vocab": str(tmp_path / "words.txt"),
        "backend": "read",
        "attr": "LOWER",
    }
    nlp = spacy.blank("en", config={"nlp": {"vectors": settings}})
    vector = nlp("PEAR")[0].vector
    assert (vector.dtype, vector.tolist()) == (np.float32, VECTORS[1].astype("f2").tolist())
    other = spacy.blank("en", config=nlp.config).from_bytes(nlp.to_bytes())
    assert other("PEAR")[0].vector.tolist() == vector.tolist()


def test_words_that_are_composed_have_vectors(tmp_path):
    indexer = BucketIndexer(3, 4, 4)
    rows = np.random.default_rng(1).standard_normal((3 + indexer.n_buckets, 8)).astype("f4")
    path = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, rows, subwords=indexer)
    nlp = pipeline(path)
    with embmap.open(path) as f:
        assert nlp("cherry")[0].vector.tolist() == f["cherry"].tolist()
    assert nlp("cherry")[0].has_vector


def test_floret_gives_what_spacy_gives(tmp_path):
    indexer = FloretIndexer(2, 4, 50, 2, seed=7)
    rows = np.random.default_rng(1).standard_normal((50, 8)).astype(np.float32)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", [], rows, subwords=indexer)
    nlp, other = pipeline(path), spacy.blank("en")
    settings = {"mode": "floret", "minn": 2, "maxn": 4, "hash_count": 2, "hash_seed": 7}
    other.vocab.vectors = Vectors(strings=other.vocab.strings, data=rows.copy(), **settings)
    text = "hello wörld 東京 🙂 a"
    for token, expected in zip(nlp(text), other(text), strict=True):
        assert token.has_vector
        np.testing.assert_allclose(token.vector, expected.vector, rtol=1e-5, atol=1e-6)
    assert not nlp.vocab.vectors.get_batch([""]).any()
    meta = nlp.meta["vectors"]
    assert (meta["mode"], meta["keys"]) == ("floret", -1)


def test_copies_of_a_pipeline_find_words_that_are_new_to_them(nlp):
    for _ in range(2):
        nlp = pickle.loads(pickle.dumps(nlp))
    assert nlp("pear")[0].vector.tolist() == VECTORS[1].tolist()
    vocab = pickle.loads(pickle.dumps(nlp.vocab))
    assert vocab["plum"].vector.tolist() == VECTORS[2].tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_have_the_vectors(nlp, monkeypatch, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    from spacy.language import Language

    monkeypatch.setattr("spacy.language.mp", multiprocessing.get_context(method))
    Language.component("add_sums", func=add_sums)
    nlp.add_pipe("add_sums")
    expected = add_sums(spacy.tokens.Doc(nlp.vocab, TEXT.split())).user_data["sums"]
    docs = list(nlp.pipe([TEXT] * 4, n_process=2, batch_size=2))
    assert [doc.user_data["sums"] for doc in docs] == [expected] * 4


def test_the_file_cannot_be_changed(nlp, path):
    data = path.read_bytes()
    with pytest.raises(ValueError, match="read-only"):
        nlp("pear")[0].vector[:] = 0
    for change in (
        lambda: nlp.vocab.set_vector("pear", np.zeros(8)),
        lambda: nlp.vocab.vectors.add("pear", vector=np.zeros(8)),
    ):
        with pytest.raises(TypeError, match="no vector can be added"):
            change()
    assert path.read_bytes() == data


def test_vectors_are_equal_if_their_file_is(nlp, path, tmp_path):
    same = pipeline(path).vocab.vectors
    other = pipeline(embmap.finalfusion.write(tmp_path / "b", WORDS, VECTORS)).vocab.vectors
    assert nlp.vocab.vectors == same != other
    assert len({nlp.vocab.vectors, same, other}) == 2
    assert nlp.vocab.vectors.to_bytes() == same.to_bytes() != other.to_bytes()
    assert nlp.vocab.vectors != "a"


def test_what_cannot_be_used_is_refused(path, tmp_path):
    np.save(tmp_path / "a.npy", VECTORS)
    embmap.embd.write(tmp_path / "a.weights", {"a": np.ones(3, "f4")}, vocab=["a"])
    (tmp_path / "b").write_bytes(b"nothing")
    nlp = spacy.blank("en")
    for given, options, message in (
        (tmp_path / "a.npy", {}, "has no words; name them with vocab"),
        (tmp_path / "a.weights", {}, "holds no vectors"),
        (tmp_path / "b", {}, "not a file of a known format"),
        (path, {"attr": "x"}, "attr must be an attribute of a token such as ORTH, not 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            set_vectors(nlp, given, **options)
    with pytest.raises(FileNotFoundError):
        create_vectors(str(tmp_path / "none"))(nlp.vocab)
    assert not nlp.vocab.vectors.size


def test_spacy_finds_the_function_without_an_import():
    installed = importlib.metadata.entry_points(group="spacy_vectors")
    found = [each for each in installed if each.name == "embmap.Vectors.v1"]
    if not found:
        pytest.skip("the installed metadata of embmap are older than its code")
    assert found[0].load() is create_vectors


@pytest.mark.slow
def test_without_spacy_the_extra_is_named():
    script = "import sys; sys.modules['spacy'] = None; import embmap; import embmap.spacy"
    root = str(Path(embmap.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
    )
    assert done.returncode == 1
    assert "need spaCy: pip install 'embmap[spacy]'" in done.stderr
