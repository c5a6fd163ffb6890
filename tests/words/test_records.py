"""Finding where the strings of a run start."""

import struct
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap.words.records
from embmap.errors import FormatError, TruncatedError
from embmap.io.mapping import BytesFile
from embmap.words.records import Records, scan

LETTERS = st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])
WORDS = st.lists(st.binary(max_size=20) | st.binary(min_size=250, max_size=700), max_size=60)


def encoded(words, prefix=4, suffix=0):
    """Return the bytes of a run, and where each record starts."""
    tail = bytes(range(1, suffix + 1))
    records = [len(word).to_bytes(prefix, "little") + word + tail for word in words]
    return b"".join(records), list(accumulate(map(len, records), initial=0))


@pytest.fixture(params=[1 << 20, 64])
def window(request, monkeypatch):
    """Small windows reach the joints between them with small data."""
    monkeypatch.setattr(embmap.words.records, "_WINDOW", request.param)
    monkeypatch.setattr(embmap.words.records, "_SMALL_WINDOW", min(request.param, 4096))


@settings(max_examples=150, deadline=None)
@given(words=WORDS, prefix=st.sampled_from([2, 4]), suffix=st.sampled_from([0, 8]))
@pytest.mark.parametrize("size", [1 << 20, 64])
def test_every_record_is_found_whatever_it_holds(size, words, prefix, suffix):
    data, starts = encoded(words, prefix, suffix)
    file = BytesFile(b"xyz" + data)
    records = Records(3, file.nbytes, len(words), "test", prefix=prefix, suffix=suffix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embmap.words.records, "_WINDOW", size)
        patch.setattr(embmap.words.records, "_SMALL_WINDOW", min(size, 4096))
        assert scan(file, records).tolist() == starts


@pytest.mark.usefixtures("window")
def test_ordinary_words_among_strange_ones_are_found():
    strange = [b"", b"\0", b"a\0b", b"x" * 255, b"y" * 256, b"z" * 70_000, b"\0\0\0\0"]
    words = [b"word%d" % i for i in range(500)]
    for i, word in enumerate(strange):
        words.insert(70 * i, word)
    data, starts = encoded(words)
    file = BytesFile(data)
    assert scan(file, Records(0, len(data), len(words), "test")).tolist() == starts


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("words", [[b"one", b"two"], [b"", b"\0"], [b"a" * 300] * 3])
def test_records_that_do_not_fill_the_run_are_refused(words, change):
    data, _ = encoded(words)
    file = BytesFile(data + b"\0" * 8)
    with pytest.raises(FormatError):
        scan(file, Records(0, len(data) + change, len(words), "test"))
    with pytest.raises(FormatError):
        scan(file, Records(0, len(data), len(words) + change, "test"))


def test_an_error_names_the_record_and_its_offset():
    data, _ = encoded([b"one", b"two"])
    file = BytesFile(data + struct.pack("<I", 1000) + b"abc")
    with pytest.raises(TruncatedError) as caught:
        scan(file, Records(0, file.nbytes, 3, "test", noun="token"))
    assert caught.value.field == "token 2"
    assert caught.value.offset == len(data)


@pytest.mark.parametrize("n", [2**31, 2**63, 2**64 - 1])
def test_a_hostile_count_allocates_nothing(n):
    file = BytesFile(bytes(1000))
    with pytest.raises(TruncatedError, match="cannot fit"):
        scan(file, Records(0, 1000, n, "test"))


def test_long_runs_of_short_words_are_numbered_right():
    words = [b"w%d" % i for i in range(200_000)]
    data, starts = encoded(words)
    file = BytesFile(data)
    found = scan(file, Records(0, len(data), len(words), "test"))
    assert found.dtype == np.uint32
    assert found.tolist() == starts


@settings(max_examples=100, deadline=None)
@given(
    lines=st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=5),
        max_size=30,
    ),
    ending=st.sampled_from(["\n", "\r\n"]),
    finished=st.booleans(),
)
def test_lines_of_text_are_records(lines, ending, finished):
    if not finished and (not lines or lines[-1] == ""):
        finished = True  # an empty last line without a newline does not count as a line
    text = ending.join(lines) + (ending if finished and lines else "")
    data = text.encode()
    suffix = len(ending)
    records = Records(0, len(data), len(lines), "t", prefix=0, suffix=suffix, exact=False)
    if len(lines) * suffix > len(data):
        return
    starts = scan(BytesFile(data), records)
    ends = starts[1:].astype(int) - suffix
    assert [data[a:b].decode() for a, b in zip(starts, ends, strict=False)] == lines


def test_a_wrong_number_of_lines_is_refused():
    data = b"one\ntwo\n"
    for n in (1, 3):
        with pytest.raises(FormatError, match="2 lines"):
            scan(BytesFile(data), Records(0, 8, n, "t", prefix=0, suffix=1, exact=False))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_last_line_of_a_text_of_words_may_lack_its_newline(tmp_path, ending, mark, backend):
    words = [f"word{i}" for i in range(3000)]
    path = embmap.cvc.write(tmp_path / "a.cvc", np.zeros((3000, 1)), layout="1.0")
    text = tmp_path / "a.txt"
    text.write_bytes(mark + ending.join(words).encode())
    for index in ("memory", "memory", "require"):
        with embmap.open(path, vocab=text, backend=backend, index=index) as file:
            assert words[-1] in file
            assert file.get("word3000") is None
            assert file.get(words[-1] + "\n") is None
            assert file.find([words[-1], "word3000", words[0]]).tolist() == [2999, -1, 0]
            assert list(file) == words
            assert file.vocab[2999] == words[-1]
            assert file.verify().problems == []
            if index == "memory":
                file.build_index()
