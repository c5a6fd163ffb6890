"""The command line: what people see, what programs parse, and the exit status."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import embmap

pytest.importorskip("typer", reason="typer is not installed")
pytest.importorskip("rich", reason="rich is not installed")

from embmap.cli import run

WORDS = ["one", "two", "zwölf"]


@pytest.fixture
def path(tmp_path):
    vectors = np.array([[1, 0.5], [0.1, -3e-30], [7, 8]], np.float32)
    return embmap.finalfusion.write(
        tmp_path / "a.fifu", WORDS, vectors, norms=[1, 2, 3], metadata='title = "t"'
    )


@pytest.fixture
def command(capsys, monkeypatch):
    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


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


def program(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "embmap", *map(str, arguments)],
        capture_output=True,
        check=False,
        **options,
    )


def test_the_module_runs_as_a_program(path):
    done = program("get", path, "one", "--format", "npy")
    assert np.load(io.BytesIO(done.stdout)).tolist() == [[1, 0.5]]
    done = program("get", path, "drei")
    assert (done.returncode, done.stdout) == (1, b"")
    path.with_name("a.fifu.embx").write_bytes(b"damaged")
    done = program("get", path, "one")
    assert done.returncode == 0
    assert done.stderr.startswith(b"embmap: warning: index ignored")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_a_reader_that_goes_away_is_no_traceback(path, tmp_path):
    vectors = np.ones((3000, 100), np.float32)
    big = embmap.finalfusion.write(tmp_path / "b", map(str, range(3000)), vectors)
    rows = [argument for i in range(3000) for argument in ("--row", str(i))]
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "embmap", "get", str(big), *rows],
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    os.read(reader, 10)
    os.close(reader)
    assert process.communicate()[1] == b""


def test_words_that_the_terminal_cannot_show_are_escaped(path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = program("get", path, "zwölf", env=environment)
    assert done.stdout == b"zw\\xf6lf 7.0 8.0\n"
    done = program("get", path, "zwölf", "--format", "json", env=environment)
    assert json.loads(done.stdout)[0]["word"] == "zwölf"


def test_without_typer_the_program_names_the_extra(path):
    blocked = (
        "import sys; sys.modules['typer'] = None; import embmap.__main__ as m; sys.exit(m.main())"
    )
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"pip install embmap[cli]" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_the_demo_makes_real_files_and_tells_their_price(command, tmp_path):
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


@pytest.fixture
def dynamic(tmp_path):
    """A dynamic embedding of four words, and the file that names them."""
    steps = np.zeros((3, 4, 2), np.int16)
    steps[:, 0] = [[10, 0], [10, 10], [0, 10]]
    steps[:, 1:] = [[1, 0], [0, 1], [-1, 2]]
    path = embmap.dwe.write(tmp_path / "a.dwe", steps, scale=0.5, group=2)
    vocab = tmp_path / "words.txt"
    vocab.write_text("moving\nleft\nright\nzwölf\n", encoding="utf-8")
    return path, vocab


def test_words_over_time_are_listed_and_got(command, dynamic):
    path, vocab = dynamic
    assert "4 x 3 x 2" in command("info", path)[1]
    lines = command("ls", path)[1].splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["timestep", str(t)] for t in range(3)]
    asked = ("get", path, "moving", "--vocab", vocab)
    assert command(*asked, "--time", "1") == (0, "moving 5.0 5.0\n", "")
    assert command(*asked, "-t", "-1")[1] == "moving 0.0 5.0\n"
    assert command("get", path, "--row", "3", "--time", "0") == (0, "3 -0.5 1.0\n", "")
    assert command("verify", path)[0] == 0
    assert command(*asked)[1] == "moving 0.0 5.0\n"
    status, _, err = command(*asked, "--time", "3")
    assert (status, err.count("\n")) == (2, 1)
    assert "time" in err
    assert command("get", path, "moving")[0] == 1
    assert command("get", path, "nobody", "-t", "0", "--vocab", vocab)[0] == 1


def test_trajectories_are_printed_drawn_and_written(command, dynamic, tmp_path):
    path, vocab = dynamic
    status, out, _ = command("trajectory", path, "moving", "left", "--vocab", vocab)
    assert status == 0
    assert [line.split() for line in out.splitlines()] == [
        ["time", "moving", "left"],
        ["0", "1.0000", "1.0000"],
        ["1", "0.7071", "1.0000"],
        ["2", "0.0000", "1.0000"],
    ]
    told = json.loads(command("trajectory", path, "0", "--to", "1", "--json")[1])
    assert told["words"]["0"] == pytest.approx([1, 0.5**0.5, 0])
    target = tmp_path / "out.npy"
    assert command("trajectory", path, "0", "-1", "--output", target)[0] == 2  # an option's look
    assert command("trajectory", path, "--output", target, "--", "0", "-1")[0] == 0
    with embmap.open(path) as file:
        assert np.array_equal(np.load(target), file[[0, 3]])


def test_a_trajectory_is_drawn(command, dynamic, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path, vocab = dynamic
    asked = ("trajectory", path, "moving", "zwölf", "--vocab", vocab, "--plot")
    picture = tmp_path / "out.png"
    assert command(*asked, picture)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    drawing = tmp_path / "out.svg"
    assert command(*asked, drawing)[0] == 0
    assert b"<svg" in drawing.read_bytes()
    status, _, err = command(*asked, tmp_path / "out.doc")
    assert (status, err.count("\n")) == (2, 1)
    assert command(*asked, path)[0] == 2
    assert not (tmp_path / "out.doc").exists()


def test_neighbours_and_changes_are_listed(command, dynamic):
    path, vocab = dynamic
    found = json.loads(
        command("related", path, "moving", "-t", "0", "-n", "2", "--vocab", vocab, "--json")[1]
    )
    assert found == [
        {"row": 1, "word": "left", "dot": 2.5},
        {"row": 2, "word": "right", "dot": 0.0},
    ]
    lines = command("changes", path, "0", "-n", "3")[1].splitlines()
    assert [line.split() for line in lines] == [
        ["word", "row", "change", "of", "the", "dot", "product"],
        ["3", "3", "7.5000"],
        ["2", "2", "2.5000"],
        ["1", "1", "-2.5000"],
    ]
    assert command("related", path, "nobody", "--vocab", vocab)[0] == 1
    for wrong in (
        ("related", path, "moving"),
        ("related", path, "9"),
        ("related", path, "0", "-t", "3"),
        ("related", path, "0", "-n", "4"),
        ("changes", path, "0", "-n", "2", "--min-increasing", "2", "--min-decreasing", "1"),
        ("related", vocab, "0"),
    ):
        status, _, err = command(*wrong)
        assert status == 2
        assert err.count("\n") == 1


def test_other_files_have_no_time_steps(command, path):
    for words in (("trajectory", path, "one"), ("get", path, "one", "--time", "0")):
        status, _, err = command(*words)
        assert status == 2
        assert "time steps" in err


def test_the_demonstration_can_be_served(command, monkeypatch, tmp_path):
    made, served = [], []
    monkeypatch.setattr("embmap.demo.tour.tour", lambda console, folder: made.append(folder))
    monkeypatch.setattr(
        "embmap.cli.demo_tour.serve", lambda files, **options: served.append((files, options))
    )
    assert "--serve" in command("demo", "--folder", tmp_path)[1]
    assert (made, served) == ([tmp_path], [])
    assert command("demo", "--folder", tmp_path, "--serve", "--port", "0")[0] == 0
    ((files, options),) = served
    assert [os.path.dirname(file) for file in files] == [str(tmp_path)] * 2
    assert options["port"] == 0
    assert command("demo", "--serve")[0] == 0
    assert not made[-1].exists()  # a temporary folder, gone once serving ends
