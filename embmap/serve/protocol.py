"""HTTP as uvicorn and httptools speak it, with bounds on what embmap does not read itself.

Bodies are bounded where they are read. Here the heads and trailers of requests are, which are
gathered before anything of embmap hears of them, and the time that a client takes to send a head,
to end a body that was answered already, and to take an answer.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from embmap.serve.problems import Problem

__all__ = ["HEADERS", "BoundedHttp"]

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


class _TooLargeError(Exception):
    """A head has more bytes than it may."""


class BoundedHttp(HttpToolsProtocol):  # numpydoc ignore=PR01
    """A connection: heads of 32 KiB sent within 10 seconds, answers taken within 20."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_nbytes = 0  # parsed, of the head and the trailers of a request
        self._unparsed = 0  # received since the parser last had anything to tell
        self._in_request = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # What uvicorn and the parser call

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start("head", HEAD_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > HEAD_NBYTES:
            self._refuse_head()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's words)
        if self._head_nbytes > HEAD_NBYTES:
            self._refuse_head()
        else:
            self._refuse(Problem(400, "bad_http", "this is not HTTP as it should be"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_request = True
        self._unparsed = self._head_nbytes = 0
        self._start("head", HEAD_SECONDS, self._head_is_late)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._stop("head")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        self._in_request = False
        self._stop("rest")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_request:  # nobody reads what is still to come
            self._start("rest", HEAD_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("send", SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("send")
        super().resume_writing()

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

    def _head_is_late(self) -> None:
        if self._in_request:
            self._refuse(Problem(408, "slow", "the head of the request did not arrive in time"))
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        told = f"the head of a request has at most {HEAD_NBYTES} bytes"
        self._refuse(Problem(431, "too_large", told))

    def _refuse(self, problem: Problem) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # in the middle of another answer
            return
        body = problem.body()
        phrase = http.HTTPStatus(problem.status).phrase
        lines = [
            f"HTTP/1.1 {problem.status} {phrase}".encode(),
            *(name + b": " + value for name, value in HEADERS),
            b"content-type: application/json",
            f"content-length: {len(body)}".encode(),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.transport.close()
