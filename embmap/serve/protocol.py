"""HTTP as uvicorn and httptools speak it, with bounds on the head of a request.

Bodies are bounded where they are read; a head is gathered before anything of embmap hears of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from embmap.serve.problems import Problem

__all__ = ["BoundedHttp"]

HEAD_NBYTES = 1 << 15
HEAD_SECONDS = 10.0


class BoundedHttp(HttpToolsProtocol):  # numpydoc ignore=PR01
    """A connection whose requests have heads of 32 KiB at most, sent within 10 seconds."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_nbytes = 0
        self._in_head = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_nbytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_nbytes > HEAD_NBYTES and not self._is_answering():
            told = f"the head of a request has at most {HEAD_NBYTES} bytes"
            self._refuse(Problem(431, "too_large", told))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_nbytes = 0
        super().on_message_complete()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        if self._is_answering():  # nothing is read meanwhile
            self._expect_head()
        elif self._head_nbytes:
            self._refuse(Problem(408, "slow", "the head of the request did not arrive in time"))
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        if self.transport.is_closing():
            return
        body = problem.body()
        head = (
            f"HTTP/1.1 {problem.status} \r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
