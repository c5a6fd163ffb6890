"""The command line: what people see, what programs parse, and the exit status."""

import io
import json
from itertools import islice

import numpy as np
import pytest

import embmap

pytest.importorskip("typer", reason="typer is not installed")
pytest.importorskip("rich", reason="rich is not installed")


def test_info_describes_a_file(command, path):
    status, out, err = command("info", path)
    assert (status, err) == (0, "")
    assert "finalfusion" in out
    assert "3 x 2" in out
    facts = json.loads(command("info", path, "--json")[1])
    assert facts["n_words"] == 3
    assert facts["metadata"] == {"title": "t"}


def test_ls_lists_the_parts(command, path):
    status, out, _ = command("ls", path)
    assert status == 0
    assert "simple vocabulary" in out
    parts = json.loads(command("ls", path, "--json")[1])
    assert [part["id"] for part in parts] == [5, 1, 2, 6]
    assert parts[0]["offset"] == 28


def test_get_prints_vectors_that_read_back_exactly(command, path):
    status, out, _ = command("get", path, "two", "zwölf", "--row", "0")
    assert status == 0
    lines = [line.split(" ") for line in out.splitlines()]
    assert [line[0] for line in lines] == ["two", "zwölf", "0"]
    with embmap.open(path) as file:
        for line, row in zip(lines, (1, 2, 0), strict=True):
            assert np.array(line[1:], np.float32).tolist() == file[row].tolist()


def test_get_prints_json_and_npy(command, path, tmp_path):
    values = json.loads(command("get", path, "one", "--row", "2", "--format", "json")[1])
    assert values == [{"word": "one", "vector": [1, 0.5]}, {"row": 2, "vector": [7, 8]}]
    target = tmp_path / "out.npy"
    assert command("get", path, "one", "zwölf", "--format", "npy", "--output", target)[0] == 0
    assert np.load(target).tolist() == [[1, 0.5], [7, 8]]
    text = tmp_path / "out.txt"
    assert command("get", path, "zwölf", "--output", text)[0] == 0
    assert text.read_text("utf-8") == "zwölf 7.0 8.0\n"


def test_get_reads_words_from_stdin(command, path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    status, out, _ = command("get", path, "-")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["one", "two"]


def test_sections_and_columns_of_cvc_files_are_printed(command, tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    sections = [
        {"start": 0, "stop": 2, "metadata": {"lang": "de", "n": 1}},
        {"start": 4, "stop": 6, "metadata": {"lang": "en"}},
    ]
    path = embmap.cvc.write(tmp_path / "a.cvc", rows, sections=sections)
    assert command("get", path, "--section", "lang=en") == (0, "4 8.0 9.0\n5 10.0 11.0\n", "")
    assert command("get", path, "--section", "n=1")[1].startswith("0 0.0 1.0")
    for wrong in ("lang=fr", "lang"):
        status, _, err = command("get", path, "--section", wrong)
        assert status == 2
        assert err.count("\n") == 1
    assert "chunk 0" in command("ls", path)[1]
    assert command("verify", path)[0] == 0
    columns = {"a": rows, "id": np.arange(6, dtype=np.int32)}
    path = embmap.cvc.write_columns(tmp_path / "b.cvc", columns)
    assert command("get", path, "--row", "3", "--column", "id") == (0, "3 3\n", "")
    assert command("get", path, "--row", "3", "--column", "none")[0] == 2
    assert command("get", path, "--row", "3")[0] == 2


def test_tensors_are_listed_with_their_places(command, tmp_path):
    tensors = {"embeddings.word_embeddings.weight": np.eye(2, dtype="f4")}
    path = embmap.embd.write(tmp_path / "a.weights", tensors, vocab=["a", "b"])
    assert command("get", path, "b") == (0, "b 0.0 1.0\n", "")
    (part,) = json.loads(command("ls", path, "--json")[1])
    assert part["alignment"] >= 64
    assert command("verify", path)[0] == 0
    status, _, err = command("get", path, "--section", "a=b")
    assert status == 2
    assert "no sections" in err


def test_unknown_words_and_rows_exit_with_1_and_the_rest_is_printed(command, path):
    status, out, err = command("get", path, "one", "drei", "--row", "3")
    assert status == 1
    assert out == "one 1.0 0.5\n"
    assert err == f"embmap: {path}: no vector for 'drei'\nembmap: {path}: no row 3\n"
    status, out, err = command("get", path, "one", "drei", "--format", "npy")
    assert (status, out) == (1, "")


def test_verify_exits_with_1_when_something_is_wrong(command, path):
    status, out, err = command("verify", path)
    assert (status, err) == (0, "")
    assert out.endswith("ok; checked words, chunks, metadata, norms, vectors\n")
    path.write_bytes(path.read_bytes().replace("zwölf".encode(), b"zw\xc3\xc3lf"))
    status, out, _ = command("verify", path)
    assert status == 1
    assert "not UTF-8" in out
    report = json.loads(command("verify", path, "--json")[1])
    assert not report["ok"]
    assert report["problems"][0]["severity"] == "error"


def test_index_writes_one_that_is_used(command, path, tmp_path):
    status, out, _ = command("index", path)
    assert status == 0
    assert out.startswith(f"{path}.embx: 3 words, ")
    with embmap.open(path, index="require") as file:
        assert "two" in file
    other = tmp_path / "other.embx"
    assert command("index", path, "--output", other)[0] == 0
    with embmap.open(path, index=other) as file:
        assert "two" in file


@pytest.mark.parametrize("name", ["info", "ls", "verify", "index"])
def test_bad_files_exit_with_2_and_one_line(command, tmp_path, name):
    (tmp_path / "text").write_text("hello")
    for wrong in ("text", "missing", "."):
        status, out, err = command(name, tmp_path / wrong)
        assert (status, out) == (2, "")
        assert err.startswith("embmap: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["frob"], ["info"], ["get", "FILE"], ["info", "FILE", "--layout", "v9"], ["info", "--frob"]],
)
def test_bad_usage_exits_with_2_and_one_line(command, path, arguments):
    status, out, err = command(*[path if item == "FILE" else item for item in arguments])
    assert (status, out) == (2, "")
    assert err.startswith("embmap: ")
    assert err.count("\n") == 1


def test_nothing_to_index_is_bad_usage(command, tmp_path):
    indexer = embmap.subwords.FloretIndexer(1, 2, 2)
    path = embmap.finalfusion.write(tmp_path / "a", None, np.eye(2, dtype="f4"), subwords=indexer)
    status, _, err = command("index", path)
    assert status == 2
    assert "no words to index" in err


def test_help_and_version(command):
    assert command()[1].startswith("Usage: embmap")
    assert command("--version")[1] == f"embmap {embmap.__version__}\n"
    for name in ("info", "ls", "get", "verify", "index", "demo"):
        assert name in command("--help")[1]
        assert command(name, "--help")[0] == 0


def test_the_embedding_itself_is_no_output(command, path):
    before = path.read_bytes()
    for form in ("text", "json", "npy"):
        status, _, err = command("get", path, "one", "--format", form, "--output", path)
        assert status == 2
        assert "name another file" in err
    status, _, err = command("index", path, "--output", path)
    assert status == 2
    assert "holds the data" in err
    assert path.read_bytes() == before


def test_paths_and_metadata_are_shown_as_they_are(command, tmp_path):
    path = tmp_path / ("[v2] " + "x" * 150)
    rows = np.eye(1, dtype="f4")
    embmap.finalfusion.write(path, ["a"], rows, metadata='title = "[/] :smile:"')
    status, out, err = command("info", path)
    assert (status, err) == (0, "")
    assert str(path) in out
    assert "[/] :smile:" in out
    assert command("ls", path)[0] == 0


def test_numbers_that_are_not_finite_are_null_in_json(command, tmp_path):
    rows = np.array([[1, np.nan, np.inf]], np.float32)
    path = embmap.finalfusion.write(tmp_path / "a", ["a"], rows)
    assert json.loads(command("get", path, "a", "--format", "json")[1])[0]["vector"] == [
        1,
        None,
        None,
    ]


def test_no_words_on_stdin_are_an_empty_answer(command, path, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert command("get", path, "-", "--format", "json") == (0, "[]\n", "")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    target = tmp_path / "none.npy"
    assert command("get", path, "-", "--format", "npy", "--output", target)[0] == 0
    assert np.load(target).shape == (0, 2)


def test_words_on_stdin_end_at_newlines_alone(command, tmp_path, monkeypatch):
    words = ["a\u2028b", "c"]
    path = embmap.finalfusion.write(tmp_path / "a", words, np.eye(2, dtype="f4"))
    monkeypatch.setattr("sys.stdin", io.StringIO("a\u2028b\nc\r\n"))
    assert command("get", path, "-")[0] == 0


@pytest.mark.slow
def test_the_demo_makes_real_files_and_tells_their_price(command, tmp_path, monkeypatch):
    from embmap.demo import corpus, tour

    # A fifth of the text in fewer dimensions, which takes a fifth of the time.
    monkeypatch.setattr(tour, "documents", lambda: islice(corpus.documents(), 0, None, 5))
    for name, value in (("_DIM", 40), ("_EXPONENT", 11), ("_N_SLICES", 3), ("_SLICED_WORDS", 1000)):
        monkeypatch.setattr(tour, name, value)
    status, out, _ = command("demo", "--folder", tmp_path)
    assert status == 0
    assert "nearest to 'list'" in out
    assert "docstrings-subwords.fifu" in out
    with embmap.open(tmp_path / "docstrings-subwords.fifu", index="require") as file:
        assert len(file) > 1000
        assert np.isclose(np.linalg.norm(file["filesystemlike"]), 1)
        assert file.verify().ok
    assert "docstrings-mixed.cvc" in out
    with embmap.open(tmp_path / "docstrings-int8.cvc") as file:
        assert len(file) > 1000
        assert file.verify().ok
    with embmap.open(tmp_path / "docstrings.weights") as file:
        assert np.isclose(np.linalg.norm(file["list"]), 1)
        assert file.verify().ok
    with embmap.open(tmp_path / "docstrings.fifu") as file:
        similar = file["tuple"] @ file["list"]
        assert similar > file["tuple"] @ file["socket"]
