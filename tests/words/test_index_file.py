"""FILE.embx: used when it matches, ignored or refused when it does not."""

import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

import embmap
from embmap.subwords import ExplicitIndexer
from embmap.words import index_file
from embmap.words.index_file import BLOCK
from tests.campaign.anatomies import with_index_checksums

N = 3000
WORDS = [f"word{i}" for i in range(N)]


@pytest.fixture
def path(tmp_path):
    rows = np.arange(N, dtype=np.float32)[:, np.newaxis]
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, rows)


@pytest.fixture
def indexed(path):
    with embmap.open(path) as file:
        assert file.build_index() == path.with_name("a.fifu.embx")
        assert file.info()["index"] == "memory"
    return path


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_an_index_answers_as_the_words_do(indexed, backend):
    with embmap.open(indexed, backend=backend, index="require") as file:
        assert file.info()["index"] == "file"
        assert [file[word][0] for word in WORDS] == list(range(N))
        assert "absent" not in file
        asked = ["word7", "absent", "word2999", "x", "word7", "\ud800"]
        assert file.find(asked).tolist() == [7, -1, 2999, -1, 7, -1]
        assert file.vocab[17] == "word17"
        assert list(file) == WORDS
        assert file.verify().ok


@pytest.mark.parametrize("backend", ["mmap", "read"])
@pytest.mark.parametrize(("field", "shift"), [(7, 1), (7, 2), (9, 1), (9, 2)])
def test_a_table_that_is_not_aligned_is_refused(indexed, backend, field, shift):
    """Even by an index whose checksums hold: unaligned numbers cannot be read one by one."""
    path = indexed.with_name("a.fifu.embx")
    data = bytearray(path.read_bytes())
    table = list(index_file._TABLE.unpack_from(data, index_file._HEADER.size))
    table[field] -= shift
    index_file._TABLE.pack_into(data, index_file._HEADER.size, *table)
    path.write_bytes(with_index_checksums(bytes(data)))
    with (
        pytest.raises(embmap.StaleIndexError, match="not aligned"),
        embmap.open(indexed, backend=backend, index="require") as file,
    ):
        file.find(WORDS[:3])


def test_auto_takes_the_index_when_words_are_looked_up(indexed):
    with embmap.open(indexed) as file:
        assert file.info()["index"] == "none"
        assert file.info()["index_file"] == f"{indexed}.embx"
        assert "word5" in file
        assert file.info()["index"] == "file"
    with embmap.open(indexed, index="memory") as file:
        assert "word5" in file
        assert file.info()["index"] == "memory"


def test_an_index_may_lie_elsewhere(path, tmp_path):
    other = tmp_path / "elsewhere"
    with embmap.open(path) as file:
        assert file.build_index(other) == other
    for choice in (other, str(other)):
        with embmap.open(path, index=choice) as file:
            assert file["word8"][0] == 8
            assert file.info()["index"] == "file"
            assert pickle.loads(pickle.dumps(file)).info()["index"] == "file"


def test_a_required_index_must_be_there(path, tmp_path):
    for choice in ("require", tmp_path / "missing"):
        with pytest.raises(embmap.StaleIndexError, match="cannot be opened"):
            embmap.open(path, index=choice)


def test_a_touched_file_with_the_same_words_keeps_its_index(indexed):
    os.utime(indexed, ns=(5, 5))
    with embmap.open(indexed, index="require") as file:
        assert file["word3"][0] == 3
    data = bytearray(indexed.read_bytes())
    data[-4:] = np.float32(-1).tobytes()
    indexed.write_bytes(data + b"")
    with embmap.open(indexed, index="require") as file:
        assert file["word2999"][0] == -1


def test_other_words_make_an_index_stale(indexed):
    indexed.write_bytes(indexed.read_bytes().replace(b"word1234", b"wort1234"))
    with pytest.raises(embmap.StaleIndexError, match="the words changed"):
        embmap.open(indexed, index="require")
    with embmap.open(indexed) as file, pytest.warns(embmap.StaleIndexWarning, match="ignored"):
        assert "wort1234" in file
    with embmap.open(indexed) as file, pytest.warns(embmap.StaleIndexWarning):
        assert file.find(["word1234", "wort1234"] * 5).tolist() == [-1, 1234] * 5


def replace_within_a_tick(path):
    """Replace a word of a file, which keeps its size and its modification time."""
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"word1234", b"wort1234"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("age", [0, 10**6], ids=["new", "old"])
def test_a_miss_is_not_believed_of_a_file_replaced_within_a_tick(path, age, backend):
    then = path.stat().st_mtime_ns - age * 10**9
    os.utime(path, ns=(then, then))
    with embmap.open(path) as file:
        file.build_index()
    replace_within_a_tick(path)
    with embmap.open(path, backend=backend) as file:
        assert file["word5"][0] == 5
        with pytest.warns(embmap.StaleIndexWarning, match="the words changed"):
            assert "wort1234" in file
        assert file.find(["word1234", "wort1234"] * 5).tolist() == [-1, 1234] * 5
    with embmap.open(path, backend=backend, index="require") as file:
        with pytest.raises(embmap.StaleIndexError, match="the words changed"):
            file.find(["wort1234"] * 5)
        with pytest.raises(embmap.StaleIndexError, match="the words changed"):
            file["wort1234"]


def test_words_are_hashed_once_unless_no_change_can_be_hidden(indexed, monkeypatch):
    hashed = []
    real = index_file.digest
    monkeypatch.setattr(
        index_file, "digest", lambda *range: (hashed.append(range), real(*range))[1]
    )
    for tick, times in ((10**9, 1), (-(10**11), 0)):
        monkeypatch.setattr(index_file, "_TICK_NS", tick)
        hashed.clear()
        with embmap.open(indexed) as file:
            assert "word1" in file
            assert not hashed
            for word in ("absent", "missing"):
                assert word not in file
            assert len(hashed) == times
            assert file.info()["index"] == "file"


def test_an_index_over_another_file_is_stale(indexed, tmp_path):
    rows = np.zeros((2, 1), np.float32)
    other = embmap.finalfusion.write(tmp_path / "b.fifu", ["a", "b"], rows)
    with pytest.raises(embmap.StaleIndexError, match="about other data"):
        embmap.open(other, index=indexed.with_name("a.fifu.embx"))


def test_a_newer_version_is_refused_as_that(indexed):
    index = indexed.with_name("a.fifu.embx")
    data = bytearray(index.read_bytes())
    data[8] = 2
    index.write_bytes(data)
    with pytest.raises(embmap.StaleIndexError, match="version 2"):
        embmap.open(indexed, index="require")


@pytest.mark.parametrize("where", ["slots", "starts"])
def test_damage_in_the_body_never_hides_a_word(indexed, where):
    index = indexed.with_name("a.fifu.embx")
    data = bytearray(index.read_bytes())
    with embmap.open(indexed) as file:
        nbytes = file.vocab.finder.build().slots.nbytes
    first, last = (4096, 4096 + nbytes) if where == "slots" else (4096 + nbytes, len(data) - 16)
    data[first:last] = bytes(byte ^ 0x55 for byte in data[first:last])
    index.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embmap.StaleIndexWarning)
        for i in range(0, N, 97):
            with embmap.open(indexed) as file:
                assert file[f"word{i}"][0] == i
        with embmap.open(indexed) as file:
            assert file.find(WORDS).tolist() == list(range(N))
        with embmap.open(indexed) as file:
            assert file.vocab[1000] == "word1000"
        with embmap.open(indexed) as file:
            (problem,) = file.verify().problems
            assert problem.severity == "warning"
            assert "build the index again" in problem.message


def test_misses_check_each_block_once(indexed, monkeypatch):
    with embmap.open(indexed, index="require") as file:
        index_file = file.vocab.finder.source._index_file
        assert "absent" not in file
        assert 0 < sum(index_file._checked) <= 3
        index_file.check_all()
        assert all(index_file._checked)
        monkeypatch.setattr("xxhash.xxh3_64_digest", lambda _: b"")
        assert "absent2" not in file
    assert BLOCK == 65536


def test_stored_ngrams_are_indexed_too(tmp_path):
    ngrams = [f"<w{i}" for i in range(500)]
    indexer = ExplicitIndexer.of(ngrams, min_n=3, max_n=5)
    rows = np.random.default_rng(0).random((1 + 500, 4), np.float32)
    path = embmap.finalfusion.write(tmp_path / "a", ["word"], rows, subwords=indexer)
    with embmap.open(path) as file:
        expected = file["w123"]
        file.build_index()
        assert np.array_equal(file["w123"], expected)
    with embmap.open(path, index="require") as file:
        assert np.array_equal(file["w123"], expected)
        assert file.subwords.vocabulary.finder.state == "file"
        assert file.subword_rows("w123").tolist() == [1 + 123, 1 + 12, 1 + 1]
        with pytest.raises(embmap.UnknownWordError):
            file["zzz"]


def test_two_processes_share_one_index(indexed):
    program = (
        "import sys, embmap\n"
        "file = embmap.open(sys.argv[1], index='require')\n"
        "assert file['word99'][0] == 99\n"
        "assert file.info()['index'] == 'file'"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, indexed]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs Linux")
def test_a_mapped_index_takes_no_private_memory(tmp_path):
    words = [f"word{i}" for i in range(300_000)]
    rows = np.zeros((len(words), 1), np.float32)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", words, rows)
    with embmap.open(path) as file:
        index = file.build_index()
    assert index.stat().st_size > 5_000_000
    program = """
import sys, embmap

def private():
    lines = open('/proc/self/smaps_rollup').read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith('Private_Dirty')) * 1024

embmap.open(sys.argv[1], index='require').close()
before = private()
file = embmap.open(sys.argv[1], index='require')
assert file.find([f'word{i}' for i in range(0, 300_000, 30)])[-1] == 299_970
print(private() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, check=True, text=True
    )
    assert int(done.stdout) < 4_000_000


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs Linux")
def test_opening_a_large_file_takes_next_to_no_memory(tmp_path):
    path = embmap.finalfusion.write(tmp_path / "a", ["a"], np.zeros((1, 300), np.float32))
    data = path.read_bytes()
    rows = 900_000
    # The same file with a storage of 1 GB, nearly all of it a hole.
    with embmap.open(path) as file:
        chunk = file.chunks[1]
    head = bytearray(data[: chunk.data_offset + 20])
    head[chunk.data_offset : chunk.data_offset + 8] = rows.to_bytes(8, "little")
    size = chunk.nbytes + (rows - 1) * 1200
    head[chunk.offset + 4 : chunk.offset + 12] = size.to_bytes(8, "little")
    bare = tmp_path / "bare"
    with open(bare, "wb") as out:
        out.write(head[chunk.offset :])
        out.truncate(12 + size)
    program = """
import sys, embmap

def private():
    lines = open('/proc/self/smaps_rollup').read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith('Private_Dirty')) * 1024

embmap.open(sys.argv[2])['a']  # imports what opening needs
before = private()
file = embmap.open(sys.argv[1])
assert file.shape == (900_000, 300)
assert file[899_999].sum() == 0
print(private() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, bare, path], capture_output=True, check=True, text=True
    )
    assert int(done.stdout) < 2_000_000


def test_the_data_file_is_never_overwritten_by_its_index(path, tmp_path):
    before = path.read_bytes()
    link = path.with_name("a.fifu.embx")
    link.symlink_to(path)
    with embmap.open(path, index="memory") as file:
        for target in (path, str(path), None):
            with pytest.raises(ValueError, match="holds the data"):
                file.build_index(target)
    assert path.read_bytes() == before


def test_a_dropped_index_is_dropped_for_the_rest_of_a_few_words(indexed):
    index = indexed.with_name("a.fifu.embx")
    data = bytearray(index.read_bytes())
    with embmap.open(indexed, index="memory") as file:
        asked = [word for word in ("nope", "nein", "non") if file.get(word) is None]
    for place in range(4096, len(data) - 16, BLOCK):
        data[place + 100] ^= 1
    index.write_bytes(data)
    with embmap.open(indexed) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", embmap.StaleIndexWarning)
        old = file.vocab.finder.find_row
        assert file.find([*asked, "word2"]).tolist() == [-1, -1, -1, 2]
        assert old("nope") == -1
        assert file["word2"][0] == 2
        assert file.info()["index"] == "memory"


def test_an_index_is_read_by_the_back_end_of_its_file(indexed):
    index = indexed.with_name("a.fifu.embx")
    with embmap.open(indexed, backend="read", index="require") as file:
        assert file["word1"][0] == 1
        os.truncate(index, 4096)
        assert file["word2"][0] == 2


def test_an_index_longer_than_its_file_is_reported_not_raised(tmp_path):
    path = tmp_path / "a"
    embmap.finalfusion.write(path, WORDS, np.zeros((N, 1), "f4"))
    with embmap.open(path) as file:
        file.build_index()
    embmap.finalfusion.write(path, ["a"], np.zeros((1, 1), "f4"))
    with embmap.open(path) as file:
        (problem,) = file.verify().problems
        assert problem.severity == "warning"
        assert "the words changed" in problem.message
