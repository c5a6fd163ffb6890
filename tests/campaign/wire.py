"""HTTP by hand: requests as bytes, answers parsed one by one, and who a connection speaks to."""

from __future__ import annotations

import contextlib
import importlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import embmap
from tests.campaign.part import Skipped
from tests.served import Served

__all__ = ["Answer", "Target", "Wire", "answers_in", "get", "lookups", "post", "require_server"]

STATUSES = {
    200,
    304,
    400,
    401,
    403,
    404,
    405,
    406,
    408,
    411,
    413,
    414,
    415,
    417,
    421,
    422,
    429,
    431,
}
STATUSES |= {501, 503, 505}
HOST = "Host: localhost\r\n"


@dataclass(frozen=True)
class Answer:
    """A response: status, headers in lower case, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


def require_server() -> ModuleType:
    """Return psutil; skip where that or what serves is not installed."""
    for name in ("httptools", "orjson", "starlette", "typer", "uvicorn", "psutil"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise Skipped(f"{name} is not installed") from error
    return module


def get(path: str, *lines: str) -> bytes:
    return (f"GET {path} HTTP/1.1\r\n{HOST}" + "".join(f"{x}\r\n" for x in lines) + "\r\n").encode()


def post(path: str, body: bytes, *lines: str) -> bytes:
    """A POST with the headers that it needs; lines that are given replace Content-Length."""
    given = lines or (f"Content-Length: {len(body)}",)
    head = f"POST {path} HTTP/1.1\r\n{HOST}Content-Type: application/json\r\n"
    return (head + "".join(f"{x}\r\n" for x in given) + "\r\n").encode("latin-1") + body


def answers_in(data: bytes) -> tuple[list[Answer], bytes]:
    """Parse the responses in bytes; returns them and what is left of one that is not whole."""
    found = []
    while True:
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            return found, data
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = first.split(" ", 2)
        assert version == "HTTP/1.1", f"no response: {data[:200]!r}"
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            assert colon, f"no header: {line!r}"
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                size, end, more = rest.partition(b"\r\n")
                if not end or len(more) < int(size, 16) + 2:
                    return found, data
                body, rest = body + more[: int(size, 16)], more[int(size, 16) + 2 :]
                if not int(size, 16):
                    break
        else:
            nbytes = int(headers.get("content-length", "0"))
            if len(rest) < nbytes:
                return found, data
            body, rest = rest[:nbytes], rest[nbytes:]
        assert int(status) in STATUSES, f"{status}: {body[:300]!r}"
        if int(status) != 100:
            found.append(Answer(int(status), headers, body))
        data = rest


class Wire:
    """A connection."""

    def __init__(self, port: int, *, seconds: float = 15.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self.data = b""
        self.ended = False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes, pause: float = 0.0) -> bool:
        """Send bytes; returns whether the server took them all."""
        try:
            for piece in pieces:
                self.socket.sendall(piece)
                if pause:
                    time.sleep(pause)
        except OSError:
            return False
        return True

    def receive(self, seconds: float, *, enough: int | None = None) -> list[Answer]:
        """Read until the server closes, is silent for so long, or has answered so often."""
        until = time.monotonic() + seconds
        found, _ = answers_in(self.data)
        while not self.ended and (enough is None or len(found) < enough):
            left = until - time.monotonic()
            if left <= 0:
                break
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 20)
            except TimeoutError:
                break
            except OSError:
                data = b""
            self.ended = not data
            self.data += data
            found, _ = answers_in(self.data)
        return found

    def half_close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Target:
    """A server with a file whose truth is known."""

    def __init__(self, folder: Path, *options: object, n: int = 2000, dim: int = 24) -> None:
        psutil = require_server()
        self.words = [f"w{i}" for i in range(n)]
        self.vectors = np.random.default_rng(5).standard_normal((n, dim), np.float32)
        self.path = embmap.finalfusion.write(folder / "a.fifu", self.words, self.vectors)
        self.server = Served(self.path, *options)
        self.port = self.server.port
        self.process = psutil.Process(self.server.process.pid)

    def ask(self, row: int) -> bytes:
        return get(f"/v1/a/vectors/w{row}")

    def check(self, answer: Answer, row: int) -> None:
        """Compare an answer about a word with the truth."""
        assert answer.status == 200, f"w{row}: {answer}"
        told = json.loads(answer.body)
        assert told["word"] == f"w{row}", f"w{row} is answered with {told['word']}"
        assert np.array_equal(np.float32(told["vector"]), self.vectors[row]), f"w{row}: not its own"

    def is_well(self, row: int, seconds: float = 15.0) -> None:
        """Ask on a connection of its own, until the server is not busy any more."""
        until = time.monotonic() + seconds
        while True:
            found: list[Answer] = []
            with contextlib.suppress(ConnectionError), Wire(self.port) as wire:
                wire.send(get("/healthz"), self.ask(row))
                found = wire.receive(seconds, enough=2)
            busy = len(found) < 2 or any(each.status in (429, 503) for each in found)
            if not busy or time.monotonic() > until:
                break
            time.sleep(0.02)
        assert [each.status for each in found] == [200, 200], f"not well: {found}"
        assert json.loads(found[0].body) == {"status": "ok"}
        self.check(found[1], row)

    def nbytes(self) -> int:
        """Memory of all its processes."""
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(each.memory_info().rss for each in processes)

    def n_files(self) -> int:
        """Open files and connections of all its processes."""
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(each.num_fds() for each in processes)

    def close(self) -> None:
        """End it; it has to end well and have said nothing."""
        status, _, told = self.server.stop()
        assert status == 0, f"exit status {status}: {told}"
        assert "Traceback" not in told, told


@contextlib.contextmanager
def lookups(target: Target, rows: Iterator[int]) -> Iterator[list[Any]]:
    """Ask about words on another connection for as long as the block lasts; checks each answer."""
    done = threading.Event()
    wrong: list[Any] = []

    def ask() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError), Wire(target.port) as wire:
                while not done.is_set():
                    row = next(rows)
                    wire.send(target.ask(row))
                    count = len(answers_in(wire.data)[0])
                    found = wire.receive(15.0, enough=count + 1)
                    if len(found) == count:
                        break
                    wire.data = b""
                    if found[-1].status in (429, 503):
                        break
                    try:
                        target.check(found[-1], row)
                    except AssertionError as error:
                        wrong.append(error)
                        return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield wrong
    finally:
        done.set()
        thread.join(30)
    assert not thread.is_alive(), "a look-up hangs beside it"
    assert not wrong, wrong[0]
