"""HTTP as uvicorn and httptools speak it, with bounds on what embmap does not read itself.

Endpoints bound the bodies that they read. This module bounds everything else that a client can
take: the number of connections, the size of a head and its trailers, the requests that wait
behind another one, and the time to send a head, to end a body that was answered already, and to
take an answer.
"""

from __future__ import annotations

import asyncio
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
_PIECE_NBYTES = 1 << 10  # parsed at once: the most that can queue requests before reading stops
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
"""What every response carries."""


class _CodingError(Exception):
    """A body has a transfer coding that nothing here decodes."""


class _TooLargeError(Exception):
    """A head has more bytes than it may."""


class _Reading(FlowControl):
    """Flow control that reads nothing while it is held, whoever asks to resume."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class BoundedHttp(HttpToolsProtocol):
    """A connection: heads of 32 KiB within 10 seconds; it ends if nothing is taken for 20.

    A connection is not read while a request is queued behind the one that is being answered.
    ``limit_concurrency`` is the number of connections. One more takes the place of the connection
    that has waited longest for a request; if all are being answered, it is refused.
    """

    flow: _Reading

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._most_connections = self.limit_concurrency
        self.limit_concurrency = None  # uvicorn would answer in plain text, and close nothing
        self._waits_since = inf  # when it was opened or last answered, unless it is in use
        self._unfed = b""  # received and not parsed, because a request is queued
        self._head_nbytes = 0  # parsed, of the head and the trailers of a request
        self._unparsed = 0  # fed to the parser since its last callback
        self._in_head = False
        self._in_body = False
        self._taken = 0  # by the client, when that was last looked at
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # What uvicorn and the parser call

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's words)
        if self._head_nbytes > HEAD_NBYTES:
            self._refuse_head()
        else:
            self._refuse(Problem(400, "bad_http", "this is not HTTP as it should be"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._unparsed = self._head_nbytes = 0
        self._stop("head")  # _feed starts it anew for a head that has not arrived whole

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise _CodingError  # the parser stops, and uvicorn calls send_400_response
        if self._in_head:  # trailers arrive after the request was admitted: they change nothing
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._in_head, self._in_body = False, True
        self._stop("head")
        super().on_headers_complete()
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
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete:  # nobody reads what is still to come
            self._start("rest", HEAD_SECONDS, self.transport.abort)
        self._watch_taking()
        self._note_wait()
        if self.flow.is_held and not self.pipeline:
            self._read_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_taking()

    # Requests that come before the one before them was answered

    def _feed(self) -> None:
        """Parse what was received, up to a request that has to be queued."""
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
            self._stop("head")  # of yet another request: it is not the client who delays that
        elif "head" not in self._timers and (
            # Empty lines end the wait for another request, and begin none.
            self._in_head or (not self._in_body and self._is_answered())
        ):
            self._start("head", HEAD_SECONDS, self._head_is_late)

    def _read_on(self) -> None:
        """Read again: no request is queued."""
        self.flow.is_held = False
        self._feed()
        self.flow.resume_reading()

    # Connections

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _note_wait(self) -> None:
        """Note since when this connection has nothing to lose but a head."""
        waits = self._is_answered() and not self.transport.get_write_buffer_size()
        self._waits_since = self.loop.time() if waits else inf

    def _make_room(self) -> None:
        """Close the connection that has waited longest, or refuse this one if none waits."""
        warn_once(
            f"more than {self._most_connections} connections at once: "
            "those that wait longest for a request are closed"
        )
        connections = cast("set[BoundedHttp]", self.connections)
        longest = min(connections, key=attrgetter("_waits_since"))
        if longest is self:
            told = f"at most {self._most_connections} connections are open at once"
            self._refuse(Problem(503, "busy", told, {"Retry-After": "1"}))
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
        """Watch whether the client takes what waits for it; end the connection if it does not."""
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
            self._refuse(Problem(408, "slow", "the head of the request did not arrive in time"))
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        told = f"the head of a request has at most {HEAD_NBYTES} bytes"
        self._refuse(Problem(431, "too_large", told))

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
    if sys.platform == "linux":  # which counts them; its buffers would hide slow clients for long
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
    """Log a warning the first time."""
    _LOG.warning(message)
