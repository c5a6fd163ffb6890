"""The hash table over words, in memory."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

import embmap.words.word_index
from embmap.codecs import kernels
from embmap.errors import UnsupportedError
from embmap.io.mapping import BytesFile
from embmap.words.records import Records, scan
from embmap.words.word_index import EMPTY, WordIndex, hash_words, n_slots_for
from tests.kernels import needs_numba


def index_over(words):
    data = b"".join(struct.pack("<I", len(word)) + word for word in words)
    file = BytesFile(b"head" + data + b"tail")
    records = Records(4, 4 + len(data), len(words), "test")
    return WordIndex.build(file, records, scan(file, records))


TEXT = st.text(max_size=6) | st.text(min_size=14, max_size=40) | st.text("ab\0", max_size=140)


@pytest.mark.parametrize("choice", ["numpy", pytest.param("numba", marks=needs_numba)])
@settings(max_examples=200, deadline=None)
@given(words=st.lists(TEXT, max_size=80), others=st.lists(TEXT, max_size=20))
def test_every_word_is_found_at_its_first_row_and_no_other(choice, words, others):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "CHOICE", choice)
        check(words, others)


def check(words, others):
    index = index_over([word.encode("utf-8", "replace") for word in words])
    words = [word.encode("utf-8", "replace").decode() for word in words]
    expected = [words.index(word) for word in words]
    assert [index.find(word) for word in words] == expected
    assert index.find_many(words).tolist() == expected
    rows = [words.index(word) if word in words else -1 for word in others]
    assert [index.find(word) for word in others] == rows
    assert index.find_many(others).tolist() == rows


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_empty_lines_do_not_hide_the_ends_of_other_words(tmp_path, backend):
    words = ["aa", "bb", "", "cc", "ee"]
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
    path = embmap.cvc.write(tmp_path / "a.cvc", np.eye(5, dtype=np.float32))
    letters = [a + b for a in "abcei" for b in "abcei"]
    with embmap.open(path, backend=backend, vocab=tmp_path / "words.txt") as file:
        for word in letters:
            for asked in ([word, "", "", "", ""], ["", word, "", "", ""], ["", "", "", "", word]):
                expected = [words.index(each) if each in words else -1 for each in asked]
                assert file.find(asked).tolist() == expected


def test_words_with_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(kernels, "CHOICE", "numpy")
    monkeypatch.setattr(embmap.words.word_index, "xxh3_64_intdigest", lambda _: 5)
    words = [b"one", b"two", b"one", b"three", b"", b"tw"]
    index = index_over(words)
    assert [index.find(word.decode()) for word in words] == [0, 1, 0, 3, 4, 5]
    assert index.find_many(["three", "four", "tw"]).tolist() == [3, -1, 5]
    assert index.find("o") == -1


def test_a_run_of_collisions_may_pass_the_last_slot(monkeypatch):
    monkeypatch.setattr(kernels, "CHOICE", "numpy")
    monkeypatch.setattr(embmap.words.word_index, "xxh3_64_intdigest", lambda _: 2**64 - 1)
    words = [b"%d" % i for i in range(50)]
    index = index_over(words)
    assert index.find_many([word.decode() for word in words]).tolist() == list(range(50))
    assert index.find("50") == -1


def test_a_surrogate_is_in_no_vocabulary():
    index = index_over([b"one"])
    assert index.find("\ud800") == -1
    assert index.find_many(["one", "\ud800"]).tolist() == [0, -1]


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.binary(max_size=30), max_size=50))
def test_blocks_hash_as_single_words_do(words):
    data = b"".join(struct.pack("<I", len(word)) + word for word in words)
    file = BytesFile(data)
    records = Records(0, len(data), len(words), "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embmap.words.word_index, "_BLOCK", 7)
        blocks = list(hash_words(file, records, scan(file, records)))
    hashes = [int(value) for _, block in blocks for value in block]
    assert hashes == [xxh3_64_intdigest(word) for word in words]


def test_words_of_megabytes_are_hashed_one_at_a_time(monkeypatch):
    monkeypatch.setattr(embmap.words.word_index, "_SHORT", 2)
    monkeypatch.setattr(embmap.words.word_index, "_BLOCK", 1)
    assert index_over([b"a" * 1000, b"b"]).find("a" * 1000) == 0


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 1000, 104857, 10**6, 10**8])
def test_an_index_takes_at_most_24_bytes_a_word(n):
    slots = n_slots_for(n)
    assert slots & (slots - 1) == 0
    assert slots >= 2.5 * n
    if n > 100:
        assert 4 * slots + 4 * (n + 1) <= 24 * n


def test_the_table_ends_in_an_empty_slot():
    index = index_over([b"%d" % i for i in range(1000)])
    assert index.slots[-1] == EMPTY
    assert np.count_nonzero(index.slots != EMPTY) == 1000


def test_more_words_than_rows_can_number_are_refused():
    file = BytesFile(b"")
    with pytest.raises(UnsupportedError):
        WordIndex.build(file, Records(0, 0, 2**32 - 1, "test"), np.zeros(1, np.uint32))


def pointing(index, row, start, end):
    """The index with the bounds of a row changed, as in a damaged or forged file."""
    starts = index.starts.astype(np.uint64)
    starts[row : row + 2] = start, end
    return WordIndex(index._file, index.records, starts, index.slots, index.n_slots - 1)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("start", [0, 1, 7, 2**31, 2**32, 2**63 - 5, 2**63, 2**64 - 9, 2**64 - 1])
@pytest.mark.parametrize("nbytes", [0, 1, 7, 2**32, 2**63, 2**64 - 1])
def test_starts_that_lead_anywhere_find_nothing_and_read_nothing_outside(start, nbytes):
    words = [b"one", b"two", b"three"]
    index = pointing(index_over(words), 1, start, (start + nbytes) % 2**64)
    asked = ["two", "", "e", "w"]
    assert index.find_many(asked).tolist() == [1 if start == nbytes == 7 else -1, -1, -1, -1]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("value", [3, 4, 2**31, EMPTY - 1])
def test_slots_that_name_no_row_are_passed_over(value):
    words = [b"%d" % i for i in range(40)]
    index = index_over(words)
    slots = index.slots.copy()
    slots[slots == 7] = 40 if value == 4 else value
    damaged = WordIndex(index._file, index.records, index.starts, slots, index.n_slots - 1)
    found = damaged.find_many([word.decode() for word in words]).tolist()
    assert found[7] == -1
    assert found[:7] + found[8:] == [*range(7), *range(8, 40)]


@pytest.mark.usefixtures("kernel")
def test_words_of_one_slot_are_told_apart_in_the_order_of_the_table():
    words = [b"one", b"two", b"one", b"three", b"", b"tw", b"x" * 128, b"x" * 129]
    index = index_over(words)
    slots = np.array([*range(len(words)), EMPTY], np.uint32)
    one_slot = WordIndex(index._file, index.records, index.starts, slots, 0)
    asked = [word.decode() for word in words]
    assert one_slot.find_many([*asked, "four"]).tolist() == [0, 1, 0, 3, 4, 5, 6, 7, -1]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("n", [*range(20), 31, 32, 33, 64, 65, 96, 97, 127, 128, 129, 300, 1 << 20])
def test_words_of_every_length_are_found(n):
    words = [b"a" * n, b"b" + b"a" * n, "é".encode() * n, b"a" * n + "🙂".encode()]
    index = index_over(words)
    asked = [word.decode() for word in words]
    assert index.find_many([*asked, "c" * n + "d", *asked]).tolist() == [
        0,
        1,
        words.index(words[2]),
        3,
        -1,
        0,
        1,
        words.index(words[2]),
        3,
    ]
