"""The server on bad days: files that change under load, requests that never end, signals."""

import asyncio
import errno
import os
import re
import shutil
import struct
import threading
import time

import numpy as np
import pytest
import xxhash

import embmap
from tests.serve.faulty import MANY, RNG, VECTORS, WORDS, asking, rows_near, value_of
from tests.served import answer_to, in_process, serving, settings_of, skip_without_server

pytestmark = pytest.mark.slow

skip_without_server()


# Files that change


@pytest.mark.parametrize("options", [(), ("--workers", 2)])
def test_a_file_is_replaced_and_truncated_while_it_is_served(path, options):
    with serving(path, *options) as server:
        assert server.json("/v1/a/vectors/w1")[0] == 200
        with asking(lambda: value_of(server)) as seen:
            embmap.finalfusion.write(path, WORDS, VECTORS + 1)  # by renaming
            found = server.json("/v1/a/vectors/w1")[1]["vector"]
            assert np.array_equal(np.float32(found), VECTORS[1] + 1)
            os.truncate(path, 300)
            assert server.code("/v1/a/vectors/w1") == (503, "model_unavailable")
            assert server.json("/v1/models")[1]["models"][0]["available"] is False
            path.unlink()
            assert server.code("/v1/a/vectors/w1") == (503, "model_unavailable")
            embmap.finalfusion.write(path, WORDS, VECTORS)
            assert server.json("/v1/a/vectors/w1")[0] == 200
    values = {float(x) for x in (VECTORS[1, 0], VECTORS[1, 0] + 1)}
    for status, told in seen:
        if status == 200:
            assert float(np.float32(told)) in values
        else:
            assert (status, told) == (503, "model_unavailable")


def test_an_index_file_is_truncated_while_it_is_served(path):
    with embmap.open(path) as file:
        index = file.build_index()
    with serving(path) as server, asking(lambda: value_of(server)) as seen:
        while not seen:
            time.sleep(0.001)
        os.truncate(index, 100)
        for word in WORDS:
            assert server.json(f"/v1/a/vectors/{word}")[0] == 200
    assert {(status, np.float32(told)) for status, told in seen} == {(200, VECTORS[1, 0])}
    with serving(path) as server:  # and one that does not hold is built anew
        assert server.json("/v1/a/vectors/w1")[0] == 200
    assert server.told == "a: its index is not valid; the server builds another\n"


def test_an_index_of_no_use_is_logged_once_for_all_versions_of_the_file(path):
    path.with_name("a.fifu.embx").write_bytes(b"no index")
    with serving(path) as server:
        for i in range(4):
            embmap.finalfusion.write(path, WORDS, VECTORS + i)
            found = server.json("/v1/a/vectors/w1")[1]["vector"]
            assert np.array_equal(np.float32(found), VECTORS[1] + i)
    assert server.told == "a: its index is not valid; the server builds another\n"


@pytest.mark.parametrize("beside", [False, True])
def test_a_server_does_not_wait_until_its_own_index_is_on_the_disk(path, beside, monkeypatch):
    if beside:
        with embmap.open(path) as file:
            file.build_index()
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    asked = b"GET /v1/a/vectors/w1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with in_process(settings_of(path)) as port:
        assert answer_to(port, asked).startswith(b"HTTP/1.1 200")
    assert not synced


@pytest.mark.parametrize("kind", ["folder", "pipe", "damaged", "of another file", "endless"])
def test_an_index_file_of_no_use_is_not_needed(path, kind):
    index = path.with_name("a.fifu.embx")
    if kind == "folder":
        index.mkdir()
    elif kind == "pipe":
        os.mkfifo(index)
    elif kind == "endless":
        index.symlink_to("/dev/zero")
    elif kind == "damaged":
        with embmap.open(path) as file:
            data = bytearray(file.build_index().read_bytes())
        data[-9] ^= 1
        index.write_bytes(data)
    else:
        other = embmap.finalfusion.write(path.with_name("b"), WORDS[::-1], VECTORS)
        with embmap.open(other) as file:
            file.build_index(index)
    with serving(path) as server:
        for i in (1, 39):
            found = server.json(f"/v1/a/vectors/w{i}")[1]["vector"]
            assert np.array_equal(np.float32(found), VECTORS[i])
        assert server.code("/v1/a/vectors/none") == (404, "unknown_word")
    assert server.told == "a: its index is not valid; the server builds another\n"


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="there is no /proc/PID/io here")
@pytest.mark.parametrize("states_its_size", [False, True])
def test_a_sparse_index_file_is_not_copied(path, states_its_size):
    with embmap.open(path) as file:
        index = file.build_index()
    with open(index, "r+b") as out:
        n_blocks = 1 << 12
        if states_its_size:
            fields = list(struct.unpack("<8sIIQqQQQQ", out.read(64)))
            tables = out.read(88 * fields[2])
            fields[7] = fields[6] + (n_blocks << 16)  # where the checksums begin
            fields[5] = fields[7] + 8 * n_blocks  # the size of the file
            head = struct.pack("<8sIIQqQQQ", *fields[:8])
            out.seek(0)
            out.write(head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head + tables)))
            out.truncate(fields[5])
        else:
            out.truncate(n_blocks << 16)
    with serving(path) as server:
        assert server.json("/v1/a/vectors/w1")[0] == 200
        with open(f"/proc/{server.process.pid}/io") as told:
            written = int(re.search(r"wchar: (\d+)", told.read())[1])
    assert written < 1 << 24 < n_blocks << 16
    assert server.told == "a: its index is not valid; the server builds another\n"


@pytest.fixture
def graphed(tmp_path, monkeypatch):
    """A file, its approximate index, and where a server has its folder."""
    pytest.importorskip("usearch", reason="usearch is not installed")
    vectors = RNG.standard_normal((2000, 16), np.float32)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", MANY[: len(vectors)], vectors)
    with embmap.open(path) as file:
        index = file.build_ann()
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    return path, index, own


@pytest.mark.parametrize("n_workers", [1, 2])
def test_an_approximate_index_is_changed_while_it_is_searched(graphed, n_workers):
    path, index, own = graphed
    with embmap.open(path) as file:
        right = tuple(each.row for each in file.most_similar("3", 5, approximate=True))
    whole, stale = index.read_bytes(), (422, "stale_index")
    middle = len(whole) // 2
    spare = path.with_name("spare")
    damaged = whole[:middle] + bytes(0xFF ^ each for each in whole[middle:-64]) + whole[-64:]

    def replace(make):
        index.unlink()
        make()

    changes = [
        lambda: os.truncate(index, 100),
        lambda: index.write_bytes(damaged),
        lambda: index.write_bytes(b""),
        index.unlink,
        lambda: replace(index.mkdir),
        lambda: replace(lambda: index.symlink_to("/dev/zero")),
        lambda: replace(lambda: index.symlink_to(path)),
        lambda: replace(lambda: index.symlink_to(index)),
    ]
    with serving(path, "--workers", n_workers) as server:
        assert rows_near(server) == right
        with asking(lambda: rows_near(server)) as seen:
            for change in changes:
                change()
                for _ in range(4):  # whichever worker answers
                    assert rows_near(server) == stale
                if index.is_dir():
                    index.rmdir()
                spare.write_bytes(whole)
                spare.replace(index)
                for _ in range(4):
                    assert rows_near(server) == right
                assert len(list(own.rglob("*.usearch"))) <= (n_workers > 1)
        assert seen == {right, stale}
        if n_workers > 1:  # a worker that takes the place of another has further counts
            assert len(list(own.rglob("*.counts"))) == n_workers
    assert list(own.iterdir()) == []


def test_a_new_approximate_index_is_searched_from_the_next_request_on(graphed):
    path, _, own = graphed
    with serving(path, "--workers", 2) as server:
        for i in range(3):
            vectors = RNG.standard_normal((2000, 16), np.float32)
            embmap.finalfusion.write(path, MANY[:2000], vectors)
            for _ in range(4):
                assert rows_near(server) == (422, "stale_index"), i
            with embmap.open(path) as file:
                file.build_ann()
                right = tuple(each.row for each in file.most_similar("3", 5, approximate=True))
            for _ in range(4):
                assert rows_near(server) == right
            assert len(list(own.rglob("*.usearch"))) == 1


@pytest.mark.parametrize("error", [None, errno.ENOSPC, errno.EDQUOT])
def test_an_approximate_index_without_room_is_refused(graphed, monkeypatch, error):
    from embmap.search import approximate
    from embmap.serve import indexes

    body = b'{"word": "3", "approximate": true}'
    asked = (
        b"POST /v1/a/similar HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )

    def full(*_):
        raise OSError(error, os.strerror(error))

    path, _, own = graphed
    with in_process(settings_of(path)) as port:
        with monkeypatch.context() as patched:
            patched.setattr(indexes, "_REFUSED_FOR", 0.0)
            if error is None:
                room = shutil.disk_usage(own)._replace(free=1000)
                patched.setattr(shutil, "disk_usage", lambda _: room)
            else:
                patched.setattr(approximate._GraphFile, "copy_to", full)
            answer = answer_to(port, asked)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"no_room"' in answer
            assert list(own.iterdir()) == []
        with monkeypatch.context() as patched:
            patched.setattr(indexes, "_REFUSED_FOR", 0.0)
            assert answer_to(port, asked).startswith(b"HTTP/1.1 200 ")
        assert list(own.iterdir()) == []


def test_a_link_that_is_turned_back_and_forth(tmp_path):
    one = embmap.finalfusion.write(tmp_path / "one", WORDS, VECTORS)
    two = embmap.finalfusion.write(tmp_path / "two", WORDS[::-1], VECTORS + 1)
    link, spare = tmp_path / "a.fifu", tmp_path / "spare"
    link.symlink_to(one)
    right = {float(VECTORS[1, 0]), float(VECTORS[38, 0] + 1)}
    with serving(link, "--workers", 2) as server:
        with asking(lambda: value_of(server)) as seen:
            for i in range(300):
                spare.symlink_to((two, one)[i % 2])
                spare.replace(link)
        answered = 0
        while answered < 20:  # what failed is tried again, by either worker
            answered = answered + 1 if value_of(server)[0] == 200 else 0
        assert value_of(server) == (200, pytest.approx(float(VECTORS[1, 0])))
    values = {float(np.float32(told)) for status, told in seen if status == 200}
    assert values <= right
    assert all(told == "model_unavailable" for status, told in seen if status != 200)


def test_a_file_is_replaced_faster_than_it_is_opened(path):
    with serving(path) as server:
        assert value_of(server)[0] == 200
        with asking(lambda: value_of(server)) as seen:
            for i in range(100):
                embmap.finalfusion.write(path, WORDS, VECTORS + i % 7)
        expected = float(VECTORS[1, 0] + 99 % 7)
        assert value_of(server) == (200, pytest.approx(expected))
    values = {float(np.float32(told)) for status, told in seen if status == 200}
    assert values <= {float(VECTORS[1, 0] + i) for i in range(7)}
    assert len(values) > 1


def test_a_file_is_rewritten_in_place_and_its_time_put_back(path):
    other = embmap.finalfusion.write(path.with_name("b"), WORDS[::-1], VECTORS * 2)
    with serving(path) as server:
        assert value_of(server)[0] == 200
        before = path.stat()
        with open(path, "r+b") as file:
            file.write(other.read_bytes())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert value_of(server) == (200, pytest.approx(float(VECTORS[38, 0] * 2)))


def test_what_was_read_is_trusted_only_if_nobody_wrote_meanwhile(path, tmp_path):
    from embmap.serve.models import Model
    from embmap.serve.problems import Problem
    from embmap.serve.settings import ModelSource

    def opened():
        return asyncio.run(Model(ModelSource("a", str(path)), "read").current())

    version = opened()
    version.check_unchanged()
    path.replace(tmp_path / "elsewhere")  # what was opened is whole
    embmap.finalfusion.write(path, WORDS, VECTORS)
    (tmp_path / "elsewhere").unlink()
    version.check_unchanged()
    for move in (False, True):
        version = opened()
        status = path.stat()
        with open(path, "r+b") as file:
            file.seek(-4, 2)
            file.write(b"abcd")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        if move:  # the path leads to another file now, but this one was read
            embmap.finalfusion.write(path, WORDS, VECTORS)
        else:
            with pytest.raises(Problem) as problem:
                version.check_unchanged()
            assert (problem.value.status, problem.value.headers["Retry-After"]) == (503, "1")
    version = opened()
    os.truncate(path, 100)
    path.unlink()
    with pytest.raises(Problem):
        version.check_unchanged()


def test_the_servers_own_folder_is_removed(path, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with serving(path, "--workers", 2) as server:
        assert value_of(server)[0] == 200
        for folder in (tmp_path / "temporary").iterdir():
            shutil.rmtree(folder)
        embmap.finalfusion.write(path, WORDS, VECTORS + 1)
        for _ in range(10):
            assert value_of(server) == (200, pytest.approx(float(VECTORS[1, 0] + 1)))
        assert server.ask("/metrics")[0] == 200


def test_a_disk_without_room_costs_counts_and_a_shared_index(path, monkeypatch, tmp_path):
    from embmap.serve.counts import Counts
    from embmap.serve.models import Model
    from embmap.serve.settings import ModelSource

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    counts = Counts(["/a"], str(tmp_path))
    counts.count("/a", 200, 0.1, 1)
    assert 'embmap_requests_total{route="/a",status="200"} 1' in counts.text()
    monkeypatch.setattr("embmap.indexing.write_index", full)
    version = asyncio.run(Model(ModelSource("a", str(path)), "read", tmp_path / "x").current())
    assert np.array_equal(version.file["w7"], VECTORS[7])


def test_others_are_served_while_an_index_is_built(path, tmp_path, monkeypatch):
    from embmap.serve.settings import Limits, ModelSource, Settings

    slow = embmap.finalfusion.write(tmp_path / "slow.fifu", WORDS, VECTORS)
    release, begun = threading.Event(), threading.Event()
    real = embmap.indexing.write_index

    def write_index(target, *rest):
        if "index-1" in os.fsdecode(target):
            begun.set()
            release.wait(20)
        return real(target, *rest)

    monkeypatch.setattr("embmap.indexing.write_index", write_index)
    sources = (ModelSource("a", str(path)), ModelSource("slow", str(slow)))
    settings = Settings(models=sources, folder=str(tmp_path / "own"), limits=Limits(threads=2))
    get = b"GET /v1/%s/vectors/w1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    models = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    found = []
    with in_process(settings) as port:

        def wait_for_slow():
            found.append(answer_to(port, get % b"slow")[:13])

        threads = [threading.Thread(target=wait_for_slow) for _ in range(6)]
        for thread in threads:
            thread.start()
        assert begun.wait(20)
        assert answer_to(port, get % b"a").startswith(b"HTTP/1.1 200 ")
        assert answer_to(port, models).count(b'"available":true') == 2
        assert not found
        release.set()
        for thread in threads:
            thread.join()
    assert found == [b"HTTP/1.1 200 "] * 6


def test_workers_share_one_index_which_goes_with_the_server(path, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with serving(path, "--workers", 3) as server:
        for round_ in range(2):
            for _ in range(30):  # whichever worker answers
                assert value_of(server)[0] == 200
            assert len(list((tmp_path / "temporary").rglob("*.embx"))) == 1, round_
            embmap.finalfusion.write(path, WORDS, VECTORS)  # another file, another index
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not path.with_name("a.fifu.embx").exists()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="preadv2 is only on Linux")
def test_what_is_not_in_memory_is_read_by_a_thread(path, monkeypatch, tmp_path):
    from dataclasses import replace

    from embmap.io.cached_reads import CachedFetch

    loading, absent = [], [True]
    load, preadv = CachedFetch.load, os.preadv

    def noted(self, ranges):
        loading.append(threading.current_thread().name)
        absent[0] = False
        load(self, ranges)

    def uncached(number, buffers, offset, flags=0):
        if flags and absent[0]:
            raise BlockingIOError
        return preadv(number, buffers, offset, flags)

    get = b"GET /v1/a/vectors/w7 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with in_process(replace(settings_of(path), folder=str(tmp_path / "own"))) as port:
        assert answer_to(port, get).startswith(b"HTTP/1.1 200 ")  # it is open now
        monkeypatch.setattr(CachedFetch, "load", noted)
        monkeypatch.setattr(os, "preadv", uncached)
        assert answer_to(port, get).startswith(b"HTTP/1.1 200 ")
        monkeypatch.undo()
    assert [name.startswith("embmap-serve") for name in loading] == [True]


def test_a_mapped_file_is_served_and_the_danger_told(path):
    with serving(path, "--backend", "mmap") as server:
        assert np.array_equal(np.float32(server.json("/v1/a/vectors/w5")[1]["vector"]), VECTORS[5])
        found = server.json("/v1/a/similar", {"word": "w5", "n": 3})[1]["neighbors"]
        with embmap.open(path) as file:
            assert [each["word"] for each in found] == [
                each.word for each in file.most_similar("w5", 3)
            ]
    assert server.told.startswith("embmap: warning: with --backend mmap")
