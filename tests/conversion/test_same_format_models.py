"""fastText's and gensim's models converted to themselves, and what other outputs lack of them."""

import struct

import numpy as np
import pytest

import embmap
from tests.judges.inputs import WORDS, fasttext
from tests.reference.other_tools import decode_fasttext

LABELS = ["__label__x", "__label__y"]
LOST = ("word counts", "labels", "output matrix")
VERSIONS = [None, 11, 12]


def model(folder, **options):
    path = folder / "a.bin"
    path.write_bytes(fasttext(**{"labels": LABELS, **options})[0])
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "options", [{}, {"model": 3}, {"buckets": 0, "lengths": (0, 0)}, {"labels": ()}]
)
def test_a_fasttext_model_is_the_same_again(tmp_path, version, options):
    words = [*WORDS, WORDS[1]]
    path, out = model(tmp_path, words=words, version=version, **options), tmp_path / "b.bin"
    report = embmap.convert(path, out, output_format="fasttext")
    assert out.read_bytes() == path.read_bytes()
    assert (report.n_words, report.n_duplicates, report.left_out) == (5, 0, ())
    with embmap.open(path) as file, embmap.open(out) as copy:
        assert copy.verify().problems == file.verify().problems


def test_copying_a_model_reports_progress(tmp_path):
    calls = []
    path = model(tmp_path)
    embmap.convert(
        path,
        tmp_path / "b.bin",
        output_format="fasttext",
        progress=lambda *call: calls.append(call),
    )
    size = path.stat().st_size
    assert calls[-1] == ("copying bytes", size, size)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "options", [{"limit": 2}, {"words": WORDS[:2]}, {"dtype": "float32"}, {"normalize": True}]
)
def test_a_fasttext_model_of_other_rows_is_made_anew(tmp_path, version, options):
    path, out = model(tmp_path, version=version), tmp_path / "b.bin"
    report = embmap.convert(path, out, output_format="fasttext", **options)
    assert report.left_out == LOST
    words, matrix = decode_fasttext(out.read_bytes())
    n = report.n_words
    assert words == [word.encode() for word in WORDS[:n]]
    buckets = decode_fasttext(path.read_bytes())[1][len(WORDS) :]
    np.testing.assert_array_equal(matrix[n:], buckets)


def test_metadata_subwords_and_lengths_of_a_fasttext_model_can_be_changed(tmp_path):
    path, out = model(tmp_path, labels=()), tmp_path / "b.bin"
    options = {"output_format": "fasttext"}
    lost = ("word counts", "output matrix")
    assert embmap.convert(path, out, metadata={"epoch": 9}, **options).left_out == lost
    with embmap.open(out) as file:
        assert file.metadata["epoch"] == 9
    assert embmap.convert(path, out, subwords="none", **options).left_out == ("subwords", *lost)
    with embmap.open(out) as file:
        assert file.subwords is None
    assert embmap.convert(path, out, dim=2, **options).left_out == lost
    with embmap.open(out) as file:
        assert file.shape == (len(WORDS), 2)


def test_words_that_are_not_utf8_are_replaced_in_a_fasttext_model(tmp_path):
    path, out = model(tmp_path), tmp_path / "b.bin"
    path.write_bytes(path.read_bytes().replace("zürich".encode(), b"z\xfc\xfcrich"))
    with pytest.raises(embmap.FormatError, match="not UTF-8"):
        embmap.convert(path, out, output_format="fasttext")
    report = embmap.convert(path, out, output_format="fasttext", lossy=True)
    assert report.left_out == LOST
    assert decode_fasttext(out.read_bytes())[0][2] == "z\ufffd\ufffdrich".encode()


@pytest.mark.parametrize("version", VERSIONS)
def test_other_outputs_name_what_they_lack_of_a_fasttext_model(tmp_path, version, command):
    path = model(tmp_path, version=version)
    assert embmap.convert(path, tmp_path / "b.fifu").left_out == LOST
    assert set(embmap.convert(path, tmp_path / "b.kv").left_out) == {"metadata", *LOST}
    status, _, err = command("convert", path, tmp_path / "b.fifu")
    assert status == 0
    assert f"does not hold the input's {', '.join(LOST)}\n" in err
    embmap.convert(tmp_path / "b.fifu", tmp_path / "c.bin", output_format="fasttext")
    report = embmap.convert(tmp_path / "c.bin", tmp_path / "c.fifu")
    assert report.left_out == ("word counts",)  # descending numbers


def test_an_output_matrix_without_rows_is_not_missed(tmp_path):
    path = model(tmp_path, labels=())
    data = path.read_bytes()
    start = data.rindex(struct.pack("<2q", len(WORDS), 3))
    path.write_bytes(data[:start] + struct.pack("<2q", 0, 3))
    assert embmap.convert(path, tmp_path / "b.npy").left_out == (
        "subwords",
        "metadata",
        "word counts",
    )


# gensim


@pytest.fixture(scope="module")
def models():
    return pytest.importorskip("gensim.models", reason="gensim is not installed")


def train(models, kind, **options):
    texts = [[f"w{i}" for i in range(n, 9)] for n in range(9)]
    options = {"bucket": 50, **options} if kind == "FastText" else options
    return getattr(models, kind)(
        texts, vector_size=4, min_count=1, workers=1, epochs=1, seed=3, **options
    )


def load(models, kind, path):
    fasttext = pytest.importorskip("gensim.models.fasttext").FastTextKeyedVectors
    return (fasttext if kind == "FastText" else models.KeyedVectors).load(str(path))


def assert_same_expandos(found, expected, rows=slice(None)):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values[rows], strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Word2Vec", "FastText"])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_keyed_vectors_keep_counts_and_attributes(tmp_path, models, kind, protocol):
    vectors = train(models, kind).wv
    for number, word in enumerate(vectors.index_to_key):
        vectors.set_vecattr(word, "my weight", number / 3)
        vectors.set_vecattr(word, "flag", np.int8(number))
    vectors.save(str(tmp_path / "a.kv"), pickle_protocol=protocol)
    theirs = load(models, kind, tmp_path / "a.kv")
    report = embmap.convert(tmp_path / "a.kv", tmp_path / "b.kv")
    assert report.left_out == ()
    ours = load(models, kind, tmp_path / "b.kv")
    assert type(ours) is type(theirs)
    assert (ours.index_to_key, ours.key_to_index) == (theirs.index_to_key, theirs.key_to_index)
    assert_same_expandos(ours.expandos, theirs.expandos)
    arrays = ["vectors"] + ["vectors_vocab", "vectors_ngrams"] * (kind == "FastText")
    for name in arrays:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), strict=True)
    assert ours.get_vecattr("w3", "count") == theirs.get_vecattr("w3", "count")
    again = embmap.convert(tmp_path / "b.kv", tmp_path / "c.kv")
    assert again.left_out == ()
    assert (tmp_path / "c.kv").read_bytes() == (tmp_path / "b.kv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Word2Vec", "FastText"])
def test_chosen_words_of_keyed_vectors_keep_their_counts(tmp_path, models, kind):
    train(models, kind).wv.save(str(tmp_path / "a.kv"))
    theirs = load(models, kind, tmp_path / "a.kv")
    rows = [1, 4, 8]
    words = [theirs.index_to_key[row] for row in rows]
    for options, chosen in (({"words": words}, rows), ({"limit": 2}, [0, 1])):
        report = embmap.convert(tmp_path / "a.kv", tmp_path / "b.kv", **options)
        assert report.left_out == ()
        ours = load(models, kind, tmp_path / "b.kv")
        assert ours.index_to_key == [theirs.index_to_key[row] for row in chosen]
        assert_same_expandos(ours.expandos, theirs.expandos, chosen)
        np.testing.assert_array_equal(ours.vectors, theirs.vectors[chosen], strict=True)
    report = embmap.convert(tmp_path / "a.kv", tmp_path / "b.npy")
    assert set(report.left_out) - {"subwords"} == {"word counts", "word attributes"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Word2Vec", "FastText"])
def test_models_name_their_training_state(tmp_path, models, kind):
    model = train(models, kind, hs=1)
    model.save(str(tmp_path / "a.model"))
    report = embmap.convert(tmp_path / "a.model", tmp_path / "b.kv")
    assert report.left_out == ("training state",)
    ours = load(models, kind, tmp_path / "b.kv")
    assert_same_expandos(ours.expandos, {n: model.wv.expandos[n] for n in ours.expandos})
    assert ours.expandos.keys() == {"count", "sample_int"}
    np.testing.assert_array_equal(ours.vectors, model.wv.vectors)
    model.wv.save(str(tmp_path / "a.kv"))  # with the places of words in the tree
    assert embmap.convert(tmp_path / "a.kv", tmp_path / "b.kv").left_out == ("training state",)


@pytest.mark.slow
def test_attributes_that_are_no_numbers_are_named(tmp_path, models):
    vectors = models.KeyedVectors(2)
    vectors.add_vectors(["a", "b"], np.ones((2, 2), np.float32))
    vectors.set_vecattr("a", "title", "A")
    vectors.save(str(tmp_path / "a.kv"))
    report = embmap.convert(tmp_path / "a.kv", tmp_path / "b.kv")
    assert report.left_out == ("other word attributes",)
    vectors.expandos = {"count": np.arange(3)}  # of words that were removed
    vectors.save(str(tmp_path / "a.kv"))
    assert embmap.convert(tmp_path / "a.kv", tmp_path / "b.kv").left_out == ("word counts",)
    assert load(models, "Word2Vec", tmp_path / "b.kv").expandos == {}
