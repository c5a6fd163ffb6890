"""What one client may cost the others: pipelines, silence, slow readers, odd heads."""

import contextlib
import http.client
import json
import os
import re
import socket
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import embmap
from tests.served import answer_to, in_process, serving, settings_of, skip_without_server

pytestmark = pytest.mark.slow

skip_without_server()

WORDS = [f"w{i}" for i in range(40)]
VECTORS = np.random.default_rng(8).standard_normal((len(WORDS), 6), np.float32)
TOKEN = "0123456789abcdef"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/a/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CLOSE = b"Connection: close\r\n"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="this is told by Linux")


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS)


def error_of(answer):
    status = re.match(rb"HTTP/1.1 (\d+) ", answer)
    return int(status[1]), json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


def status_of(connection):
    """Read one answer from a connection that goes on."""
    with http.client.HTTPResponse(connection) as response:
        response.begin()
        response.read()
        return response.status


# Pipelines


@linux
def test_requests_that_nobody_waits_for_are_not_gathered(path):
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(path) as server:
        process = psutil.Process(server.process.pid)
        assert server.ask("/")[0] == 200
        before = process.memory_info().rss
        with socket.create_connection(("127.0.0.1", server.port), timeout=2) as greedy:
            with contextlib.suppress(TimeoutError):  # the server reads no more
                greedy.sendall(request * (20_000_000 // len(request)))
            assert server.ask("/healthz")[0] == 200
            assert process.memory_info().rss - before < 50_000_000


def test_pipelined_requests_are_answered_in_their_order(path):
    get = b"GET /v1/a/vectors/w%d HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    requests, rows = [], []
    for i in range(600):
        row = i * 7 % len(WORDS)
        rows.append(row)
        body = b'{"rows": [%d], "missing": "null"%s}' % (row, b" " * (i * 37 % 3000))
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        chunk = b"\r\n%x\r\n%s\r\n0\r\nTrailer: x\r\n\r\n" % (len(body), body)
        kinds = (get % (row, b""), POST + length + body, POST + CHUNKED + chunk)
        requests.append(kinds[i % 3])
    requests.append(GET + CLOSE + b"\r\n")
    with in_process(settings_of(path)) as port:
        whole = answer_to(port, b"".join(requests))
        parts = answer_to(port, *requests)
    for found in (whole, parts):
        told = re.findall(rb"\{.*\}", found)
        assert json.loads(told.pop()) == {"status": "ok"}
        answers = [json.loads(each) for each in told]
        vectors = [each["vector"] if "vector" in each else each["vectors"][0] for each in answers]
        assert np.array_equal(np.float32(vectors), VECTORS[rows])


# Connections


@contextlib.contextmanager
def connected(port):
    """Yield what opens connections, which are closed at the end."""
    with contextlib.ExitStack() as until_end:

        def connect(n):
            addresses = [("127.0.0.1", port)] * n
            made = (socket.create_connection(each, timeout=20) for each in addresses)
            return [until_end.enter_context(each) for each in made]

        yield connect


@linux
@pytest.mark.parametrize("options", [(), ("--workers", 2)])
def test_silent_connections_keep_nobody_out(path, options):
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))

    slow = POST + b"Content-Length: 16\r\n\r\n"
    with serving(path, *options, preexec_fn=limit) as server:
        assert server.json("/v1/a/vectors/w1")[0] == 200
        with connected(server.port) as connect:
            begun = connect(4)
            for each in begun:
                each.sendall(slow)
            connect(400)
            for each in begun:  # what has begun is finished
                each.sendall(b'{"words":["w1"]}')
                assert status_of(each) == 200
            connect(400)
            assert server.json("/healthz")[0] == 200
            embmap.finalfusion.write(path, WORDS, VECTORS)  # there are descriptors for files
            assert server.json("/v1/a/vectors/w1")[0] == 200
        assert server.json("/healthz")[0] == 200
    told = "more than 112 connections at once: those that wait longest for a request are closed"
    assert server.told in (f"{told}\n", f"{told}\n" * len(options))  # once for each process


def test_who_waits_longest_makes_room_and_who_is_answered_does_not(path):
    with in_process(settings_of(path), connections=2) as port, connected(port) as connect:
        busy, idle = connect(2)
        busy.sendall(POST + b"Content-Length: 16\r\n\r\n")
        idle.sendall(GET + b"\r\n")
        assert status_of(idle) == 200
        (another,) = connect(1)
        another.sendall(POST + b"Content-Length: 16\r\n\r\n")
        assert idle.recv(1) == b""
        found = b""
        with contextlib.suppress(ConnectionError):
            found = answer_to(port)
        assert error_of(found) == (503, "busy")
        assert b"retry-after: 1" in found.lower()
        for each in (busy, another):
            each.sendall(b'{"words":["w1"]}')
            assert status_of(each) == 200
        assert answer_to(port, GET + CLOSE + b"\r\n").startswith(b"HTTP/1.1 200 ")


@linux
def test_without_a_descriptor_connections_are_closed(path):
    import resource

    with serving(path) as server:
        pid = server.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = [int(each) for each in os.listdir(f"/proc/{pid}/fd")]
        lowest = min(set(range(len(used) + 1)) - set(used))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
        with connected(server.port) as connect:
            assert {each.recv(1) for each in connect(300)} == {b""}
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert server.json("/healthz")[0] == 200
    # uvloop closes them itself, without a word.
    assert server.told in ("", "no file descriptor is left: new connections are closed\n")


def test_empty_lines_keep_no_connection(path):
    with (
        in_process(settings_of(path), HEAD_SECONDS=0.1) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as client,
    ):
        client.sendall(GET + b"\r\n")
        assert status_of(client) == 200
        client.sendall(b"\r\n")
        assert client.recv(1) == b""


# Slow readers


def test_who_takes_an_answer_slowly_gets_all_of_it(tmp_path):
    wide = np.ones((512, 4096), np.float32)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", [str(i) for i in range(512)], wide)
    body = json.dumps({"rows": list(range(512))}).encode()
    head = POST + CLOSE + b"Accept: application/x-npy\r\nContent-Length: %d\r\n\r\n" % len(body)
    with (
        in_process(settings_of(path), SEND_SECONDS=1) as port,
        socket.socket() as slow,
    ):
        slow.settimeout(20)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        slow.connect(("127.0.0.1", port))
        slow.sendall(head + body)
        found = []
        while data := slow.recv(1 << 18):
            found.append(data)
            time.sleep(0.15)
    assert len(b"".join(found).partition(b"\r\n\r\n")[2]) == wide.nbytes + 128


# Heads


def test_trailers_say_nothing(path, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    body = b'10\r\n{"words":["w1"]}\r\n0\r\n'
    bearer = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
    good, evil = b"Host: localhost\r\n", b"Host: evil.example\r\n"

    def asked(head, trailers):
        head = POST.replace(good, b"") + head + CHUNKED + CLOSE + b"\r\n"
        return answer_to(port, head + body + trailers + b"\r\n")

    with in_process(settings_of(path)) as port:
        assert asked(good, evil).startswith(b"HTTP/1.1 200 ")
        assert asked(good, b"Content-Type: text/plain\r\n").startswith(b"HTTP/1.1 200 ")
        assert error_of(asked(evil, good)) == (421, "wrong_host")
    with in_process(replace(settings_of(path), token_file=str(tmp_path / "token"))) as port:
        assert error_of(asked(good, bearer)) == (401, "unauthorized")
        assert asked(good + bearer, b"Authorization: x\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"chunked, chunked", b"identity"])
def test_a_body_whose_coding_nothing_decodes_is_refused(path, coding):
    head = POST + b"Transfer-Encoding: " + coding + b"\r\n\r\n"
    body = b'10\r\n{"words":["w1"]}\r\n0\r\n\r\n'
    with in_process(settings_of(path)) as port:
        assert error_of(answer_to(port, head + body + GET + CLOSE + b"\r\n")) == (400, "bad_http")


def test_headers_that_may_be_there_once(path):
    with in_process(settings_of(path)) as port:
        for first, second in ((b"localhost", b"localhost"), (b"evil.example", b"localhost")):
            head = b"GET /healthz HTTP/1.1\r\nHost: %s\r\nHost: %s\r\n" % (first, second)
            assert error_of(answer_to(port, head + CLOSE + b"\r\n")) == (400, "bad_http")
        twice = b"Authorization: Bearer a\r\nauthorization: Bearer b\r\n"
        assert error_of(answer_to(port, GET + twice + CLOSE + b"\r\n")) == (400, "bad_http")


@pytest.mark.parametrize(
    "route",
    ["/healthz", "/metrics", "/v1/models", "/openapi.json", "/static/app.js", "/v1/a/vectors"],
)
def test_a_path_ends_where_it_ends(path, route):
    with in_process(settings_of(path)) as port:
        for end in (b"%0A", b"%0a%0a"):
            head = b"GET " + route.encode() + end + b" HTTP/1.1\r\nHost: localhost\r\n"
            assert error_of(answer_to(port, head + CLOSE + b"\r\n")) == (404, "not_found")


def test_an_accept_header_is_bounded(path):
    many = b"text/html;q=0.5, " * 50 + b"application/x-npy"
    with in_process(settings_of(path)) as port:
        for accept, status in ((many, b"200"), (b"a;q=1," * 5000, b"431"), (b"b" * 1025, b"431")):
            head = b"GET /v1/a/vectors/w1 HTTP/1.1\r\nHost: localhost\r\nAccept: %s\r\n" % accept
            found = answer_to(port, head + CLOSE + b"\r\n")
            assert found.startswith(b"HTTP/1.1 " + status)
            assert (b"\x93NUMPY" in found) == (status == b"200")
        head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + CLOSE + b"\r\n"
        assert b'status="431"} 2' in answer_to(port, head)
