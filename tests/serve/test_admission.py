"""Who is let in when much is asked: look-ups beside searches, slow bodies and slow readers."""

import contextlib
import json
import socket
import threading
import time

import numpy as np
import pytest

import embmap
from tests.served import answer_to, in_process, settings_of, skip_without_server

pytestmark = pytest.mark.slow

skip_without_server()

WORDS = [f"w{i}" for i in range(512)]
GET = b"GET /v1/a/vectors/w1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
SEARCHES = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    vectors = np.random.default_rng(7).standard_normal((len(WORDS), 4096), np.float32)
    return embmap.finalfusion.write(tmp_path_factory.mktemp("wide") / "a.fifu", WORDS, vectors)


def post(route, body, accept="application/json"):
    body = json.dumps(body).encode()
    head = f"POST /v1/a/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Accept: {accept}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def status_of(port, *parts):
    return int(answer_to(port, *parts)[9:12])


def test_searches_leave_room_for_lookups(path, monkeypatch):
    """What a look-up rests on that no search may take: a slot, and a thread where it needs one."""
    release = threading.Event()
    real = embmap.embedding_file.EmbeddingFile.most_similar

    def most_similar(*arguments, **options):
        assert release.wait(60)
        return real(*arguments, **options)

    monkeypatch.setattr("embmap.embedding_file.EmbeddingFile.most_similar", most_similar)
    found = []
    with in_process(settings_of(path)) as port:

        def ask():
            found.append(status_of(port, post("similar", {"word": "w1", "n": 3})))

        threads = [threading.Thread(target=ask) for _ in range(SEARCHES + 6)]
        try:
            for thread in threads:
                thread.start()
            while len(found) < 6:  # until as many have come as are let in
                time.sleep(0.005)
            for _ in range(20):
                assert status_of(port, GET) == 200
                assert status_of(port, post("lookup", {"words": WORDS[:9]})) == 200
                assert status_of(port, MODELS) == 200  # by a thread
            assert found == [429] * 6
        finally:
            release.set()
            for thread in threads:
                thread.join()
    assert found == [429] * 6 + [200] * SEARCHES


def test_bodies_that_arrive_slowly_keep_nobody_out(path):
    body = b'{"words": ["w1"]}'
    head = b"POST /v1/a/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with in_process(settings_of(path)) as port, contextlib.ExitStack() as held:
        slow = []
        for i in range(100):
            connection = socket.create_connection(("127.0.0.1", port), timeout=20)
            slow.append(held.enter_context(connection))
            connection.sendall(head % (b"similar" if i % 3 else b"lookup") + body[:1])
        for _ in range(3):
            assert status_of(port, GET) == 200
            assert status_of(port, post("lookup", {"words": ["w1"]})) == 200
            assert status_of(port, post("similar", {"word": "w1"})) == 200
            assert status_of(port, MODELS) == 200
        for i, connection in enumerate(slow):
            if not i % 3:
                connection.sendall(body[1:])
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_large_bodies_have_slots_while_they_arrive(path):
    request = post("lookup", {"words": ["x" * 200_000]})
    small = post("lookup", {"words": ["w1"]})
    with (
        in_process(settings_of(path, large=1)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as slow,
    ):
        slow.sendall(request[:150_000])
        while (found := status_of(port, request)) != 429:
            assert found == 404  # the other is on its way
        assert [status_of(port, small), status_of(port, GET)] == [200, 200]
        slow.sendall(request[150_000:])
        assert slow.recv(100).startswith(b"HTTP/1.1 404 ")
        while status_of(port, request) == 429:
            pass


def test_who_takes_no_answer_keeps_out_nobody_with_a_small_one_and_is_left(path):
    request = post("lookup", {"rows": list(range(512))}, "application/x-npy")
    wide = post("lookup", {"rows": list(range(40))}, "application/x-npy")
    with (
        in_process(settings_of(path, large=1), SEND_SECONDS=0.5) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as lazy,
    ):
        lazy.sendall(request)
        while (found := status_of(port, wide)) != 429:
            assert found == 200  # its request is on its way
        assert status_of(port, GET) == 200
        while status_of(port, wide) == 429:
            time.sleep(0.01)  # until it is left
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := lazy.recv(1 << 20):
                received += len(data)
        assert received < 512 * 4096 * 4


def test_a_refusal_that_rests_on_a_file_being_written_is_not_sent(tmp_path, monkeypatch):
    words = ["a", "b", "c"]
    rows = np.eye(3, dtype=np.float32)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", words, rows)
    other = embmap.finalfusion.write(tmp_path / "b.fifu", ["x", "b", "c"], rows)
    whole = path.read_bytes()
    real = embmap.embedding_file.EmbeddingFile.find
    get = b"GET /v1/a/vectors/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    requests = [
        get,
        post("lookup", {"words": ["a"]}),
        post("similar", {"word": "a"}),
        post("analogy", {"a": "a", "b": "b", "c": "c"}),
    ]

    def rewriting(file, asked):
        with open(path, "r+b") as out:  # somebody is halfway through writing it anew
            out.write(other.read_bytes())
        return real(file, asked)

    with in_process(settings_of(path)) as port:
        for request in requests:
            path.write_bytes(whole)
            assert status_of(port, request) == 200
            with monkeypatch.context() as patched:
                patched.setattr("embmap.embedding_file.EmbeddingFile.find", rewriting)
                found = answer_to(port, request)
            assert found.startswith(b"HTTP/1.1 503 "), request
            assert b"retry-after: 1" in found.lower()
            assert status_of(port, request) == 404  # it is whole now, and has no such word
