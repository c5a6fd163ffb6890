"""The approximate index: exact scores, and refused over other data."""

import _thread
import errno
import json
import os
import shutil
import struct
import sys
import threading
import time
import types
from functools import partial

import numpy as np
import pytest
import xxhash

import embmap
from embmap.search import approximate


@pytest.fixture
def clustered(tmp_path):
    pytest.importorskip("usearch", reason="usearch is not installed")
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((50, 16)).repeat(60, axis=0)
    rows = (rows + 0.5 * rng.standard_normal(rows.shape)).astype("f4")
    rows[7], rows[8, 2] = 0, np.nan
    return embmap.finalfusion.write(tmp_path / "c.fifu", [f"w{i}" for i in range(3000)], rows)


def test_approximate_answers_have_exact_scores_and_are_mostly_all_there(clustered):
    with embmap.open(clustered) as file:
        with pytest.raises(embmap.StaleIndexError, match="build_ann"):
            file.most_similar("w1", approximate=True)
        assert file.build_ann() == clustered.with_name("c.fifu.usearch")
    with embmap.open(clustered, backend="read") as file:
        words = [f"w{i}" for i in range(20, 60)]
        found = file.most_similar(words, 10, approximate=True)
        exact = file.most_similar(words, 10)
        assert found[0] == file.most_similar("w20", 10, approximate=True)
        shared = 0
        for some, all_ in zip(found, exact, strict=True):
            assert len(some) == 10
            scores = {neighbor.row: neighbor.score for neighbor in all_}
            same = [neighbor for neighbor in some if neighbor.row in scores]
            assert all(neighbor.score == scores[neighbor.row] for neighbor in same)
            assert [neighbor.score for neighbor in some] == sorted(
                (neighbor.score for neighbor in some), reverse=True
            )
            shared += len(same)
        assert shared >= 380
        best = file.most_similar("w20", 5, exclude=[found[0][0].row], approximate=True)
        assert found[0][0] not in best
        assert file.most_similar("w20", 0, approximate=True) == []
        with pytest.raises(ValueError, match="metric must be 'cosine'"):
            file.most_similar("w20", 5, "dot", approximate=True)


def test_an_approximate_index_of_other_data_is_refused(clustered, tmp_path):
    with embmap.open(clustered) as file:
        index = file.build_ann()
        before = index.read_bytes()
        with pytest.raises(ValueError, match="holds the data"):
            file.build_ann(clustered)

    def refused(path=clustered):
        with embmap.open(path) as file, pytest.raises(embmap.StaleIndexError):
            file.most_similar("w1", approximate=True)

    for damaged in (b"", b"hello", before[:-1], before[:-64], before[:1000] + before[-64:]):
        index.write_bytes(damaged)
        refused()
    for i in range(1, 65):
        flipped = bytearray(before)
        flipped[-i] ^= 1
        index.write_bytes(flipped)
        refused()
    index.write_bytes(before)
    copy = tmp_path / "d.fifu"
    shutil.copy(clustered, copy)
    shutil.copy(index, f"{copy}.usearch")
    copy.touch()
    refused(copy)
    with embmap.open(clustered) as file:
        assert file.most_similar("w1", 3, approximate=True)


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_a_damaged_graph_is_refused(clustered, backend):
    with embmap.open(clustered) as file:
        index = file.build_ann()
    before = index.read_bytes()
    for i in range(0, len(before) - 64, len(before) // 100):
        damaged = bytearray(before)
        damaged[i] ^= 0x80
        index.write_bytes(damaged)
        refused = pytest.raises(embmap.StaleIndexError, match="damaged")
        with embmap.open(clustered, backend=backend) as file, refused:
            file.most_similar("w1", approximate=True)


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_a_graph_that_is_too_large_is_not_read(clustered, backend):
    with embmap.open(clustered) as file:
        index = file.build_ann()
    fields = list(struct.unpack("<8sIIQqQQQQ", index.read_bytes()[-64:]))
    fields[6] = 1 << 40
    trailer = struct.pack("<8sIIQqQQQ", *fields[:8])
    with open(index, "wb") as out:
        out.seek(fields[6])  # the file takes no room on the disk
        out.write(trailer + struct.pack("<Q", xxhash.xxh3_64_intdigest(trailer)))
    refused = pytest.raises(embmap.StaleIndexError, match="larger than its rows")
    with embmap.open(clustered, backend=backend) as file, refused:
        file.most_similar("w1", approximate=True)


def test_a_file_that_is_read_has_its_graph_in_memory(clustered):
    with embmap.open(clustered) as file:
        index = file.build_ann()
    with embmap.open(clustered, backend="read") as file:
        found = file.most_similar("w1", 5, approximate=True)
        os.truncate(index, 0)  # would kill a process that has it mapped
        assert file.most_similar("w1", 5, approximate=True) == found
        file.build_ann()
        os.truncate(index, 0)
        assert len(file.most_similar("w1", 5, approximate=True)) == 5


class Slow:
    """A graph that other threads interrupt before each search."""

    def __init__(self, graph):
        self.__dict__["graph"] = graph
        self.__dict__["visited"] = []

    def __getattr__(self, name):
        return getattr(self.graph, name)

    def __setattr__(self, name, value):
        setattr(self.graph, name, value)

    def __len__(self):
        return len(self.graph)

    def search(self, unit, wanted):
        time.sleep(0.002)
        self.visited.append((wanted, self.graph.expansion_search))
        return self.graph.search(unit, wanted)


def test_threads_that_search_at_once_visit_as_many_rows_as_each_asked_for(clustered):
    with embmap.open(clustered) as file:
        file.build_ann()
        index = file.approximate.index()
        slow = index._graph = Slow(index._graph)
        threads = [
            threading.Thread(
                target=file.most_similar,
                args=([f"w{i}" for i in range(20, 60)], n),
                kwargs={"approximate": True, "exclude": []},
            )
            for n in (20, 100)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(slow.visited) == 80
    assert all(wanted == visits for wanted, visits in slow.visited)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes and pipes")
def test_the_approximate_index_replaces_its_target_as_every_writer_does(clustered, tmp_path):
    import resource

    with embmap.open(clustered) as file:
        private = tmp_path / "private"
        private.touch()
        private.chmod(0o600)
        assert file.build_ann(private).stat().st_mode & 0o777 == 0o600
        built = private.read_bytes()
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with pytest.raises(OSError, match="not a regular file"):
            file.build_ann(pipe)
        assert pipe.is_fifo()
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        for limit in (0, 10_000, len(built) - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
            try:
                with pytest.raises(OSError, match="too large") as caught:
                    file.build_ann(private)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
            assert caught.value.errno == errno.EFBIG
            assert private.read_bytes() == built
    assert not list(tmp_path.glob(".embmap*"))
    clustered.with_name("c.fifu.usearch").symlink_to(pipe)
    with embmap.open(clustered) as file, pytest.raises(embmap.StaleIndexError, match="regular"):
        file.most_similar("w1", approximate=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names are Unicode here")
def test_the_approximate_index_of_a_file_whose_name_is_not_utf8(clustered, tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    path = shutil.copy(clustered, folder / os.fsdecode(b"\xfe.fifu"))
    for _ in ("nameless temporary files", "named"):
        with embmap.open(path) as file:
            file.build_ann()
        with embmap.open(path) as file:
            assert len(file.most_similar("w1", 3, approximate=True)) == 3
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    path = embmap.finalfusion.write(tmp_path / "a.fifu", ["a"], np.ones((1, 2), "f4"))
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with embmap.open(path) as file, pytest.raises(ImportError, match=r"embmap\[ann\]"):
        file.build_ann()


def test_every_time_step_has_an_approximate_index_of_its_own(tmp_path):
    pytest.importorskip("usearch", reason="usearch is not installed")
    steps = np.random.default_rng(4).integers(-99, 99, (3, 400, 8)).astype(np.int16)
    path = embmap.dwe.write(tmp_path / "a.dwe", steps, scale=0.5, group=20)
    with embmap.open(path) as file:
        first = file.at(0)
        assert first.build_ann() == tmp_path / "a.dwe.0.usearch"
        assert first.most_similar(first[7], 5, approximate=True)[0].row == 7
        with pytest.raises(embmap.StaleIndexError):
            file.most_similar(file.at()[7], 5, approximate=True)
        assert file.build_ann() == tmp_path / "a.dwe.2.usearch"
        for t in (0, 2):
            step = file.at(t)
            assert step.most_similar(step[7], 5, approximate=True)[0].row == 7
            assert f"time step {t}" in repr(step)


def test_the_command_uses_the_approximate_index(command, clustered):
    with embmap.open(clustered) as file:
        file.build_ann()
        expected = file.most_similar("w1", 3, approximate=True)
    found = json.loads(command("similar", clustered, "w1", "-n", "3", "--approximate", "--json")[1])
    assert [neighbor["row"] for neighbor in found] == [neighbor.row for neighbor in expected]


def test_rows_that_threads_lose_are_linked_again(clustered, monkeypatch):
    real = pytest.importorskip("usearch.index").Index

    class Losing(real):
        def add(self, keys, rows, *, threads):
            kept = np.arange(len(keys)) % 10 > 0 if threads > 1 else slice(None)
            super().add(keys, rows, threads=threads)
            if threads > 1:
                super().remove(keys[~kept])

    monkeypatch.setenv("EMBMAP_THREADS", "2")
    monkeypatch.setattr(approximate, "_usearch", lambda: types.SimpleNamespace(Index=Losing))
    with embmap.open(clustered) as file:
        file.build_ann()
        words = [f"w{i}" for i in range(0, 3000, 50) if i not in (7, 8)]
        nearest = file.most_similar(words, 1, exclude=[], approximate=True)
        assert [found[0].word for found in nearest] == words


class Interrupted:
    """A graph of usearch whose calls meet an interrupt, which usearch turns into RuntimeError."""

    def __init__(self, graph):
        self._graph = graph

    def __getattr__(self, name):
        return getattr(self._graph, name)

    def __len__(self):
        return len(self._graph)

    def _meet(self):
        try:
            _thread.interrupt_main()
            time.sleep(0.01)
        except KeyboardInterrupt:
            raise RuntimeError("Operation has been terminated") from None

    def add(self, *arguments, **options):
        self._meet()
        return self._graph.add(*arguments, **options)

    def search(self, *arguments):
        self._meet()
        return self._graph.search(*arguments)


def test_an_interrupt_of_usearch_is_a_keyboard_interrupt(clustered, monkeypatch):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals arrive in the main thread only")
    with embmap.open(clustered) as file:
        file.build_ann()
    real = pytest.importorskip("usearch.index").Index

    class Module:
        class Index:
            def __new__(cls, **options):
                return Interrupted(real(**options))

            @staticmethod
            def restore(*arguments, **options):
                return Interrupted(real.restore(*arguments, **options))

    monkeypatch.setattr(approximate, "_usearch", lambda: Module)
    with embmap.open(clustered) as file:
        for work in (file.build_ann, partial(file.most_similar, "w1", approximate=True)):
            with pytest.raises(KeyboardInterrupt):
                work()
