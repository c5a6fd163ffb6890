"""The server on bad days: files that change under load, requests that never end, signals."""

import asyncio
import contextlib
import io
import json
import os
import random
import re
import socket
import struct
import subprocess
import threading
import time

import numpy as np
import pytest

import embmap
from tests.served import Served

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
def serving(*arguments):
    server = Served(*arguments)
    try:
        yield server
    finally:
        status, _, server.told = server.stop()
    assert status == 0


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


@contextlib.contextmanager
def in_process(settings, **patched):
    """Serve in a thread of this process, where limits can be small; yields the port."""
    import uvicorn

    from embmap.serve import protocol
    from embmap.serve.application import application

    before = {name: getattr(protocol, name) for name in patched}
    for name, value in patched.items():
        setattr(protocol, name, value)
    config = uvicorn.Config(
        application(settings), port=0, log_level="critical", http=protocol.BoundedHttp, ws="none"
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
            for name, value in before.items():
                setattr(protocol, name, value)


def settings_of(path, **limits):
    from embmap.serve.settings import Limits, ModelSource, Settings

    return Settings((ModelSource("a", str(path)),), limits=Limits(**limits))


def answer_to(port, *parts):
    """Send bytes piece by piece and return what comes until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        found = b""
        for part in parts:
            connection.sendall(part)
        while data := connection.recv(1 << 16):
            found += data
        return found


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
    assert server.told == "a: its index is of no use; another is built to serve it\n"


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


def test_what_is_not_in_memory_is_read_by_a_thread(path):
    with serving(path) as server:
        for _ in range(5):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert server.json("/v1/a/vectors/w7")[0] == 200
            assert value_of(server)[0] == 200


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
        found = answer_to(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", line * 41)
        assert found.startswith(b"HTTP/1.1 431 ")
        assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_large"
        few = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        assert answer_to(port, few, line * 30, b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_who_sends_slowly_is_told_so(path):
    head = b"POST /v1/a/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with in_process(settings_of(path, body_seconds=0.1), HEAD_SECONDS=0.1) as port:
        assert answer_to(port) == b""  # who says nothing is not answered
        for parts in ([b"GET /hea"], [head, b"Content-Length: 16\r\n\r\n", b'{"words":']):
            found = answer_to(port, *parts)
            assert found.startswith(b"HTTP/1.1 408 ")
            assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "slow"


def test_more_requests_than_are_taken_and_answers_that_take_too_long(path, large):
    head = b"POST /v1/a/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    get = b"GET /v1/a/vectors/w1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with (
        in_process(settings_of(path, requests=1)) as port,
        socket.create_connection(("127.0.0.1", port)) as slow,
    ):
        assert answer_to(port, get).startswith(b"HTTP/1.1 200 ")
        slow.sendall(head % b"lookup" + b"Content-Length: 16\r\n\r\n")
        while not (found := answer_to(port, get)).startswith(b"HTTP/1.1 429 "):
            assert found.startswith(b"HTTP/1.1 200 ")  # the other is on its way
        assert b"retry-after: 1" in found.lower()
        slow.sendall(b'{"words":["w1"]}')
        assert slow.recv(100).startswith(b"HTTP/1.1 200 ")
        while answer_to(port, get).startswith(b"HTTP/1.1 429 "):
            pass
    body = b'{"word": "1", "n": 1000}'
    asked = head % b"similar" + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with in_process(settings_of(large, seconds=1e-6)) as port:
        found = answer_to(port, asked + body)
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


def test_too_many_requests_and_slow_ones_are_refused_with_a_reason():
    from embmap.serve.pool import Pool
    from embmap.serve.problems import Problem
    from embmap.serve.settings import Limits

    release = threading.Event()

    async def scenario():
        pool = Pool(Limits(requests=1, threads=1, seconds=0.05))
        codes = []
        with pool.admitted():
            for attempt in (pool.admitted().__enter__, None):
                try:
                    if attempt is None:
                        await pool.run(pool.deadline(), release.wait, 10)
                    else:
                        attempt()
                except Problem as problem:
                    codes.append((problem.status, problem.headers["Retry-After"]))
        with pytest.raises(Problem):  # the thread still runs, and counts
            pool.admitted().__enter__()
        release.set()
        while pool._n_abandoned:
            await asyncio.sleep(0.001)
        with pool.admitted():
            codes.append(await pool.run(pool.deadline(), len, "abc"))
        pool.close()
        return codes

    assert asyncio.run(scenario()) == [(429, "1"), (408, "5"), 3]


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
    while not found:  # the first is answered: the others are running
        time.sleep(0.002)
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


def test_a_worker_that_dies_is_replaced(path):
    with serving(path, "--workers", 2) as server:
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(server.process.pid)],
            capture_output=True,
            text=True,
        ).stdout
        pids = [int(line.split()[0]) for line in listed.splitlines() if "spawn_main" in line]
        if not pids:
            pytest.skip("there is no ps here that lists the workers")
        os.kill(pids[0], 9)
        answered = 0
        while answered < 20:
            with contextlib.suppress(ConnectionError):
                answered += value_of(server)[0] == 200
