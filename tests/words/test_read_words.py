"""Files with a word a line."""

import pytest

import embmap
from embmap.words.given import read_words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"\xef\xbb\xbfa\r\nb\r\n", ["a", "b"]),
        ("zwölf\u2028\x0c\n".encode(), ["zwölf\u2028\x0c"]),
    ],
)
def test_each_line_is_a_word(tmp_path, data, words):
    path = tmp_path / "words.txt"
    path.write_bytes(data)
    assert read_words(path) == read_words(str(path)) == words


def test_bytes_that_are_not_utf8_are_placed(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"\xef\xbb\xbfab\n\xff\n")
    with pytest.raises(embmap.FormatError, match="not UTF-8") as caught:
        read_words(path)
    assert (caught.value.path, caught.value.offset) == (str(path), 6)
