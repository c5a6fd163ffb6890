"""Binary files of word2vec, opened in place: what gensim reads, and what damaged files say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from tests.judges.inputs import DIM, WORDS, word2vec


def made(path, words=WORDS, newline=b"\n"):
    data, vectors = word2vec(words, newline)
    path.write_bytes(data)
    return vectors


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_words_and_rows_in_every_back_end(tmp_path, backend, newline):
    path = tmp_path / "a.bin"
    vectors = made(path, newline=newline)
    with embmap.open(path, backend=backend) as file:
        layout = "newlines" if newline else "plain"
        assert (file.format, file.layout, file.shape) == ("word2vec", layout, (len(WORDS), DIM))
        assert list(file) == WORDS
        np.testing.assert_array_equal(file["東京"], vectors[3])
        np.testing.assert_array_equal(file[["東京", "</s>"]], vectors[[3, 0]])
        np.testing.assert_array_equal(np.asarray(file.vectors), vectors)
        assert file.most_similar("berlin", 2) == file.most_similar(vectors[1], 3)[1:]
        assert file.verify().ok
        assert "Berlin" not in file
    with pytest.raises(ValueError, match="words of its own"):
        embmap.open(path, vocab=WORDS)


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_an_index_file_spares_the_scan(tmp_path, backend, newline, monkeypatch):
    path = tmp_path / "a.bin"
    words = [f"word{i}" for i in range(1000)]
    vectors = made(path, words, newline)
    path.write_bytes(path.read_bytes().removesuffix(newline or b"-"))  # as some programs end
    with embmap.open(path, backend=backend) as file:
        assert list(file) == words
        file.build_index()

    def scan(*_):
        raise AssertionError("scanned")

    monkeypatch.setattr("embmap.words.row_finder.scan", scan)
    with embmap.open(path, backend=backend, index="require") as file:
        assert file.info()["index"] == "file"
        np.testing.assert_array_equal(file["word999"], vectors[999])
        np.testing.assert_array_equal(np.asarray(file.vectors), vectors)
        assert file.find(["word5", "absent"]).tolist() == [5, -1]


def test_the_words_are_not_scanned_before_they_are_needed(tmp_path, monkeypatch):
    def scan(*_):
        raise AssertionError("scanned")

    made(tmp_path / "a.bin")
    monkeypatch.setattr("embmap.words.row_finder.scan", scan)
    with embmap.open(tmp_path / "a.bin") as file:
        assert file.info()["n_words"] == len(file.vocab) == len(WORDS)
        repr(file)
        with pytest.raises(AssertionError, match="scanned"):
            file["berlin"]


def test_what_gensim_writes_is_read_and_the_other_way(tmp_path):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    vectors = made(tmp_path / "ours.bin")
    theirs = models.KeyedVectors.load_word2vec_format(str(tmp_path / "ours.bin"), binary=True)
    assert theirs.index_to_key == WORDS
    theirs.save_word2vec_format(str(tmp_path / "theirs.bin"), binary=True)
    with embmap.open(tmp_path / "theirs.bin") as file:
        assert list(file) == WORDS
        for word in WORDS:
            np.testing.assert_array_equal(file[word], theirs[word])
            np.testing.assert_array_equal(file[word], vectors[WORDS.index(word)])
        expected = theirs.most_similar("berlin", topn=3)
        found = file.most_similar("berlin", 3)
        assert [(each.word, pytest.approx(each.score, abs=1e-6)) for each in found] == expected


def test_rows_of_a_mapped_file_are_views_of_it(tmp_path):
    made(tmp_path / "a.bin")
    with embmap.open(tmp_path / "a.bin") as file:
        assert np.shares_memory(file["berlin"], file._file.array(0, "u1", file._file.nbytes))
        assert not file["berlin"].flags.writeable


def test_a_layout_can_be_named(tmp_path):
    """A first word that begins with a newline could otherwise be taken for the end of a row."""
    made(tmp_path / "a.bin")
    with embmap.open(tmp_path / "a.bin", layout="newlines") as file:
        assert list(file) == WORDS
    made(tmp_path / "a.bin", newline=b"")
    with (
        embmap.open(tmp_path / "a.bin", layout="newlines") as file,
        pytest.raises(embmap.FormatError),
    ):
        list(file)


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_rows_of_which_only_some_end_in_a_newline_are_refused(tmp_path, newline):
    data, _ = word2vec(newline=newline)
    place = data.index(b"berlin ") + len(b"berlin ") + 4 * DIM
    other = data[:place] + b"\n" + data[place:]
    (tmp_path / "a.bin").write_bytes(other)
    with (
        pytest.raises(embmap.FormatError, match="newlines must come before this word") as caught,
        embmap.open(tmp_path / "a.bin") as file,
    ):
        file["berlin"]
    assert caught.value.offset == place + len(newline)


def test_verify_reports_bytes_after_the_last_row(tmp_path):
    made(tmp_path / "a.bin")
    data = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "a.bin").write_bytes(data + b"more")
    with embmap.open(tmp_path / "a.bin") as file:
        (problem,) = file.verify().problems
        assert (problem.severity, problem.offset) == ("error", len(data))
        assert list(file) == WORDS


def test_a_file_without_words(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"0 3\n")
    with embmap.open(tmp_path / "a.bin", format="word2vec") as file:
        assert (len(file), file.shape) == (0, (0, 3))
        assert "a" not in file
        assert file.verify().ok


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_file_cut_anywhere_is_refused(tmp_path, backend, newline):
    data, _ = word2vec(newline=newline)
    whole = len(data) - len(newline)
    for end in range(4, whole):
        (tmp_path / "a.bin").write_bytes(data[:end])
        with (
            pytest.raises(embmap.TruncatedError),
            embmap.open(tmp_path / "a.bin", backend=backend, format="word2vec") as file,
        ):
            file["berlin"]


DATA = word2vec()[0]


@given(st.integers(0, len(DATA) - 1), st.binary(min_size=1, max_size=4), st.booleans())
def test_wrong_bytes_are_answered_or_refused(tmp_path_factory, start, wrong, mapped):
    path = tmp_path_factory.mktemp("word2vec") / "a.bin"
    path.write_bytes((DATA[:start] + wrong + DATA[start + len(wrong) :])[: len(DATA)])
    try:
        with embmap.open(path, format="word2vec", backend="mmap" if mapped else "read") as file:
            file.verify()
            for word in file:
                assert file[word].shape == (file.dim,)
            assert np.asarray(file.vectors).shape == file.shape
    except embmap.EmbmapError:
        pass
