"""What the linter of prose refuses, and what it lets pass."""

from pathlib import Path

import pytest

from tests.prose.docstrings import check_internal, check_public
from tests.prose.phrases import check_phrases, read_phrases


def found(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return list(check_phrases([path], read_phrases()))


@pytest.mark.parametrize(
    "text",
    [
        '"""Whoever opens it."""\n',
        "x = 1  # the size of that\n# of the other file\n",
        'raise ValueError("the header says 3")\n',
        'message = f"{n} rows shall follow"\n',
        '"""The rows stand\n    behind the words."""\n',
    ],
)
def test_refused_phrases_are_found_in_docstrings_comments_and_messages(tmp_path, text):
    (told,) = found(tmp_path, "room.py", text)
    assert told.startswith(str(tmp_path / "room.py:1: “"))


@pytest.mark.parametrize(
    "text",
    [
        '"""There is no index. It is no longer used."""\n',
        "stands = tells = 1\n",
        "def alone(): ...\n",
    ],
)
def test_plain_words_and_names_in_code_pass(tmp_path, text):
    assert not found(tmp_path, "room.py", text)


def test_pages_are_read_outside_of_their_code(tmp_path):
    page = "It stands here.\n\n```\nit stands here\n```\n"
    (told,) = found(tmp_path, "page.md", page)
    assert "“stands”" in told


def test_sections_in_internal_docstrings_are_found(tmp_path):
    room = tmp_path / "room.py"
    room.write_text(
        'def f(x):\n    """Do.\n\n    Parameters\n    ----------\n    x : int\n    """\n'
    )
    (told,) = check_internal(tmp_path)
    assert told.startswith(f"{Path(room)}:1: ")


def test_docstrings_of_the_package_have_the_right_form():
    pytest.importorskip("numpydoc", reason="numpydoc is for developers")
    assert [*check_public(), *check_internal()] == []
