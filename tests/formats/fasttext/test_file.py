"""Models of fastText, opened in place: what gensim reads, and what damaged files say."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from embmap.subwords import FastTextIndexer
from tests.judges.inputs import DIM, WORDS, fasttext

VERSIONS = [None, 11, 12]
LABELS = ["__label__x", "__label__y"]


def made(path, *args, **options):
    data, matrix = fasttext(*args, **options)
    path.write_bytes(data)
    return matrix


@pytest.mark.parametrize("version", VERSIONS)
def test_words_are_means_of_their_rows_and_unknown_words_of_their_ngrams(
    tmp_path, backend, version
):
    matrix = made(tmp_path / "a.bin", version=version, labels=LABELS)
    indexer = FastTextIndexer(2, 4, 7)
    with embmap.open(tmp_path / "a.bin", backend=backend) as file:
        layout = "first" if version is None else str(version)
        assert (file.format, file.layout, file.shape) == ("fasttext", layout, (len(WORDS), DIM))
        assert list(file) == WORDS
        for i, word in enumerate([*WORDS, "unbekannt", "日本"]):
            rows = (indexer.buckets([word])[0] + len(WORDS)).tolist()
            expected = matrix[[i, *rows] if i < len(WORDS) else rows].mean(axis=0)
            np.testing.assert_allclose(file[word], expected, atol=1e-6)
        assert file.subwords.n_buckets == 7
        assert file.metadata["model"] == "SkipGram"
        assert file.verify().ok
    made(tmp_path / "a.bin", lengths=(4, 4), version=version)
    with embmap.open(tmp_path / "a.bin", backend=backend) as file:
        assert file.get("x") is None  # too short for an n-gram


@pytest.mark.parametrize("lengths", [(2, 4), (1, 3), (3, 6)])
def test_gensim_composes_the_same(tmp_path, backend, lengths):
    gensim = pytest.importorskip("gensim.models.fasttext", reason="gensim is not installed")
    path = tmp_path / "a.bin"
    made(path, lengths=lengths)
    theirs = gensim.load_facebook_vectors(str(path))
    with embmap.open(path, backend=backend) as file:
        words = [*WORDS, "unbekannt", "berliner", "日本語"]
        for word in words:
            np.testing.assert_allclose(file[word], theirs[word], atol=1e-6)
        np.testing.assert_allclose(file[words], theirs[words], atol=1e-6)
        np.testing.assert_allclose(np.asarray(file.vectors), theirs.vectors, atol=1e-6)
        expected = theirs.most_similar("berlin", topn=2)
        found = file.most_similar("berlin", 2)
        assert [(each.word, pytest.approx(each.score, abs=1e-5)) for each in found] == expected


@pytest.mark.parametrize("name", ["lee_fasttext", "non_ascii_fasttext", "lee_fasttext_new"])
def test_models_of_gensims_test_data_are_what_gensim_reads(name, backend):
    gensim = pytest.importorskip("gensim", reason="gensim is not installed")
    models = pytest.importorskip("gensim.models.fasttext")
    path = Path(gensim.__file__).parent / "test" / "test_data" / f"{name}.bin"
    if not path.exists():
        pytest.skip("gensim is installed without its test data")
    theirs = models.load_facebook_vectors(str(path))
    with embmap.open(path, backend=backend) as file:
        assert list(file) == theirs.index_to_key
        np.testing.assert_allclose(np.asarray(file.vectors), theirs.vectors, atol=1e-6)
        for word in ("unbekannt", "неизвестный"):
            np.testing.assert_allclose(file[word], theirs[word], atol=1e-6)


def test_models_without_ngrams_have_rows_as_they_are_stored(tmp_path):
    matrix = made(tmp_path / "a.bin", labels=LABELS, model=3, lengths=(0, 0), buckets=0)
    with embmap.open(tmp_path / "a.bin") as file:
        assert file.subwords is None
        np.testing.assert_array_equal(np.asarray(file.vectors), matrix)
        assert np.shares_memory(file["berlin"], file.stored[0].mapped())
        with pytest.raises(embmap.UnknownWordError):
            file["unbekannt"]


def test_nothing_is_scanned_before_it_is_needed_and_an_index_spares_the_scan(
    tmp_path, backend, monkeypatch
):
    path = tmp_path / "a.bin"
    words = [f"word{i}" for i in range(1000)]
    made(path, words)
    with embmap.open(path, backend=backend) as file:
        expected = file["word7"]
        file.build_index()

    def scan(*_):
        raise AssertionError("scanned")

    monkeypatch.setattr("embmap.words.row_finder.scan", scan)
    monkeypatch.setattr("embmap.formats.fasttext.layout.scan", scan)
    with embmap.open(path, backend=backend, index="require") as file:
        assert (len(file), file.info()["index"]) == (1000, "file")
        np.testing.assert_array_equal(file["word7"], expected)
        assert file.find(["absent"]).tolist() == [-1]
        assert file["absent"].shape == (DIM,)
    with embmap.open(path, backend=backend, index="memory") as file:
        assert (len(file.vocab), file.shape) == (1000, (1000, DIM))
        with pytest.raises(AssertionError, match="scanned"):
            file["word7"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantized": 1}, r"quantized model \(\.ftz\)"),
        ({"pruned": 3}, "pruned"),
        ({"version": 13}, "versions 11 and 12"),
    ],
)
def test_models_that_are_not_read_say_so(tmp_path, options, message):
    made(tmp_path / "a.bin", **options)
    with (
        pytest.raises(embmap.UnsupportedError, match=message),
        embmap.open(tmp_path / "a.bin") as file,
    ):
        file["berlin"]


def test_a_quantized_model_says_so_when_it_is_opened(tmp_path):
    """Its matrix is smaller than rows of float32: the file could be taken for a cut one."""
    data, matrix = fasttext(quantized=1, buckets=1000)
    start = data.index(matrix.tobytes())
    (tmp_path / "a.ftz").write_bytes(data[: start + 100])
    with pytest.raises(embmap.UnsupportedError, match="quantized"):
        embmap.open(tmp_path / "a.ftz")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_cut_anywhere_is_refused(tmp_path, backend, version):
    data, matrix = fasttext(["a", "bc"], buckets=2, version=version, labels=["x"])
    whole = data.index(matrix.tobytes()) + matrix.nbytes
    for end in range(4 if version else 76, whole):
        (tmp_path / "a.bin").write_bytes(data[:end])
        with (
            pytest.raises(embmap.TruncatedError),
            embmap.open(tmp_path / "a.bin", backend=backend, format="fasttext") as file,
        ):
            file["a"]
    (tmp_path / "a.bin").write_bytes(data[:whole])  # the output layer is not needed
    with embmap.open(tmp_path / "a.bin", backend=backend) as file:
        assert file["a"].shape == (DIM,)


def test_verify_finds_labels_among_words_and_values_that_are_not_finite(tmp_path):
    matrix = np.ones((len(WORDS) + 7, DIM), "<f4")
    matrix[-1, 0] = np.nan
    data, _ = fasttext(matrix=matrix)
    place = data.index("zürich".encode()) + len("zürich".encode()) + 9
    (tmp_path / "a.bin").write_bytes(data[:place] + b"\1" + data[place + 1 :])
    with embmap.open(tmp_path / "a.bin") as file:
        problems = {problem.severity: problem for problem in file.verify().problems}
    assert problems["error"].offset == place
    assert "all words" in problems["error"].message
    assert f"row {len(matrix) - 1} has a value that is not finite" in problems["warning"].message


MODEL = {version: fasttext(["a", "bc"], buckets=2, version=version)[0] for version in VERSIONS}


@given(
    st.sampled_from(VERSIONS), st.integers(0, 200), st.binary(min_size=1, max_size=4), st.booleans()
)
def test_wrong_bytes_are_answered_or_refused(tmp_path_factory, version, start, wrong, mapped):
    path = tmp_path_factory.mktemp("fasttext") / "a.bin"
    data = MODEL[version]
    path.write_bytes((data[:start] + wrong + data[start + len(wrong) :])[: len(data)])
    try:
        with embmap.open(path, backend="mmap" if mapped else "read", format="fasttext") as file:
            file.verify()
            file.get("bca")
            for word in file:
                assert file[word].shape == (file.dim,)
            assert np.asarray(file.vectors).shape == file.shape
    except embmap.EmbmapError:
        pass
