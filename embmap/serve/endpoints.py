"""What stands between HTTP and an answer: who reads bodies, picks the thread, turns errors to JSON.

Look-ups in what is in memory are answered on the event loop, where they cost less than handing them
to a thread would; everything else is handed to one.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from embmap.cached_reads import NotInMemoryError
from embmap.embedding_file import EmbeddingFile
from embmap.serve.asking import body_fields, query_fields
from embmap.serve.call import Call
from embmap.serve.models import Model, Models, Version
from embmap.serve.pool import Pool
from embmap.serve.problems import Problem, problem_of
from embmap.serve.representations import JSON, Answer
from embmap.serve.settings import Limits

__all__ = ["Endpoint", "ModelEndpoint", "response", "response_of"]

_LOG = logging.getLogger("embmap.serve")
_TRIES = 4  # words, rows, norms; and what was lost again meanwhile
_DRAINED = 8  # times the limit: who is still sending hears of no refusal


class Endpoint:
    """What one route does, as an ASGI application: whatever is raised becomes a problem.

    Parameters
    ----------
    template : str
        The path of the route.
    respond : callable
        Returns the response to a request.
    """

    def __init__(self, template: str, respond: Callable[[Request], Awaitable[Response]]) -> None:
        self._template = template
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope["embmap.route"] = self._template
        try:
            found = await self._respond(Request(scope, receive))
        except ClientDisconnect:
            found = Response(status_code=400)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                _tell(self._template, error)
            found = response_of(problem)
        await found(scope, receive, send)


class Task(NamedTuple):
    """A route that asks a model.

    Attributes
    ----------
    method : {"GET", "POST"}
        Of its requests.
    handler : callable
        What answers them.
    is_quick : bool
        Whether they are answered at once if nothing has to be read from a disk.
    """

    method: str
    handler: Callable[[Call], Answer]
    is_quick: bool = False


class ModelEndpoint:
    """Asks a model and responds with what a handler answers.

    Parameters
    ----------
    task : Task
        What is asked.
    models : Models
        The files.
    pool : Pool
        The threads.
    limits : Limits
        What is refused.
    """

    def __init__(self, task: Task, models: Models, pool: Pool, limits: Limits) -> None:
        self._task = task
        self._models = models
        self._pool = pool
        self._limits = limits

    async def __call__(self, request: Request) -> Response:
        """Return the response to a request."""
        with self._pool.admitted():
            model = self._models[request.path_params["name"]]
            body = None if self._task.method == "GET" else await _body(request, self._limits)
            found = await self._at_once(model, request, body) if self._task.is_quick else None
            if found is None:
                found = await self._pool.run(self._in_thread, model, request, body)
        request.scope["embmap.vectors"] = found.n_vectors
        return response(found)

    async def _at_once(self, model: Model, request: Request, body: bytes | None) -> Answer | None:
        """Answer on the event loop, once threads have read what is not in memory.

        A thread that answered all of it would take and give up Python's lock for each row.
        """
        for _ in range(_TRIES):
            version = model.ready()
            if version is None or version.cached is None:
                return None
            try:
                return self._answer(model, version, version.cached, request, body)
            except NotInMemoryError as absent:
                await self._pool.run(absent.load)
            except BlockingIOError:  # it takes long
                return None
        return None

    def _in_thread(self, model: Model, request: Request, body: bytes | None) -> Answer:
        version = model.current()
        return self._answer(model, version, version.file, request, body)

    def _answer(
        self,
        model: Model,
        version: Version,
        file: EmbeddingFile,
        request: Request,
        body: bytes | None,
    ) -> Answer:
        query = request.scope["query_string"].decode("latin-1")
        fields = query_fields(parse_qsl(query, keep_blank_values=True), self._limits)
        if body is not None:
            fields.check_rest()
            fields = body_fields(body, self._limits)
        accept = ", ".join(request.headers.getlist("accept")) or None
        word = request.path_params.get("word")
        answer = self._task.handler(Call(version, file, fields, word, accept, self._limits))
        model.check_unchanged(version)
        return answer


async def _body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request: JSON, not too long, in time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        # Also what keeps pages of other sites from sending requests here.
        raise Problem(415, "not_json", f"send the body as Content-Type: {JSON}")
    limit = limits.body_nbytes
    too_large = Problem(
        413, "too_large", f"a body has at most {limit} bytes", {"Connection": "close"}
    )
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > _DRAINED * limit:
        raise too_large
    body = bytearray()
    n_read = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                n_read += len(part)
                if n_read <= limit:
                    body += part
                elif n_read > _DRAINED * limit:
                    raise too_large
    except TimeoutError:
        raise Problem(
            408, "slow", "the body did not arrive in time", {"Connection": "close"}
        ) from None
    if n_read > limit:
        raise too_large
    return bytes(body)


def response(answer: Answer) -> Response:
    """Return the response that carries an answer.

    Parameters
    ----------
    answer : Answer
        The answer.

    Returns
    -------
    Response
        Status 200.
    """
    headers = {"Cache-Control": "no-store", "Vary": "Accept", **answer.headers}
    return Response(answer.content, media_type=answer.media_type, headers=headers)


def response_of(problem: Problem) -> Response:
    """Return the response that tells a problem.

    Parameters
    ----------
    problem : Problem
        The problem.

    Returns
    -------
    Response
        With its status.
    """
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(problem.body(), problem.status, headers, JSON)


def _tell(template: str, error: Exception) -> None:
    """Log where an error came from, without its message: it might quote the request."""
    lines = [
        f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    _LOG.error("%s: %s at %s", template, type(error).__name__, " < ".join(reversed(lines[-6:])))
