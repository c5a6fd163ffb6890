"""The server on bad days: files that change under load, requests that never end, signals."""

import asyncio
import contextlib
import errno
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import threading
import time

import numpy as np
import pytest
import xxhash

import embmap
from tests.served import Served, answer_to, in_process, serving, settings_of

for module in ("starlette", "uvicorn", "httptools", "orjson", "typer"):
    pytest.importorskip(module, reason=f"serving needs {module}")

WORDS = [f"w{i}" for i in range(40)]
RNG = np.random.default_rng(7)
VECTORS = RNG.standard_normal((len(WORDS), 6), np.float32)
MANY = [str(i) for i in range(60_000)]


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file whose vectors take some time to compare."""
    vectors = RNG.standard_normal((len(MANY), 64), np.float32)
    return embmap.finalfusion.write(tmp_path_factory.mktemp("large") / "a.fifu", MANY, vectors)


@contextlib.contextmanager
def asking(ask, n=3):
    """Ask in threads as long as the block lasts; yields the answers so far."""
    seen, done = set(), threading.Event()

    def load():
        while not done.is_set():
            seen.add(ask())

    threads = [threading.Thread(target=load) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        done.set()
        for thread in threads:
            thread.join()


def value_of(server, route="/v1/a/lookup"):
    status, answer = server.json(route, {"words": ["w1", "w39"]})
    return status, answer["vectors"][0][0] if status == 200 else answer["error"]["code"]


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
    monkeypatch.setattr("embmap.embedding_file.write_index", full)
    version = asyncio.run(Model(ModelSource("a", str(path)), "read", tmp_path / "x").current())
    assert np.array_equal(version.file["w7"], VECTORS[7])


def test_others_are_served_while_an_index_is_built(path, tmp_path, monkeypatch):
    from embmap.serve.settings import Limits, ModelSource, Settings

    slow = embmap.finalfusion.write(tmp_path / "slow.fifu", WORDS, VECTORS)
    release, begun = threading.Event(), threading.Event()
    real = embmap.embedding_file.write_index

    def write_index(target, *rest):
        if "index-1" in str(target):
            begun.set()
            release.wait(20)
        return real(target, *rest)

    monkeypatch.setattr("embmap.embedding_file.write_index", write_index)
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


# Requests


def test_garbage_on_the_wire_is_answered_and_survived(path):
    rng = random.Random(3)
    request = (
        b"POST /v1/a/lookup HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 16\r\n\r\n" + b'{"words":["w1"]}'
    )
    with serving(path) as server:
        for _ in range(400):
            data = bytearray(request)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
                connection.sendall(data[: rng.choice((len(data), rng.randrange(len(data))))])
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(1 << 16)
                assert answer == b"" or re.match(rb"HTTP/1.1 [245]\d\d ", answer)
                assert not answer.startswith(b"HTTP/1.1 500")
        assert server.json("/healthz")[0] == 200
    assert server.told == ""


def test_requests_in_one_piece_are_answered_one_by_one(path):
    one = b"GET /v1/a/vectors/w%d HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-npy\r\n"
    last = b"Connection: close\r\n"
    requests = [one % i + (last if i == 9 else b"") + b"\r\n" for i in range(10)]
    with in_process(settings_of(path)) as port:
        found = answer_to(port, b"".join(requests))
    arrays = [np.load(io.BytesIO(b"\x93NUMPY" + part)) for part in found.split(b"\x93NUMPY")[1:]]
    assert np.array_equal(arrays, VECTORS[:10])


def test_heads_are_bounded(path):
    with in_process(settings_of(path), HEAD_NBYTES=1 << 12) as port:
        line = b"x: " + b"y" * 100 + b"\r\n"
        get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        for parts in ([get, line * 41], [get + line * 50 + b"\r\n"]):  # also in one piece
            found = answer_to(port, *parts)
            assert found.startswith(b"HTTP/1.1 431 ")
            assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_large"
            assert b"content-security-policy: " in found
        chunked = get + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
        # Also a line without an end, and what comes after a body that was answered already.
        for start, more in ((get + b"x: ", b"y" * 1000), (b"GET /", b"y" * 1000), (chunked, line)):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(start)
                with pytest.raises(ConnectionError):
                    connection.sendall(more * 100_000)
        found = answer_to(port, b"NONSENSE\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 400 ")
        assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_http"
        few = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        assert answer_to(port, few, line * 30, b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_who_sends_slowly_is_told_so(path):
    head = b"POST /v1/a/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with in_process(settings_of(path, body_seconds=0.1), HEAD_SECONDS=0.1) as port:
        assert answer_to(port) == b""  # who says nothing is not answered
        # Nor does one who never ends a body that was answered already keep the connection.
        get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
        assert answer_to(port, get, b"1").startswith(b"HTTP/1.1 200 ")
        for parts in ([b"GET /hea"], [head, b"Content-Length: 16\r\n\r\n", b'{"words":']):
            found = answer_to(port, *parts)
            assert found.startswith(b"HTTP/1.1 408 ")
            assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "slow"


def test_answers_that_take_too_long_are_given_up(large):
    body = b'{"word": "1", "n": 1000}'
    head = b"POST /v1/a/similar HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with in_process(settings_of(large, seconds=1e-6)) as port:
        found = answer_to(port, head + body)
        assert found.startswith(b"HTTP/1.1 408 ")
        assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "timeout"


def test_who_goes_away_leaves_nothing_behind(path):
    with serving(path) as server:
        for i in range(60):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            body = json.dumps({"words": WORDS * 20}).encode()
            head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(
                b"POST /v1/a/lookup HTTP/1.1\r\nHost: localhost\r\n"
                + head.encode()
                + body[: 40 * i]
            )
            if i % 2:  # at once, with a reset
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.close()
        assert value_of(server)[0] == 200
    assert server.told == ""


def test_threads_that_are_given_up_keep_their_slots():
    from embmap.serve.pool import Pool, Slots
    from embmap.serve.problems import Problem

    release = threading.Event()

    async def scenario():
        slots = Slots(1, "look-ups")
        pool = Pool(slots, 1, 0.05)
        codes = []
        with slots, pytest.raises(Problem) as late:
            await pool.run(pool.deadline(), release.wait, 10)
        for attempt in range(2):
            with pytest.raises(Problem) as busy, slots:
                pass  # the thread still runs, and counts
            codes.append((busy.value.status, busy.value.headers["Retry-After"]))
            if not attempt:  # what no thread has begun is taken back, and does not count
                with pytest.raises(Problem):
                    await pool.run(pool.deadline(), codes.append, "nobody waits for this")
        release.set()
        while slots._n_taken:
            await asyncio.sleep(0.001)
        with slots:
            codes.append(await pool.run(pool.deadline() + 10, len, "abc"))
        pool.close()
        return [(late.value.status, late.value.headers["Retry-After"]), *codes]

    assert asyncio.run(scenario()) == [(408, "5"), (429, "1"), (429, "1"), 3]


# Signals


@pytest.mark.parametrize("options", [(), ("--workers", 2)])
def test_sigterm_lets_running_requests_finish(large, options):
    server = Served(large, *options)
    found = []

    def ask():
        body = {"word": "1", "n": 1000, "metric": "euclidean"}
        found.append(server.json("/v1/a/similar", body)[0])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    while not found:  # the first is answered: the others have been sent
        time.sleep(0.002)
    for _ in range(2):  # and connections are taken in their order
        assert server.ask("/healthz")[0] == 200
    assert server.stop()[0] == 0
    for thread in threads:
        thread.join()
    assert found == [200] * 6


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_cuts_no_answer_short(path, workers):
    server = Served(path, "--workers", workers)
    answers, gone = [], []

    def load():
        while not gone:
            try:
                status, headers, content = server.ask("/v1/a/vectors/w1")
            except (ConnectionError, TimeoutError):  # nobody listens any more
                gone.append(1)
            else:
                answers.append((status, len(content) == int(headers["content-length"])))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(answers) < 20:
        time.sleep(0.002)
    assert server.stop() == (0, "", "")
    for thread in threads:
        thread.join()
    assert set(answers) == {(200, True)}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc here")
def test_workers_end_with_the_process_that_started_them(path, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    server = Served(path, "--workers", 2)
    assert value_of(server)[0] == 200
    server.process.kill()
    server.process.communicate()
    while True:
        try:
            server.ask("/healthz")
        except ConnectionError:
            break
        time.sleep(0.02)
    while list((tmp_path / "temporary").iterdir()):  # the workers clean up instead
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no terminals to close here")
@pytest.mark.parametrize("workers", [1, 2])
def test_closing_the_terminal_leaves_nothing(path, tmp_path, monkeypatch, workers):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    server = Served(path, "--workers", workers)
    assert value_of(server)[0] == 200
    server.process.send_signal(signal.SIGHUP)
    try:
        assert server.process.communicate(timeout=20) == ("", "")
    finally:
        server.process.terminate()
    assert server.process.returncode == 0
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no terminals to close here")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_closed_terminal_that_is_to_be_ignored_is_ignored(path, workers):
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")

    def ignore():  # as nohup does
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with serving(path, "--workers", workers, preexec_fn=ignore) as server:
        group = psutil.Process(server.process.pid).children()
        for each in (*group, server.process):
            each.send_signal(signal.SIGHUP)
        assert value_of(server)[0] == 200
        assert psutil.Process(server.process.pid).children() == group


@pytest.mark.skipif(os.name == "nt", reason="a mapped file cannot be removed here")
def test_a_server_of_one_process_that_is_killed_leaves_nothing(path, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    server = Served(path)
    for _ in range(2):
        assert value_of(server)[0] == 200
        embmap.finalfusion.write(path, WORDS, VECTORS)
    assert value_of(server)[0] == 200
    server.process.kill()
    server.process.communicate()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_worker_that_dies_is_replaced(path):
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")
    with serving(path, "--workers", 2) as server:
        children = psutil.Process(server.process.pid).children()
        worker, _ = (each for each in children if "spawn_main" in " ".join(each.cmdline()))
        worker.kill()
        answered = 0
        while answered < 20:
            with contextlib.suppress(ConnectionError):
                answered += value_of(server)[0] == 200
