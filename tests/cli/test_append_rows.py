"""The command that appends rows to a CVC file."""

from pathlib import Path

import numpy as np

import embmap
from embmap.subwords import BucketIndexer
from tests.conversion.sources import VECTORS, WORDS


def cvc(path, vectors=VECTORS, words=None, **options):
    embmap.cvc.write(path, vectors, compression="lossless", layout="1.0", **options)
    if words is not None:
        Path(f"{path}.words.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")
    return path


def test_the_command_appends_rows_as_a_section(command, tmp_path):
    path, more = cvc(tmp_path / "a.cvc"), cvc(tmp_path / "b.cvc", VECTORS[:2])
    status, out, err = command(
        "append", path, more, "--section", "source=wiki", "--section", "n=1", "--chunk-rows", "1"
    )
    assert (status, out, err) == (0, f"{path}: 7 rows, 2 of them new\n", "")
    with embmap.open(path) as file:
        assert [chunk.rows for chunk in file.chunks] == [5, 1, 1]
        assert file.sections == (embmap.cvc.Section(5, 7, {"source": "wiki", "n": "1"}),)
        assert np.array_equal(np.asarray(file.vectors)[5:], VECTORS[:2])
    assert command("get", path, "--section", "n=1")[1].startswith("5 ")


def test_the_command_appends_words_where_the_file_has_some(command, tmp_path):
    path = cvc(tmp_path / "a.cvc", words=WORDS)
    indexer = BucketIndexer(3, 4, 2)
    rows = np.concatenate([VECTORS[:2], np.zeros((indexer.n_buckets, 6), np.float32)])
    more = embmap.finalfusion.write(tmp_path / "b.fifu", ["x", "y"], rows, subwords=indexer)
    assert command("append", path, more)[0] == 0
    with embmap.open(path, vocab=f"{path}.words.txt") as file:
        assert list(file.vocab) == [*WORDS, "x", "y"]
        assert np.array_equal(file["y"], VECTORS[1])
    assert command("append", path, cvc(tmp_path / "c.cvc", words=WORDS))[0] == 0
    assert len(Path(f"{path}.words.txt").read_text("utf-8").splitlines()) == 12
    status, _, err = command("append", path, cvc(tmp_path / "d.cvc"))
    assert status == 2
    assert err.endswith("has a word for each row; give words as well\n")
    plain = cvc(tmp_path / "e.cvc")
    status, _, err = command("append", plain, more)
    assert status == 0
    assert err == (
        f"embmap: {plain} does not hold the words of {more}, because its own rows have no words\n"
    )


def test_the_command_appends_columns_or_one_of_them(command, tmp_path):
    columns = {"id": np.arange(5), "x": VECTORS}
    path = embmap.cvc.write_columns(tmp_path / "a.cvc", columns)
    assert command("append", path, path)[1] == f"{path}: 10 rows, 5 of them new\n"
    plain = cvc(tmp_path / "b.cvc")
    assert command("append", plain, path, "--column", "x")[0] == 0
    assert len(embmap.open(plain)) == 15
    for arguments, message in (
        ((plain, path), "rows must be given for the columns vectors, not id, x"),
        ((path, plain), "rows must be given for the columns id, x"),
        ((plain, path, "--column", "y"), f"{path} has no column 'y'"),
        ((plain, path, "--section", "y"), "--section must be KEY=VALUE, not 'y'"),
    ):
        status, _, err = command("append", *arguments)
        assert status == 2
        assert err == f"embmap: {message}\n"


def test_other_files_are_refused(command, tmp_path):
    fifu = embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS)
    status, _, err = command("append", fifu, fifu)
    assert status == 2
    assert "not a CVC file" in err
    tensors = embmap.embd.write(tmp_path / "a.weights", {"x": VECTORS[0]})
    status, _, err = command("append", cvc(tmp_path / "a.cvc"), tensors)
    assert (status, err) == (2, f"embmap: {tensors} has no vectors\n")
