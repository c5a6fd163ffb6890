"""The commands that compare words with few others."""

import json

import numpy as np
import pytest

import embmap

WORDS = ["man", "king", "queen", "apple"]
ROWS = np.array([[1, 0.2, 0.1], [1, 1, 0.1], [0.5, 1, 0.1], [0, 0, -1]], np.float32)


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, ROWS)


def test_the_word_that_does_not_match_is_printed(command, path):
    assert command("outlier", path, *WORDS) == (0, "apple\n", "")
    status, out, err = command("outlier", path, "man", "none", "never")
    assert (status, out, err.count("no vector for")) == (1, "", 2)


def test_the_rank_of_a_word_is_printed(command, path):
    assert command("rank", path, "king", "queen") == (0, "1\n", "")
    assert command("rank", path, "king", "apple") == (0, "3\n", "")
    assert command("rank", path, "king", "none")[0] == 1


def test_cosines_are_correlated_with_word_pairs(command, path, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(
        "Word 1,Word 2,Human (mean)\nking,queen,9\nMan,king,7\nqueen,apple,1\nman,none,3\n"
    )
    status, out, err = command("correlation", path, pairs, "--lowercase")
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["Pearson", "0.9902"],
        ["Spearman", "1.0000"],
        ["pairs", "3"],
        ["skipped", "25.00", "%"],
    ]
    found = json.loads(command("correlation", path, pairs, "--json", "--dim", "2")[1])
    assert (found["n_pairs"], found["oov_ratio"]) == (2, 0.5)
    pairs.write_text("king,queen,9\n")
    found = json.loads(command("correlation", path, pairs, "--json")[1])
    assert (found["pearson"], found["spearman"]) == (None, None)
    pairs.write_text("king,queen,9\nking,queen\n")
    status, out, err = command("correlation", path, pairs)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "line 2: must be two words and a number" in err
    assert command("correlation", path, tmp_path / "none.csv")[0] == 2
    bare = embmap.cvc.write(tmp_path / "a.cvc", ROWS)
    status, _, err = command("correlation", bare, pairs)
    assert (status, "--vocab" in err) == (2, True)
