"""The application that a worker runs: its routes, and the checks that every request passes.

Every response has the headers of a strict site, and every error is JSON. Logs contain the
template of a request's path and nothing else of the request.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embmap.client.interface import JSON
from embmap.serve.counts import Counts
from embmap.serve.endpoints import Bodies, Endpoint, ModelEndpoint, response, response_of
from embmap.serve.models import Models
from embmap.serve.openapi import description
from embmap.serve.pages import Pages
from embmap.serve.pool import Pools
from embmap.serve.problems import Problem
from embmap.serve.protocol import HEADERS
from embmap.serve.representations import choose, json_answer
from embmap.serve.routes import COUNTS, DESCRIPTION, HEALTH, MODELS, PAGE, STATIC, TASKS, paths_of
from embmap.serve.settings import Settings, is_loopback, read_token

__all__ = ["SETTINGS", "application", "from_environment"]

SETTINGS = "EMBMAP_SERVE_SETTINGS"  # the settings as JSON, without the token


class _AnyWord(StringConvertor):
    """Matches words with slashes and newlines, too."""

    regex = r"[\s\S]+"


class _WholePath(Route):
    """A route that matches only the whole path: ``$`` would allow a newline after it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")


register_url_convertor("word", _AnyWord())
_SWITCH_SECONDS = 0.0003
_ONCE = (b"host", b"authorization")  # with two, a proxy might check one and this server the other
_OPEN = (PAGE, HEALTH)  # answered without a token, like everything under STATIC


def from_environment() -> ASGIApp:
    """Return the application that the environment describes: each worker process calls this."""
    # However busy the event loop is, a thread waits at most this long for Python's lock.
    sys.setswitchinterval(_SWITCH_SECONDS)
    settings = Settings.from_json(os.environ[SETTINGS])
    if settings.workers > 1 and hasattr(signal, "SIGHUP"):
        # A closed terminal also signals the parent, which lets its workers finish.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return application(settings, parent=os.getppid() if settings.workers > 1 else None)


def application(settings: Settings, parent: int | None = None) -> ASGIApp:
    """Return the application that serves the files of some settings."""
    settings.check()
    limits = settings.limits
    models, pools, pages = Models(settings), Pools.of(limits), Pages()
    described = json_answer(description(limits))

    async def health(_: Request) -> Response:
        return response(json_answer({"status": "ok"}))

    async def list_models(request: Request) -> Response:
        choose(request.headers.get("accept"), [JSON])
        facts = await pools.lookups.run(pools.lookups.deadline(), models.facts)
        return response(json_answer({"models": facts, "limits": limits.public()}))

    async def list_counts(_: Request) -> Response:
        return Response(counts.text(), media_type="text/plain; version=0.0.4")

    async def openapi(_: Request) -> Response:
        return response(described)

    async def page(request: Request) -> Response:
        return pages.response(request)

    others: dict[str, Callable[[Request], Awaitable[Response]]] = {
        HEALTH: health,
        MODELS: list_models,
        COUNTS: list_counts,
        DESCRIPTION: openapi,
        PAGE: page,
        f"{STATIC}{{path}}": page,
    }
    routes = []
    for name, task in TASKS.items():
        pool = pools.searches if task.is_search else pools.lookups
        respond: Callable[[Request], Awaitable[Response]]
        respond = ModelEndpoint(task, models, pool, limits)
        bodies = None if task.method == "GET" else Bodies(limits, pools.large)
        for path, _ in paths_of(name):
            endpoint = Endpoint(path, respond, large=pools.large, slots=pool.slots, bodies=bodies)
            routes.append(_route(path, endpoint, task.method))
    for path, respond in others.items():
        slots = pools.lookups.slots if path == MODELS else None
        endpoint = Endpoint(path, respond, large=pools.large, slots=slots)
        routes.append(_route(path, endpoint, "GET"))
    counts = Counts([route.name for route in routes], settings.folder)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        watching = None
        models.leases.start()
        if parent is not None:
            watching = asyncio.create_task(_end_with(parent, settings.folder))
        yield
        if watching is not None:
            watching.cancel()
        models.leases.close()
        pools.close()

    router = Router(routes, redirect_slashes=False, lifespan=lifespan)
    return _Gate(router, settings, counts)


def _route(template: str, endpoint: Endpoint, method: str) -> Route:
    """Return the route of a template; words and paths of pages may contain slashes."""
    path = template.replace("{word}", "{word:word}").replace("{path}", "{path:path}")
    return _WholePath(path, endpoint, methods=[method], name=template)


async def _end_with(parent: int, folder: str | None) -> None:
    """End this process once its parent was killed and can neither end it nor clean up."""
    while os.getppid() == parent:
        await asyncio.sleep(1)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


class _Gate:
    """Checks every request's host or token, adds headers to every response, and counts it."""

    def __init__(self, app: ASGIApp, settings: Settings, counts: Counts) -> None:
        self._app = app
        self._counts = counts
        token = None if settings.token_file is None else read_token(settings.token_file)
        self._credentials = None if token is None else f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0
        counted = False

        def count() -> None:
            nonlocal counted
            if counted:
                return
            counted = True
            seconds = time.perf_counter() - began
            route, n = scope.get("embmap.route", "other"), scope.get("embmap.vectors", 0)
            self._counts.count(route, status, seconds, n)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            elif not message.get("more_body", False):
                count()  # a client that has its answer may ask another worker for the counts
            await send(message)

        problem = self._refusal(scope)
        # Without scope["app"], the router would answer paths without a route in plain text.
        scope["app"] = self
        try:
            if problem is None:
                await self._app(scope, receive, send_with_headers)
            else:
                await response_of(problem)(scope, receive, send_with_headers)
        except HTTPException as error:
            await response_of(_problem_of(error))(scope, receive, send_with_headers)
        finally:
            count()

    def _refusal(self, scope: Scope) -> Problem | None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in _ONCE and name in headers:
                message = f"a request must have one {name.decode().title()} header, not several"
                return Problem(400, "bad_http", message)
            headers[name] = value
        if self._credentials is None:
            # Another site can make its name resolve to this machine, but cannot change the header.
            host = headers.get(b"host", b"").decode("latin-1")
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if not is_loopback(name):
                return Problem(421, "wrong_host", "a server without a token answers only localhost")
            return None
        path = scope["path"]
        if path in _OPEN or path.startswith(STATIC):
            return None
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = kind.lower() + b" " + token.strip()
        if hmac.compare_digest(given, self._credentials):
            return None
        needed = {"WWW-Authenticate": 'Bearer realm="embmap"'}
        message = "send the server's token: Authorization: Bearer TOKEN"
        return Problem(401, "unauthorized", message, needed)


def _problem_of(error: HTTPException) -> Problem:
    """Return the problem of a request that matches no route."""
    codes = {
        404: ("not_found", "no page or route has this path"),
        405: ("bad_method", "this route does not allow the request's method"),
    }
    code, message = codes.get(error.status_code, ("bad_request", "the request cannot be answered"))
    return Problem(error.status_code, code, message, dict(error.headers or {}))
