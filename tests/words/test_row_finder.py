"""Which index answers for a vocabulary, from the first look-up on."""

import errno
import warnings

import numpy as np
import pytest

import embmap
from embmap.words import index_source
from embmap.words.index_file import BLOCK
from embmap.words.row_finder import BUILD_AT_ONCE, SCANS

N = BUILD_AT_ONCE + 1


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finder")
    rows = np.arange(N, dtype=np.float32)[:, np.newaxis]
    return embmap.finalfusion.write(folder / "a", [f"w{i}" for i in range(N)], rows)


@pytest.fixture
def path(made, tmp_path):
    copy = tmp_path / "a"
    copy.write_bytes(made.read_bytes())
    return copy


@pytest.fixture
def indexed(path):
    with embmap.open(path) as file:
        file.build_index()
    return path


def test_a_large_vocabulary_is_scanned_a_few_times_and_then_indexed(path):
    with embmap.open(path) as file:
        finder = file.vocab.finder
        assert finder.state == "none"
        for i in range(SCANS):
            assert finder.find_row(f"w{i}") == i
            assert finder.state == "none"
        assert finder.find_row("absent") == -1
        assert finder.state == "memory"


def test_a_batch_builds_the_index_at_once(path):
    with embmap.open(path) as file:
        assert file.find([f"w{i}" for i in range(5)]).tolist() == list(range(5))
        assert file.vocab.finder.state == "memory"


def test_an_index_file_that_was_not_in_memory_is_used_once_it_is(indexed, monkeypatch):
    """The first look-up says so; the next one, after loading, must not go without the index."""
    real = index_source.IndexFile
    refused = []

    def index_file(*arguments):
        if not refused:
            refused.append(BlockingIOError(errno.EAGAIN, "not in memory"))
            raise refused[0]
        return real(*arguments)

    monkeypatch.setattr(index_source, "IndexFile", index_file)
    with embmap.open(indexed) as file:
        with pytest.raises(BlockingIOError):
            file["w5"]
        assert file["w5"][0] == 5
        assert file.info()["index"] == "file"


def test_a_new_index_replaces_one_that_was_dropped(indexed):
    index = indexed.with_name("a.embx")
    data = bytearray(index.read_bytes())
    for place in range(4096, len(data) - 16, BLOCK):
        data[place + 100] ^= 1
    index.write_bytes(data)
    with embmap.open(indexed) as file:
        finder = file.vocab.finder
        assert file["w7"][0] == 7
        old = finder.find_row
        with pytest.warns(embmap.StaleIndexWarning, match="ignored"):
            assert "absent" not in file
        assert finder.state == "none"
        assert file["w7"][0] == 7
        file.build_index()
        assert finder.state == "memory"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert old("absent") == -1
        assert finder.state == "memory"
