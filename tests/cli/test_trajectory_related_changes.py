"""The commands about words over time."""

import json

import numpy as np
import pytest

import embmap


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


@pytest.fixture
def labelled(dynamic, tmp_path):
    """The same embedding, and a word list with a year for each time step."""
    words = ["moving", "left", "right", "zwölf"]
    listed = {"vocab": words, "years": [1900, 1950, 2000]}
    vocab = tmp_path / "words.json"
    vocab.write_text(json.dumps(listed), encoding="utf-8")
    return dynamic[0], vocab


def test_years_name_time_steps_in_every_command(command, labelled, tmp_path):
    path, vocab = labelled
    given = ("--vocab", vocab)
    out = command("trajectory", path, "moving", *given)[1]
    assert [line.split()[0] for line in out.splitlines()] == ["time", "1900", "1950", "2000"]
    told = json.loads(command("trajectory", path, "moving", "--json", *given)[1])
    assert told["labels"] == [1900, 1950, 2000]
    for time in ("1950", "1", "-2"):
        assert command("get", path, "moving", "--time", time, *given)[1] == "moving 5.0 5.0\n"
        for name in ("similar", "related"):
            by_number = command(name, path, "moving", "-n", "2", "-t", "1", *given)
            assert by_number[0] == 0
            assert command(name, path, "moving", "-n", "2", "-t", time, *given) == by_number
        analogy = ("analogy", path, "moving", "left", "right", *given, "--time")
        assert command(*analogy, time) == command(*analogy, "1")
    header = command("changes", path, "moving", "-n", "1", *given)[1].splitlines()[0]
    assert header.endswith("change of the dot product, 1900 to 2000")
    target = tmp_path / "one.npy"
    assert command("convert", path, target, "--time", "1950", *given)[0] == 0
    assert np.load(target)[0].tolist() == [5, 5]
    for time in ("1925", "1900s", "3"):
        status, _, err = command("get", path, "moving", "--time", time, *given)
        assert (status, err.count("\n")) == (2, 1)
        assert "--time: timestep must be at least -3 and below 3, or a label, 1900 to 2000" in err


def test_a_year_that_is_also_a_number_says_what_to_write(command, labelled):
    path, vocab = labelled
    vocab.write_text('{"vocab": ["moving", "left", "right", "x"], "years": [1, 2, 3]}')
    asked = ("get", path, "moving", "--vocab", vocab, "--time")
    status, _, err = command(*asked, "1")
    assert (status, err.count("\n")) == (2, 1)
    assert "write -2 for the first and 0 for the second" in err
    assert [command(*asked, t)[1] for t in ("-2", "0")] == ["moving 5.0 5.0\n", "moving 5.0 0.0\n"]


def test_several_words_are_related_at_once(command, dynamic):
    path, vocab = dynamic
    asked = ("related", path, "moving", "left", "-n", "1", "-t", "0", "--vocab", vocab)
    lines = command(*asked)[1].splitlines()
    assert [line.split() for line in lines] == [
        ["of", "word", "row", "dot", "product"],
        ["moving", "left", "1", "2.5000"],
        ["left", "moving", "0", "2.5000"],
    ]
    told = json.loads(command(*asked, "--json")[1])
    assert told["left"] == [{"row": 0, "word": "moving", "dot": 2.5}]


def test_labels_are_drawn(command, labelled, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path, vocab = labelled
    for years in ([1900, 1950, 2000], ["early", "middle", "late"]):
        listed = {"vocab": ["moving", "left", "right", "x"], "years": years}
        vocab.write_text(json.dumps(listed), "utf-8")
        picture = tmp_path / "out.svg"
        asked = ("trajectory", path, "moving", "--vocab", vocab, "--plot", picture)
        assert command(*asked)[0] == 0
        drawn = picture.read_text("utf-8")
        assert "<!-- time step -->" not in drawn or isinstance(years[0], str)
        assert f"<!-- {years[0]} -->" in drawn
