"""Requests that are garbage, endless or given up."""

import asyncio
import io
import json
import random
import re
import socket
import struct
import threading

import numpy as np
import pytest

from tests.serve.faulty import VECTORS, WORDS, value_of
from tests.served import answer_to, in_process, serving, settings_of, skip_without_server

pytestmark = pytest.mark.slow

skip_without_server()

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
