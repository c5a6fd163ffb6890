"""HTTP by uvicorn and httptools, with limits on what a client can use.

Endpoints bound the bodies that they read. This module bounds the other resources of a client: the
number of connections, the size of a head and its trailers, the number of requests that wait for an
answer, and the time to send a head, to send the rest of a body that is already answered, and to
read an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import socket
import struct
import sys
from collections.abc import Callable
from functools import cache
from math import inf
from operator import attrgetter
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from embmap.serve.problems import Problem

__all__ = ["HEADERS", "BoundedHttp", "warn_once"]

_LOG = logging.getLogger("embmap.serve")
_PIECE_NBYTES = 1 << 10  # bytes parsed at once: all requests in them are queued
_CORK = getattr(socket, "TCP_CORK", None)  # only on Linux
HEAD_NBYTES = 1 << 15
HEAD_SECONDS = 10.0
SEND_SECONDS = 20.0
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""The headers that every response has."""


class _CodingError(Exception):
    """A body has a transfer coding that the server does not decode."""


class _TooLargeError(Exception):
    """A head has more bytes than allowed."""


class _Reading(FlowControl):
    """Flow control that does not resume reading while it is held."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class BoundedHttp(HttpToolsProtocol):
    """A connection that takes heads of 32 KiB within 10 seconds.

    It ends if the client reads nothing of an answer for 20 seconds. While a request is queued
    behind another, no more bytes are read. ``limit_concurrency`` is the number of connections. When
    a further one is opened, the connection that has waited longest for a request is closed. If all
    of them are being answered, the new one is refused.
    """

    flow: _Reading

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._most_connections = self.limit_concurrency
        self.limit_concurrency = None  # uvicorn would answer in plain text and close nothing
        self._waits_since = inf  # when it was opened or last answered; inf while it is in use
        self._unfed = b""  # received but not parsed, because a request is queued
        self._head_nbytes = 0  # parsed bytes of the head and the trailers of a request
        self._unparsed = 0  # bytes fed to the parser since its last callback
        self._in_head = False
        self._in_body = False
        self._taken = 0  # result of the last call of _taken
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # Called by uvicorn and the parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._client = transport.get_extra_info("socket")
        self.flow = _Reading(transport)
        self._start("head", HEAD_SECONDS, self._head_is_late)
        self._note_wait()
        if self._most_connections is not None and len(self.connections) > self._most_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self._stop(name)
        self._unfed = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unfed += data
        if not self.flow.is_held:
            self._feed()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's message)
        if self._head_nbytes > HEAD_NBYTES:
            self._refuse_head()
        else:
            self._refuse(Problem(400, "bad_http", "the request is not valid HTTP"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._unparsed = self._head_nbytes = 0
        self._stop("head")  # _feed starts it again if only a part of the head has arrived

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise _CodingError  # the parser stops, and uvicorn calls send_400_response
        if self._in_head:  # trailers are ignored: the request was checked without them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._in_head, self._in_body = False, True
        self._stop("head")
        super().on_headers_complete()
        if not self.expect_100_continue:
            self._cork(is_on=True)
        self._note_wait()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        self._in_body = False
        self._stop("rest")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._cork(is_on=False)
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete:  # the rest of the body is not read
            self._start("rest", HEAD_SECONDS, self.transport.abort)
        self._watch_taking()
        self._note_wait()
        if self.flow.is_held and not self.pipeline:
            self._read_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_taking()

    def _cork(self, *, is_on: bool) -> None:
        """Let the system send the head and the content of an answer together.

        Each write by itself would wake the client.
        """
        if _CORK is not None:
            with contextlib.suppress(OSError):  # the connection is gone
                self._client.setsockopt(socket.IPPROTO_TCP, _CORK, is_on)

    # Requests that arrive before the previous one is answered

    def _feed(self) -> None:
        """Parse received bytes, up to a request that has to be queued."""
        data, at = self._unfed, 0
        while at < len(data) and not self.pipeline and not self.transport.is_closing():
            piece = data[at : at + _PIECE_NBYTES]
            at += len(piece)
            self._unparsed += len(piece)
            super().data_received(piece)
            if self._unparsed > HEAD_NBYTES:
                self._refuse_head()
        self._unfed = data[at:]
        if self.pipeline:
            self.flow.is_held = True
            self.flow.pause_reading()
            self._stop("head")  # the server delays the next head, not the client
        elif "head" not in self._timers and (
            # Empty lines stop uvicorn's timer for idle connections, but do not begin a request.
            self._in_head or (not self._in_body and self._is_answered())
        ):
            self._start("head", HEAD_SECONDS, self._head_is_late)

    def _read_on(self) -> None:
        """Read again, as no request is queued any longer."""
        self.flow.is_held = False
        self._feed()
        self.flow.resume_reading()

    # Connections

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _note_wait(self) -> None:
        """Note the time since which this connection can be closed without losing a request."""
        waits = self._is_answered() and not self.transport.get_write_buffer_size()
        self._waits_since = self.loop.time() if waits else inf

    def _make_room(self) -> None:
        """Close the connection that has waited longest; refuse this one if all are in use."""
        warn_once(
            f"more than {self._most_connections} connections at once: "
            "those that wait longest for a request are closed"
        )
        connections = cast("set[BoundedHttp]", self.connections)
        longest = min(connections, key=attrgetter("_waits_since"))
        if longest is self:
            message = f"the server takes at most {self._most_connections} connections at once"
            self._refuse(Problem(503, "busy", message, {"Retry-After": "1"}))
        else:
            longest._waits_since = inf
            longest.transport.close()

    # Bounds

    def _count(self, nbytes: int) -> None:
        self._unparsed = 0
        self._head_nbytes += nbytes
        if self._head_nbytes > HEAD_NBYTES:
            raise _TooLargeError  # the parser stops, and uvicorn calls send_400_response

    def _start(self, name: str, seconds: float, late: Callable[[], None]) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, late)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _watch_taking(self) -> None:
        """End the connection if the client takes none of the bytes that wait for it."""
        if self.transport.get_write_buffer_size() and "take" not in self._timers:
            self._taken = _taken(self.transport)
            self._start("take", SEND_SECONDS, self._check_taking)

    def _check_taking(self) -> None:
        self._stop("take")
        if self.transport.get_write_buffer_size() and _taken(self.transport) <= self._taken:
            self.transport.abort()
        else:
            self._watch_taking()
            self._note_wait()

    def _head_is_late(self) -> None:
        if self._in_head:
            self._refuse(Problem(408, "slow", "the head of the request came too late"))
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        message = f"the head of a request must have at most {HEAD_NBYTES} bytes"
        self._refuse(Problem(431, "too_large", message))

    def _refuse(self, problem: Problem) -> None:
        if self.transport.is_closing():
            return
        if not self._is_answered():
            self.transport.abort()  # in the middle of another answer
            return
        body = problem.body()
        phrase = http.HTTPStatus(problem.status).phrase
        more = [f"{name}: {value}".encode() for name, value in problem.headers.items()]
        lines = [
            f"HTTP/1.1 {problem.status} {phrase}".encode(),
            *(name + b": " + value for name, value in HEADERS),
            *more,
            b"content-type: application/json",
            f"content-length: {len(body)}".encode(),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        self._watch_taking()
        self.transport.close()


def _taken(transport: asyncio.Transport) -> int:
    """Return a number that grows as the client takes bytes."""
    if sys.platform == "linux":
        # Its socket buffers are so large that the transport's buffer does not show a slow client.
        client = transport.get_extra_info("socket")
        try:
            with socket.fromfd(client.fileno(), client.family, client.type) as same:
                info = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
            return int(struct.unpack_from("Q", info, 120)[0])  # tcpi_bytes_acked
        except (OSError, struct.error):
            pass
    return -transport.get_write_buffer_size()


@cache
def warn_once(message: str) -> None:
    """Log a warning the first time that it occurs."""
    _LOG.warning(message)
