"""Stale or damaged index files: right answers or none.

tests/judges/index_file.py holds the rule, and holds embmap to it.
"""

import itertools
import os
import shutil
import struct
import warnings

import pytest
import xxhash

import embmap
from tests.judges.damage import flips
from tests.judges.finalfusion import (
    content,
    with_field,
)
from tests.judges.index_file import INDEXED, INDEXED_WORDS, Index
from tests.reference import finalfusion as reference

try:
    import resource
except ImportError:  # Windows
    resource = None

pytestmark = pytest.mark.slow


# ------------------------------------------------------------------------ stale or damaged indexes


@pytest.mark.parametrize("name", INDEXED)
def test_a_sound_index_is_used(tmp_path, backend, name):
    index = Index(tmp_path / "file.fifu", name)
    index.judge("nothing", backend)
    assert index.wrong == []
    assert index.refused == 0


def test_an_index_cut_anywhere_is_noticed(tmp_path):
    index = Index(tmp_path / "file.fifu", "n-grams")
    head, body = 64 + 88 * 2, 4096
    lengths = [*range(head), *range(head, body, 257), *range(body, len(index.good))]
    for nbytes in reversed(lengths):
        os.truncate(index.index, nbytes)
        index.judge(f"cut to {nbytes}", ("mmap", "read")[nbytes % 2], INDEXED_WORDS[:6])
    index.check()
    assert index.refused == len(lengths)


def test_an_index_that_is_too_long_is_noticed(tmp_path, backend):
    index = Index(tmp_path / "file.fifu")
    index.index.write_bytes(index.good + b"\0")
    index.judge("longer", backend)
    index.check()


def test_an_index_with_any_byte_flipped_gives_right_answers_or_none(tmp_path):
    index = Index(tmp_path / "file.fifu", "n-grams")
    head, body = 64 + 88 * 2, 4096
    positions = [*range(head), *range(head, body, 257), *range(body, len(index.good))]
    for what, flipped, backend in flips(index.good, positions):
        index.index.write_bytes(flipped)
        index.judge(what, backend)
    index.check()


def test_flipped_bytes_of_the_header_of_an_index_are_always_noticed(tmp_path):
    index = Index(tmp_path / "file.fifu", "n-grams")
    for position in range(64 + 88 * 2):
        damaged = bytearray(index.good)
        damaged[position] ^= 0x10
        index.index.write_bytes(damaged)
        with pytest.raises(embmap.StaleIndexError):
            embmap.open(index.path, index="require")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda good: b"", id="empty"),
        pytest.param(lambda good: b"EMBX\r\n\x1a\n", id="only the magic"),
        pytest.param(lambda good: bytes(len(good)), id="zeros"),
        pytest.param(lambda good: b"\xff" * len(good), id="ones"),
        pytest.param(lambda good: b"the quick brown fox\n" * 300, id="text"),
        pytest.param(lambda good: good[:64] + bytes(len(good) - 64), id="only the header"),
        pytest.param(lambda good: good[:4096] + bytes(len(good) - 4096), id="body of zeros"),
        pytest.param(lambda good: good[:4096] + b"\xff" * (len(good) - 4096), id="body of ones"),
    ],
)
def test_what_is_no_index_is_noticed(tmp_path, backend, damage):
    index = Index(tmp_path / "file.fifu")
    index.index.write_bytes(damage(index.good))
    index.judge("replaced", backend)
    index.check()


def test_a_folder_or_a_pipe_in_place_of_an_index_is_noticed(tmp_path, backend):
    index = Index(tmp_path / "file.fifu")
    index.index.unlink()
    index.index.mkdir()
    index.judge("folder", backend)
    index.index.rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(index.index)
        index.judge("pipe", backend)
    index.check()


def test_the_index_of_another_file_is_noticed(tmp_path, backend):
    index = Index(tmp_path / "file.fifu")
    others = {
        "other words": content(words=[word.replace("a", "c") for word in INDEXED_WORDS]),
        "another order": content(words=INDEXED_WORDS[::-1]),
        "one more": content(words=[*INDEXED_WORDS, "more"]),
        "another place": content(words=INDEXED_WORDS, metadata=True),
        "n-grams": INDEXED["n-grams"],
    }
    for name, made in others.items():
        other = tmp_path / "other.fifu"
        other.write_bytes(reference.encode(made))
        with embmap.open(other, index="memory") as f:
            shutil.copyfile(f.build_index(), index.index)
        with pytest.raises(embmap.StaleIndexError):
            embmap.open(index.path, index="require")
        index.judge(name, backend)
        with pytest.warns(embmap.StaleIndexWarning), embmap.open(index.path) as f:
            assert f.find(INDEXED_WORDS).tolist() == list(range(len(INDEXED_WORDS)))
    index.check()


def test_an_index_outlives_a_copy_and_new_vectors_but_not_new_words(tmp_path, backend):
    index = Index(tmp_path / "file.fifu")
    os.utime(index.path, ns=(1, 1))
    index.judge("touched", backend)
    index.made = content(words=INDEXED_WORDS)
    index.made.matrix += 1
    index.path.write_bytes(reference.encode(index.made))
    index.judge("other vectors", backend)
    assert index.wrong == []
    assert index.refused == 0
    swapped = INDEXED_WORDS.copy()
    swapped[1], swapped[2] = swapped[2], swapped[1]
    index.path.write_bytes(reference.encode(content(words=swapped)))
    with pytest.raises(embmap.StaleIndexError, match="words changed"):
        embmap.open(index.path, backend=backend, index="require")
    with (
        pytest.warns(embmap.StaleIndexWarning),
        embmap.open(index.path, backend=backend) as f,
    ):
        assert f.find(swapped).tolist() == list(range(len(swapped)))


REPLACED = [
    (["ab", "cd"], ["abc", "d"]),
    (["ab", "cd"], ["a", "bcd"]),
    (["ab", "cd"], ["cd", "ab"]),
    (["ab", "cd"], ["cd", "cd"]),
    (["a", "bb", "ccc"], ["bb", "a", "ccc"]),
    (["a", "bb", "ccc"], ["abb", "cc", "c"]),
    (["a", "bb", "ccc"], ["ccc", "bb", "a"]),
    (["aa", "b", "ab", "bb"], ["aab", "", "ab", "bb"]),
    (["xa", "a", "xxa"], ["a", "xa", "xxa"]),
]


@pytest.mark.parametrize(("old", "new"), REPLACED)
def test_words_replaced_behind_an_index_never_give_the_row_of_another_word(
    tmp_path, backend, old, new
):
    path = tmp_path / "file.fifu"
    path.write_bytes(reference.encode(content(words=old)))
    with embmap.open(path) as f:
        f.build_index()
    status = path.stat()
    data = reference.encode(content(words=new))
    assert len(data) == status.st_size
    path.write_bytes(data)
    # Size and time are kept, so only the words themselves can show the change.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    asked = [*old, *new, "a", "b", "c", "ab", "cd", "x"]
    with (
        warnings.catch_warnings(action="ignore", category=embmap.StaleIndexWarning),
        embmap.open(path, backend=backend) as f,
    ):
        for word, row in zip(asked, f.find(asked).tolist(), strict=True):
            assert row == -1 or new[row] == word
        for word in asked:
            row = int(f.find([word])[0])
            assert row == -1 or new[row] == word


def words_of_one_slot():
    """A word, and a part of it that the index looks for in the same slot."""
    for first, second in itertools.product("abcdefgh", repeat=2):
        word = first + second
        slots = {xxhash.xxh3_64_intdigest(each.encode()) & 7 for each in (word, second)}
        if len(slots) == 1:
            return word, second
    raise AssertionError


def test_a_start_that_is_off_by_one_never_makes_a_word_of_a_part(tmp_path, backend):
    word, part = words_of_one_slot()
    path = tmp_path / "file.fifu"
    path.write_bytes(reference.encode(content(words=["other", word])))
    with embmap.open(path) as f:
        index = f.build_index()
    good = index.read_bytes()
    at = good.rindex(struct.pack("<3I", 0, 9, 9 + 6))
    index.write_bytes(with_field(good, at + 4, 4, 10))
    with (
        warnings.catch_warnings(action="ignore", category=embmap.StaleIndexWarning),
        embmap.open(path, backend=backend) as f,
    ):
        assert f.find([part]).tolist() == [-1]
        assert f.find([part] * 9).tolist() == [-1] * 9
        assert f.get(part) is None


def test_a_damaged_index_never_gives_the_row_of_another_word(tmp_path, backend):
    words = ["a", "a", "xa", "a\1", "b", "a"]
    path = tmp_path / "file.fifu"
    path.write_bytes(reference.encode(content(words=words)))
    with embmap.open(path) as f:
        index = f.build_index()
    good = index.read_bytes()
    wrong = []
    with open(index, "r+b", buffering=0) as handle:
        for position in range(4096, len(good)):
            for pattern in (1, 2, 3, 4, 5, 7, 8, 0x80, 0xFF)[position % 3 :: 3]:
                handle.seek(position)
                handle.write(bytes([good[position] ^ pattern]))
                with (
                    warnings.catch_warnings(action="ignore", category=embmap.StaleIndexWarning),
                    embmap.open(path, backend=backend) as f,
                ):
                    for word in ["a", "b", "xa", "", "\1", "a\1\0"]:
                        (row,) = f.find([word]).tolist()
                        # Of equal words a damaged index may give another than the first.
                        if word in words if row < 0 else words[row] != word:
                            wrong.append((position, pattern, word, row))
            handle.seek(position)
            handle.write(good[position : position + 1])
    assert wrong == []
