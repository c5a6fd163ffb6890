"""Between HTTP and an answer: reading bodies, choosing a thread, and turning errors into JSON.

Look-ups of data that is in memory are answered on the event loop, where they cost less than a
thread would. Threads answer everything else.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, nullcontext
from typing import cast
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from embmap.client.interface import JSON
from embmap.embedding_file import EmbeddingFile
from embmap.io.cached_reads import NotInMemoryError
from embmap.serve.models import Models, Version
from embmap.serve.pool import Pool, Slots
from embmap.serve.problems import Problem, problem_of
from embmap.serve.representations import Answer
from embmap.serve.request import Call
from embmap.serve.request_fields import parse_body, parse_query, refuse
from embmap.serve.routes import Task
from embmap.serve.settings import Limits

__all__ = ["Bodies", "Endpoint", "ModelEndpoint", "response", "response_of"]

_LOG = logging.getLogger("embmap.serve")
_SMALL = 1 << 16  # bytes of a body or an answer that every connection may keep in memory
_TRIES = 4  # to answer after a read: of words, of rows, of norms, and of a page that was evicted
_DRAINED = 8  # times the limit are read and dropped: a client sees a refusal only once it has sent


class Bodies:
    """Reads the bodies of requests: JSON, bounded in size and time."""

    def __init__(self, limits: Limits, large: Slots) -> None:
        self._limits = limits
        self._large = large

    async def read(self, request: Request) -> bytes:
        """Return the body of a request once all of it has arrived."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            # A page of another site cannot send this media type without asking first.
            raise Problem(415, "not_json", f"Content-Type must be {JSON}")
        limit = self._limits.body_nbytes
        too_large = Problem(
            413, "too_large", f"a body must have at most {limit} bytes", {"Connection": "close"}
        )
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > _DRAINED * limit:
            raise too_large
        body = bytearray()
        n_read = 0
        refusal: Problem | None = None
        with ExitStack() as held:
            try:
                async with asyncio.timeout(self._limits.body_seconds):
                    async for part in request.stream():
                        is_first = n_read <= _SMALL
                        n_read += len(part)
                        if n_read > _DRAINED * limit:
                            raise too_large
                        if n_read > limit:
                            refusal = too_large
                        elif n_read > _SMALL and is_first:
                            refusal = self._take_slot(held)
                        body += b"" if refusal else part
            except TimeoutError:
                raise Problem(
                    408, "slow", "the body of the request came too late", {"Connection": "close"}
                ) from None
        if refusal is not None:
            raise refusal
        return bytes(body)

    def _take_slot(self, held: ExitStack) -> Problem | None:
        """Take a slot for a large body; return the refusal if no slot is free."""
        try:
            held.enter_context(self._large)
        except Problem as busy:
            return busy
        return None


class Endpoint:
    """A route as an ASGI application. Every exception becomes a problem."""

    def __init__(
        self,
        template: str,
        respond: Callable[[Request], Awaitable[Response]],
        *,
        large: Slots,
        slots: Slots | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        self._template = template
        self._respond = respond
        self._large = large
        self._slots = slots
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope["embmap.route"] = self._template
        found = await self._found(Request(scope, receive))
        if len(found.body) <= _SMALL or scope["method"] == "HEAD":
            await found(scope, receive, send)
            return
        try:
            with self._large:
                await _send(found, send)
        except Problem as problem:
            await response_of(problem)(scope, receive, send)

    async def _found(self, request: Request) -> Response:
        try:
            if self._bodies is not None:
                request.scope["embmap.body"] = await self._bodies.read(request)
            with self._slots or nullcontext():
                return await self._respond(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                _log(self._template, error)
            return response_of(problem)


class ModelEndpoint:
    """Answers a task of a model, on the event loop or in a thread."""

    def __init__(self, task: Task, models: Models, pool: Pool, limits: Limits) -> None:
        self._task = task
        self._models = models
        self._pool = pool
        self._limits = limits

    async def __call__(self, request: Request) -> Response:
        """Return the response to a request."""
        model = self._models[request.path_params["name"]]
        body: bytes | None = request.scope.get("embmap.body")
        until = self._pool.deadline()
        version = await model.current()
        found = None
        if self._task.is_quick and len(body or b"") <= _SMALL:
            found = await self._at_once(version, request, body, until)
        if found is None:
            arguments = version, version.file, request, body
            found = await self._pool.run(until, self._answer, *arguments)
        request.scope["embmap.vectors"] = found.n_vectors
        return response(found)

    async def _at_once(
        self, version: Version, request: Request, body: bytes | None, until: float
    ) -> Answer | None:
        """Answer on the event loop, after threads have read the data that is not in memory.

        A thread that did all the work would take and release Python's lock for each row.
        """
        file, mapped = version.cached, version.mapped
        if mapped is not None and body is not None and mapped.begin():
            try:
                return self._answer(version, mapped.file, request, body)
            except BlockingIOError:  # not in memory, or the answer takes long
                pass
            finally:
                mapped.end()
        for _ in range(_TRIES if file is not None else 0):
            try:
                found = self._answer(version, cast(EmbeddingFile, file), request, body)
                if mapped is not None:
                    mapped.note_found(found.n_vectors)
                return found
            except NotInMemoryError as absent:
                if mapped is not None:
                    mapped.note_absent()
                await self._pool.run(until, absent.load)
            except BlockingIOError:  # the answer takes long
                return None
        return None

    def _answer(
        self, version: Version, file: EmbeddingFile, request: Request, body: bytes | None
    ) -> Answer:
        fields = parse_query(_query(request.scope), self._limits)
        if body is not None:
            fields.check_rest()
            fields = parse_body(body, self._limits)
        given = [value for name, value in request.scope["headers"] if name == b"accept"]
        accept = b", ".join(given).decode("latin-1") or None
        word = _path_word(request)
        try:
            return self._task.answer(
                Call(
                    version=version,
                    file=file,
                    fields=fields,
                    word=word,
                    accept=accept,
                    limits=self._limits,
                )
            )
        finally:  # refusals, too, depend on the data that was read
            version.check_unchanged()


def _query(scope: Scope) -> list[tuple[str, str]]:
    """Return the names and values of the query."""
    try:
        return parse_qsl(scope["query_string"].decode("ascii"), True, errors="strict")
    except UnicodeDecodeError:
        refuse("the query must be UTF-8")


def _path_word(request: Request) -> str | None:
    """Return the word in the path. The server puts U+FFFD for bytes that are not UTF-8."""
    word: str | None = request.path_params.get("word")
    if word is not None and "\ufffd" in word:
        try:
            unquote_to_bytes(request.scope["raw_path"]).decode()
        except UnicodeDecodeError:
            refuse("the path must be UTF-8")
    return word


async def _send(found: Response, send: Send) -> None:
    """Send a large response, and wait until the client has taken most of it.

    The last message completes the content, because the response is counted before it is sent.
    """
    start = {"type": "http.response.start", "status": found.status_code}
    await send({**start, "headers": found.raw_headers})
    content = memoryview(found.body)
    for part in (content[:-1], b""):  # the second waits until most of the first is taken
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": content[-1:], "more_body": False})


def response(answer: Answer) -> Response:
    """Return the response that contains an answer."""
    headers = {"Cache-Control": "no-store", "Vary": "Accept", **answer.headers}
    return Response(answer.content, media_type=answer.media_type, headers=headers)


def response_of(problem: Problem) -> Response:
    """Return the response that reports a problem."""
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(problem.body(), problem.status, headers, JSON)


def _log(template: str, error: Exception) -> None:
    """Log where an error came from, without its message, which might quote the request."""
    lines = [
        f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    _LOG.error("%s: %s at %s", template, type(error).__name__, " < ".join(reversed(lines[-6:])))
