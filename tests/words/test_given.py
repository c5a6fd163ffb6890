"""Words that the caller gives to a file without words."""

import os
import pickle
import threading

import numpy as np
import pytest

import embmap


def test_words_may_be_given_to_a_file_that_has_none(tmp_path):
    matrix = tmp_path / "bare"
    whole = embmap.finalfusion.write(tmp_path / "whole", ["a", "b"], np.eye(2, dtype="f4"))
    chunk = embmap.open(whole).chunks[1]
    matrix.write_bytes(whole.read_bytes()[chunk.offset :])
    lines = tmp_path / "words.txt"
    for text in ("x\ny\n", "x\r\ny\r\n", "x\ny"):
        lines.write_bytes(text.encode())
        with embmap.open(matrix, vocab=lines) as file:
            assert file.layout == "bare"
            assert list(file) == ["x", "y"]
            assert file["y"].tolist() == [0, 1]
    with embmap.open(matrix, vocab=["x", "y"]) as file:
        assert file[["y", "x"]].tolist() == [[0, 1], [1, 0]]
        assert pickle.loads(pickle.dumps(file))["y"].tolist() == [0, 1]
    with embmap.open(matrix) as file:
        assert len(file) == 2
        assert file.vocab is None
        assert "x" not in file
        with pytest.raises(TypeError, match="no words"):
            iter(file)
        with pytest.raises(embmap.UnknownWordError):
            file["x"]
        with pytest.raises(ValueError, match="no words to index"):
            file.build_index()
    with pytest.raises(ValueError, match="3 words were given for 2 rows"):
        embmap.open(matrix, vocab=["x", "y", "z"])
    with pytest.raises(ValueError, match="words of its own"):
        embmap.open(whole, vocab=["x", "y"])


def test_words_of_a_text_with_two_kinds_of_line_ends_are_refused(tmp_path):
    whole = embmap.finalfusion.write(tmp_path / "whole", ["a", "b"], np.eye(2, dtype="f4"))
    chunk = embmap.open(whole).chunks[1]
    bare = tmp_path / "bare"
    bare.write_bytes(whole.read_bytes()[chunk.offset :])
    lines = tmp_path / "words.txt"
    lines.write_bytes(b"apple\r\npear\n")
    with (
        embmap.open(bare, vocab=lines) as file,
        pytest.raises(embmap.FormatError, match="ends in LF"),
    ):
        file["pear"]
    lines.write_bytes(b"\xef\xbb\xbfapple\npear\n")
    with embmap.open(bare, vocab=lines) as file:
        assert list(file) == ["apple", "pear"]
        assert file.build_index() == tmp_path / "words.txt.embx"
    with embmap.open(bare, vocab=lines, index="require") as file:
        assert file["pear"].tolist() == [0, 1]
        assert file.info()["index"] == "file"
    with (
        embmap.open(bare, vocab=["x", "y"]) as file,
        pytest.raises(ValueError, match="given in memory"),
    ):
        file.build_index()
    for vocab in (["x", "y"], None):
        with pytest.raises(embmap.StaleIndexError):
            embmap.open(bare, vocab=vocab, index="require")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_chosen_words_may_come_through_a_pipe(tmp_path):
    source = embmap.finalfusion.write(tmp_path / "a", ["a", "b", "c"], np.eye(3, dtype="f4"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("c\na\n",), daemon=True)
    writer.start()
    report = embmap.convert(source, tmp_path / "b.fifu", words=pipe)
    writer.join(30)
    assert report.n_words == 2
    with embmap.open(tmp_path / "b.fifu") as file:
        assert list(file) == ["a", "c"]
