"""The commands that compare words, and the approximate index."""

import errno
import json
import os
import shutil
import sys

import numpy as np
import pytest

import embmap

WORDS = ["man", "king", "woman", "queen", "apple", "zwölf"]
ROWS = np.array(
    [[1, 0, 0.1], [1, 1, 0.1], [-1, 0, 0.1], [-1, 1, 0.1], [0, 0, -1], [0.2, 0.1, -1]], np.float32
)


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, ROWS)


@pytest.fixture
def command(capsys, monkeypatch):
    pytest.importorskip("typer", reason="typer is not installed")
    pytest.importorskip("rich", reason="rich is not installed")
    from embmap.cli import run

    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)

    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_similar_lists_the_nearest_words(command, path):
    status, out, err = command("similar", path, "apple", "-n", "2")
    assert (status, err) == (0, "")
    assert out.splitlines()[0].split() == ["word", "row", "cosine"]
    assert out.splitlines()[1].split() == ["zwölf", "5", "0.9759"]
    assert len(out.splitlines()) == 3
    for backend in ("mmap", "read"):
        arguments = ("apple", "--metric", "euclidean", "--json", "--backend", backend)
        (nearest, *rest) = json.loads(command("similar", path, *arguments)[1])
        assert nearest["word"] == "zwölf"
        assert nearest["distance"] == pytest.approx(0.05**0.5)
        assert len(rest) == 4
    assert "dot" in command("similar", path, "apple", "--metric", "dot")[1]


def test_analogies_are_answered(command, path):
    status, out, _ = command("analogy", path, "man", "king", "woman", "-n", "1")
    assert status == 0
    assert out.splitlines()[1].split()[:2] == ["queen", "3"]
    (best,) = json.loads(command("analogy", path, "man", "king", "woman", "-n", "1", "--json")[1])
    assert best["row"] == 3


def test_unknown_words_exit_with_1_and_bad_usage_with_2(command, path, tmp_path):
    status, out, err = command("similar", path, "none")
    assert (status, out, err) == (1, "", f"embmap: {path}: no vector for 'none'\n")
    status, out, err = command("analogy", path, "man", "x", "y")
    assert (status, out, err.count("\n")) == (1, "", 2)
    bare = embmap.cvc.write(tmp_path / "a.cvc", ROWS)
    status, _, err = command("similar", bare, "man")
    assert (status, err.count("\n")) == (2, 1)
    assert "--vocab" in err
    words = tmp_path / "words.txt"
    words.write_text("\n".join(WORDS) + "\n", "utf-8")
    assert "zwölf" in command("similar", bare, "apple", "--vocab", words)[1]
    assert command("similar", path, "man", "--metric", "hamming")[0] == 2
    assert command("similar", path, "man", "-n", "-1")[0] == 2
    assert command("similar", tmp_path / "missing", "man")[0] == 2


def test_accuracy_counts_by_section_and_skips_unknown_words(command, path, tmp_path):
    questions = tmp_path / "questions.txt"
    questions.write_text(
        ": royal people\nman king woman queen\nwoman queen man king\n\nMan King Woman Queen\n"
        ": wrong\nman king woman apple\n: none\na b c d\n",
        "utf-8",
    )
    status, out, err = command("accuracy", path, questions)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[1] == ["royal", "people", "100.00", "%", "2", "2", "1"]
    assert lines[2] == ["wrong", "0.00", "%", "0", "1", "0"]
    assert lines[3] == ["none", "0", "0", "1"]
    assert lines[4] == ["total", "66.67", "%", "2", "3", "2"]
    result = json.loads(command("accuracy", path, questions, "--json", "--lowercase")[1])
    assert result["sections"][0] == {
        "section": "royal people",
        "questions": 3,
        "skipped": 0,
        "correct": 3,
        "accuracy": 1.0,
    }
    assert result["sections"][2]["accuracy"] is None
    assert result["total"]["correct"] == 3
    questions.write_text("man king\n")
    status, _, err = command("accuracy", path, questions)
    assert status == 2
    assert "line 1: a question has 4 words, not 2" in err
    questions.write_bytes(b"\xff\xff")
    assert command("accuracy", path, questions)[0] == 2
    questions.write_text("")
    assert json.loads(command("accuracy", path, questions, "--json")[1])["total"] == {
        "questions": 0,
        "skipped": 0,
        "correct": 0,
        "accuracy": None,
    }


@pytest.mark.filterwarnings("ignore")
def test_gensim_counts_the_same(command, tmp_path):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    rng = np.random.default_rng(3)
    offsets = rng.standard_normal((2, 20))
    stems = rng.standard_normal((60, 20))
    rows = np.concatenate((stems, stems + offsets[0], stems + offsets[1] * 0.3))
    rows = (rows + 0.4 * rng.standard_normal(rows.shape)).astype("f4")
    words = [f"{kind}{i}" for kind in "abc" for i in range(60)]
    path = embmap.finalfusion.write(tmp_path / "a.fifu", words, rows)
    lines = []
    for kind in "bc":
        lines.append(f": {kind}")
        for i, j in rng.integers(0, 65, (80, 2)).tolist():
            if i != j:
                lines.append(f"a{i} {kind}{i} a{j} {kind}{j}")
    questions = tmp_path / "q.txt"
    questions.write_text("\n".join(lines) + "\n")
    theirs = models.KeyedVectors(20)
    theirs.add_vectors(words, rows)
    _, sections = theirs.evaluate_word_analogies(str(questions), case_insensitive=False)
    ours = json.loads(command("accuracy", path, questions, "--json")[1])
    for expected, found in zip(sections[:-1], ours["sections"], strict=True):
        assert found["section"] == expected["section"]
        assert found["correct"] == len(expected["correct"])
        n_asked = found["questions"] - found["skipped"]
        assert n_asked == len(expected["correct"]) + len(expected["incorrect"])
    assert 0 < ours["total"]["correct"] < ours["total"]["questions"]


# The approximate index


@pytest.fixture
def clustered(tmp_path):
    pytest.importorskip("usearch", reason="usearch is not installed")
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((50, 16)).repeat(60, axis=0)
    rows = (rows + 0.5 * rng.standard_normal(rows.shape)).astype("f4")
    rows[7], rows[8, 2] = 0, np.nan
    return embmap.finalfusion.write(tmp_path / "c.fifu", [f"w{i}" for i in range(3000)], rows)


def test_approximate_answers_have_exact_scores_and_are_mostly_all_there(clustered):
    with embmap.open(clustered) as file:
        with pytest.raises(embmap.StaleIndexError, match="build_ann"):
            file.most_similar("w1", approximate=True)
        assert file.build_ann() == clustered.with_name("c.fifu.usearch")
    with embmap.open(clustered, backend="read") as file:
        words = [f"w{i}" for i in range(20, 60)]
        found = file.most_similar(words, 10, approximate=True)
        exact = file.most_similar(words, 10)
        assert found[0] == file.most_similar("w20", 10, approximate=True)
        shared = 0
        for some, all_ in zip(found, exact, strict=True):
            assert len(some) == 10
            scores = {neighbor.row: neighbor.score for neighbor in all_}
            same = [neighbor for neighbor in some if neighbor.row in scores]
            assert all(neighbor.score == scores[neighbor.row] for neighbor in same)
            assert [neighbor.score for neighbor in some] == sorted(
                (neighbor.score for neighbor in some), reverse=True
            )
            shared += len(same)
        assert shared >= 380
        best = file.most_similar("w20", 5, exclude=[found[0][0].row], approximate=True)
        assert found[0][0] not in best
        assert file.most_similar("w20", 0, approximate=True) == []
        with pytest.raises(ValueError, match="knows the cosine"):
            file.most_similar("w20", 5, "dot", approximate=True)


def test_an_approximate_index_of_other_data_is_refused(clustered, tmp_path):
    with embmap.open(clustered) as file:
        index = file.build_ann()
        before = index.read_bytes()
        with pytest.raises(ValueError, match="holds the data"):
            file.build_ann(clustered)

    def refused(path=clustered):
        with embmap.open(path) as file, pytest.raises(embmap.StaleIndexError):
            file.most_similar("w1", approximate=True)

    for damaged in (b"", b"hello", before[:-1], before[:-64], before[:1000] + before[-64:]):
        index.write_bytes(damaged)
        refused()
    for i in range(1, 65):
        flipped = bytearray(before)
        flipped[-i] ^= 1
        index.write_bytes(flipped)
        refused()
    index.write_bytes(before)
    copy = tmp_path / "d.fifu"
    shutil.copy(clustered, copy)
    shutil.copy(index, f"{copy}.usearch")
    copy.touch()
    refused(copy)
    with embmap.open(clustered) as file:
        assert file.most_similar("w1", 3, approximate=True)


def test_the_command_uses_the_approximate_index(command, clustered):
    with embmap.open(clustered) as file:
        file.build_ann()
        expected = file.most_similar("w1", 3, approximate=True)
    found = json.loads(command("similar", clustered, "w1", "-n", "3", "--approximate", "--json")[1])
    assert [neighbor["row"] for neighbor in found] == [neighbor.row for neighbor in expected]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes and pipes")
def test_the_approximate_index_replaces_its_target_as_every_writer_does(clustered, tmp_path):
    import resource

    with embmap.open(clustered) as file:
        private = tmp_path / "private"
        private.touch()
        private.chmod(0o600)
        assert file.build_ann(private).stat().st_mode & 0o777 == 0o600
        built = private.read_bytes()
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with pytest.raises(OSError, match="not a regular file"):
            file.build_ann(pipe)
        assert pipe.is_fifo()
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        for limit in (0, 10_000, len(built) - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
            try:
                with pytest.raises(OSError, match="too large") as caught:
                    file.build_ann(private)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
            assert caught.value.errno == errno.EFBIG
            assert private.read_bytes() == built
    assert not list(tmp_path.glob(".embmap*"))
    clustered.with_name("c.fifu.usearch").symlink_to(pipe)
    with embmap.open(clustered) as file, pytest.raises(embmap.StaleIndexError, match="regular"):
        file.most_similar("w1", approximate=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names are Unicode here")
def test_the_approximate_index_of_a_file_whose_name_is_not_utf8(clustered, tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    path = shutil.copy(clustered, folder / os.fsdecode(b"\xfe.fifu"))
    for _ in ("nameless temporary files", "named"):
        with embmap.open(path) as file:
            file.build_ann()
        with embmap.open(path) as file:
            assert len(file.most_similar("w1", 3, approximate=True)) == 3
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def test_a_missing_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "usearch.index", None)
    with embmap.open(path) as file, pytest.raises(ImportError, match=r"embmap\[ann\]"):
        file.build_ann()


def test_every_time_step_has_an_approximate_index_of_its_own(tmp_path):
    pytest.importorskip("usearch", reason="usearch is not installed")
    steps = np.random.default_rng(4).integers(-99, 99, (3, 400, 8)).astype(np.int16)
    path = embmap.dwe.write(tmp_path / "a.dwe", steps, scale=0.5, group=20)
    with embmap.open(path) as file:
        first = file.at(0)
        assert first.build_ann() == tmp_path / "a.dwe.0.usearch"
        assert first.most_similar(first[7], 5, approximate=True)[0].row == 7
        with pytest.raises(embmap.StaleIndexError):
            file.most_similar(file.at()[7], 5, approximate=True)
        assert file.build_ann() == tmp_path / "a.dwe.2.usearch"
        for t in (0, 2):
            step = file.at(t)
            assert step.most_similar(step[7], 5, approximate=True)[0].row == 7
            assert f"time step {t}" in repr(step)
