"""The commands that compare words."""

import json

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


def test_similar_compares_some_words_and_sums(command, path, tmp_path):
    def found(*arguments):
        status, out, err = command("similar", path, *arguments, "--json")
        assert (status, err) == (0, "")
        return [each["word"] for each in json.loads(out)]

    words = tmp_path / "words.txt"
    words.write_text("queen\nman\n\nking\n")
    assert found("woman", "--among", words) == ["queen", "king", "man"]
    assert found("woman", "--rows", "0:2") == ["king", "man"]
    assert found("woman", "--rows", "-2:") == ["apple", "zwölf"]
    assert found("woman", "-n", "1", "--exclude", "queen") == ["apple"]
    assert found("king", "--negative", "man", "--positive", "woman", "-n", "1") == ["queen"]
    assert found("--positive", "apple", "-n", "1") == ["zwölf"]
    assert found("apple", "--dim", "2", "-n", "1", "--exclude", "man") == ["king"]
    words.write_text("queen\nnone\nnever\n")
    status, out, err = command("similar", path, "man", "--among", words)
    assert (status, out) == (1, "")
    assert err.splitlines()[1] == f"embmap: {path}: no vector for 'never'"
    for wrong, message in (
        (["man", "--rows", "3"], "--rows must be START:STOP, not '3'"),
        (["man", "--rows", "5:2"], "among must not be empty"),
        (["man", "--dim", "4"], "dim must be from 1 to 3, not 4"),
        (["man", "--section", "a=b"], "finalfusion files have no sections"),
        (["man", "--among", words, "--rows", "0:2"], "give one of --among, --rows and --section"),
        ([], "give a WORD, --positive or --negative"),
    ):
        status, out, err = command("similar", path, *wrong)
        assert (status, out, err) == (2, "", f"embmap: {message}\n")


def test_similar_compares_sections(command, tmp_path):
    sections = [
        {"start": 0, "stop": 2, "metadata": {"source": "wiki"}},
        {"start": 4, "stop": 6, "metadata": {"year": 1900}},
    ]
    path = embmap.cvc.write(tmp_path / "a.cvc", ROWS, sections=sections, layout="1.0")
    words = tmp_path / "words.txt"
    words.write_text("\n".join(WORDS) + "\n", "utf-8")
    for section, expected in (("source=wiki", ["king", "man"]), ("year=1900", ["apple", "zwölf"])):
        arguments = ("woman", "--section", section, "--vocab", words, "--json")
        found = json.loads(command("similar", path, *arguments)[1])
        assert [each["word"] for each in found] == expected


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
