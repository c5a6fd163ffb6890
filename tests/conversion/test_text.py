"""Vectors as text: what people's files look like, and errors that name line and column."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from embmap.formats.text import reader as text_module


def converted(folder, data, **options):
    path = folder / "in.txt"
    path.write_bytes(data)
    report = embmap.convert(path, folder / "out.npy", **options)
    words = report.words_path.read_text("utf-8").removesuffix("\n").split("\n")
    return report.input_format, words, np.load(folder / "out.npy").tolist()


AB = (["a", "b"], [[1, 2], [3, -0.5]])


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (b"2 2\na 1 2\nb 3 -.5\n", "word2vec-text"),
        (b"2 2\na 1 2\nb 3 -.5", "word2vec-text"),
        (b"2 2 \na 1 2 \nb 3 -5e-1 \n", "word2vec-text"),
        (b"2 2\r\na 1 2\r\nb 3 -.5\r\n", "word2vec-text"),
        (b"2\t2\na\t1\t2\nb\t3\t-.5\n", "word2vec-text"),
        (b"2 2\n\na 1 2\n\n\nb 3 -.5\n\n", "word2vec-text"),
        (b"a 1 2\nb 3 -0.5\n", "glove"),
        (b"a 1.0 +2\r\nb 3. -0.50 \r\n", "glove"),
        (b"a  1   2\nb 3  -0.5  \n", "glove"),
        (b"\na 1 2\n \nb 3 -0.5", "glove"),
    ],
)
def test_texts_as_people_have_them(tmp_path, data, format):
    assert converted(tmp_path, data) == (format, *AB)


def test_words_may_hold_spaces_and_be_numbers(tmp_path):
    data = b". . . 1 2\nat name@domain.com 3 4\n5 6 7\nx 8 9\ny 1 1\n\xc2\xa0 0 1\n"
    _, words, vectors = converted(tmp_path, data)
    assert words == [". . .", "at name@domain.com", "5", "x", "y", "\xa0"]
    assert vectors == [[1, 2], [3, 4], [6, 7], [8, 9], [1, 1], [0, 1]]
    assert converted(tmp_path, b"2 2\na b 1 2\n3 3 4\n")[1] == ["a b", "3"]


def test_numbers_that_are_not_finite_are_numbers(tmp_path):
    values = converted(tmp_path, b"1 3\na nan inf -inf\n")[2]
    np.testing.assert_array_equal(values, [[np.nan, np.inf, -np.inf]])


@pytest.mark.parametrize(
    ("data", "line", "offset", "message"),
    [
        (b"2 2\na 1 2\nb 1 x\n", 3, 14, r"column 5: b'x' is not a number"),
        (b"2 2\na 1 2\nb 1-2 3\n", 3, 12, r"column 3: b'1-2' is not a number"),
        (b"2 2\na 1 2\nb 1,5 3\n", 3, 12, r"column 3: b'1,5'"),
        (b"2 2\na 1 2\nb 1_0 3\n", 3, 12, r"column 3: b'1_0'"),
        (b"2 2\na 1 2\nb 0x1 3\n", 3, 12, r"column 3: b'0x1'"),
        (b"a 1 2\nb 1 2\nc 1\n", 3, 12, r"must have a word and 2 numbers; this one has 1"),
        (b"3 2\na 1 2\n\nb\nc 1 2\n", 4, 11, r"this one has 0"),
    ],
)
def test_errors_name_line_and_column(tmp_path, data, line, offset, message):
    with pytest.raises(embmap.FormatError, match=message) as caught:
        converted(tmp_path, data)
    assert caught.value.offset == offset
    assert caught.value.field == f"line {line}"
    assert not (tmp_path / "out.npy").exists()


def test_a_wrong_number_of_lines_is_an_error(tmp_path):
    with pytest.raises(embmap.TruncatedError, match="states 3 words, the file has 2"):
        converted(tmp_path, b"3 2\na 1 2\nb 3 4\n")
    with pytest.raises(embmap.FormatError, match="states 1 words, the file has more") as caught:
        converted(tmp_path, b"1 2\na 1 2\nb 3 4\n")
    assert caught.value.offset == 10
    assert converted(tmp_path, b"1 2\na 1 2\nb 3 4\n", limit=1)[1] == ["a"]


def test_words_that_are_not_utf8_are_errors_or_replaced(tmp_path):
    data = b"2 2\na 1 2\nb\xff\xc3 3 4\n"
    with pytest.raises(embmap.FormatError, match=r"word 1: not UTF-8") as caught:
        converted(tmp_path, data)
    assert caught.value.offset == 11
    assert converted(tmp_path, data, lossy=True)[1] == ["a", "b\ufffd\ufffd"]


def test_texts_that_are_none_are_refused(tmp_path):
    for data in (
        b"",
        b"hello\n",
        b"a b c\nd e f\n",
        bytes(range(7, 99)),
        b"\x1f\x8b\x08" + b"0" * 9,
    ):
        with pytest.raises(embmap.FormatError):
            converted(tmp_path, data)
    with pytest.raises(embmap.FormatError, match="must state the number of words"):
        converted(tmp_path, b"a 1 2\n", input_format="word2vec-text")
    with pytest.raises(embmap.FormatError, match="no line of a word and numbers"):
        converted(tmp_path, b"hello\n", input_format="glove")


def test_windows_do_not_show(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "_WINDOW", 16)
    lines = [f"word{i} {i}.25 {i * 1000}" for i in range(300)]
    _, words, vectors = converted(tmp_path, "\n".join(lines).encode())
    assert words == [f"word{i}" for i in range(300)]
    assert vectors == [[i + 0.25, i * 1000] for i in range(300)]
    monkeypatch.setattr(text_module, "_LONGEST", 64)
    with pytest.raises(embmap.FormatError, match="more than 64 bytes"):
        converted(tmp_path, b"1 2\na 1 2\n" + b"b" * 100 + b" 1 2\n", input_format="word2vec-text")


word = st.text(
    st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=8
).filter(lambda word: not word.endswith((" ", "\t", "\v", "\f", "\r")))
number = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(word, number, number), min_size=1, max_size=20, unique_by=lambda x: x[0]))
def test_what_is_written_reads_back_exactly(tmp_path_factory, entries):
    folder = tmp_path_factory.mktemp("text")
    words = [entry[0] for entry in entries]
    vectors = np.array([entry[1:] for entry in entries], np.float32)
    embmap.finalfusion.write(folder / "a.fifu", words, vectors)
    embmap.convert(folder / "a.fifu", folder / "a.vec")
    embmap.convert(folder / "a.vec", folder / "b.fifu", normalize=False)
    with embmap.open(folder / "b.fifu") as file:
        assert list(file) == words
        assert np.asarray(file.vectors).tobytes() == vectors.tobytes()


@pytest.mark.parametrize("dim", [10**9, 2**31, 2**63, 2**64, 10**100])
def test_floret_tables_of_more_numbers_than_lines_hold_are_refused(tmp_path, dim):
    (tmp_path / "a.floret").write_text(f"1 {dim} 1 3 1 7 < >\n0 1.5\n")
    for format in (None, "floret"):
        with pytest.raises(embmap.FormatError):
            embmap.convert(tmp_path / "a.floret", tmp_path / "b.fifu", input_format=format)
    assert not (tmp_path / "b.fifu").exists()


@given(st.binary(max_size=80))
def test_any_bytes_convert_or_say_why_not(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    for start in (b"", b"2 2\n", b"a 1 2\n"):
        (folder / "a").write_bytes(start + data)
        for format in (None, "word2vec-text", "glove", "word2vec", "floret"):
            with contextlib.suppress(ValueError):
                embmap.convert(folder / "a", folder / "b.fifu", input_format=format)


def test_floret_tables_are_written_again(tmp_path):
    lines = ["2 3 1 4 2 7 < >\n", "0 1 2 3\n", "1 -0.5 0.1 6\n"]
    (tmp_path / "a.txt").write_text("".join(lines), newline="")
    for name in ("b.floret", "c.fifu", "d.floret"):
        embmap.convert(tmp_path / ("c.fifu" if name[0] == "d" else "a.txt"), tmp_path / name)
    expected = "2 3 1 4 2 7 < >\n0 1.0 2.0 3.0\n1 -0.5 0.1 6.0\n"
    assert (tmp_path / "b.floret").read_text() == expected
    assert (tmp_path / "d.floret").read_text() == expected
    (tmp_path / "e.txt").write_bytes(b"a 1 2\n")
    with pytest.raises(ValueError, match="a floret table holds rows for floret's n-grams"):
        embmap.convert(tmp_path / "e.txt", tmp_path / "f.floret")
    assert not (tmp_path / "f.floret").exists()
