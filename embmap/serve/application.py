"""The application a worker runs: routes, and what stands before all of them.

Every response of it carries the headers of a strict site, every error is JSON, and nothing of a
request is ever written to a log but the template of its path.
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

from embmap.serve import lookups, over_time, searches
from embmap.serve.endpoints import (
    Bodies,
    Endpoint,
    ModelEndpoint,
    Task,
    response,
    response_of,
)
from embmap.serve.metrics import Metrics
from embmap.serve.models import Models
from embmap.serve.openapi import description
from embmap.serve.pages import Pages
from embmap.serve.pool import Pools
from embmap.serve.problems import Problem
from embmap.serve.protocol import HEADERS
from embmap.serve.representations import JSON, chosen, json_answer
from embmap.serve.settings import Settings, is_loopback, read_token

__all__ = ["SETTINGS", "application", "from_environment"]

SETTINGS = "EMBMAP_SERVE_SETTINGS"  # the settings as JSON; the token is not among them


class _AnyWord(StringConvertor):
    """Also words with slashes and with newlines in them."""

    regex = r"[\s\S]+"


class _WholePath(Route):
    """A route that matches the whole path: ``$`` would let a newline follow."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")


register_url_convertor("word", _AnyWord())
_SWITCH_SECONDS = 0.0003
_ONCE = (b"host", b"authorization")  # of two, a proxy before this server might take the other
_OPEN = ("/", "/healthz")  # what is seen without a token, with everything under /static/
_MODEL_ROUTES = {
    "/v1/{name}/vectors/{word:word}": Task("GET", lookups.vectors, is_quick=True),
    "/v1/{name}/lookup": Task("POST", lookups.lookup, is_quick=True),
    "/v1/{name}/vectors": Task("GET", lookups.vectors, is_quick=True),
    "/v1/{name}/similar": Task("POST", searches.similar, is_search=True),
    "/v1/{name}/analogy": Task("POST", searches.analogy, is_search=True),
    "/v1/{name}/complete": Task("GET", searches.complete, is_search=True),
    "/v1/{name}/trajectory/{word:word}": Task("GET", over_time.trajectory),
    "/v1/{name}/trajectory": Task("GET", over_time.trajectory),
    "/v1/{name}/related/{word:word}": Task("GET", over_time.related, is_search=True),
    "/v1/{name}/related": Task("GET", over_time.related, is_search=True),
}


def from_environment() -> ASGIApp:
    """Return the application that the environment describes: what a worker process runs."""
    # A thread that waits for Python's lock gets it after this long, however busy the loop is.
    sys.setswitchinterval(_SWITCH_SECONDS)
    settings = Settings.from_json(os.environ[SETTINGS])
    if settings.workers > 1 and hasattr(signal, "SIGHUP"):
        # A closed terminal tells the parent too, which lets its workers finish.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return application(settings, parent=os.getppid() if settings.workers > 1 else None)


def application(settings: Settings, parent: int | None = None) -> ASGIApp:
    """Return the application that serves some files."""
    settings.check()
    limits = settings.limits
    models, pools, pages = Models(settings), Pools.of(limits), Pages()
    told = json_answer(description(limits))

    async def health(_: Request) -> Response:
        return response(json_answer({"status": "ok"}))

    async def list_models(request: Request) -> Response:
        chosen(request.headers.get("accept"), [JSON])
        facts = await pools.lookups.run(pools.lookups.deadline(), models.facts)
        return response(json_answer({"models": facts, "limits": limits.told()}))

    async def counts(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(_: Request) -> Response:
        return response(told)

    async def page(request: Request) -> Response:
        return pages.response(request)

    others: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/healthz": health,
        "/v1/models": list_models,
        "/metrics": counts,
        "/openapi.json": openapi,
        "/": page,
        "/static/{path:path}": page,
    }
    routes = []
    for path, task in _MODEL_ROUTES.items():
        pool = pools.searches if task.is_search else pools.lookups
        answer = ModelEndpoint(task, models, pool, limits)
        bodies = None if task.method == "GET" else Bodies(limits, pools.large)
        asked = Endpoint(_label(path), answer, pools.large, pool.slots, bodies)
        routes.append(_WholePath(path, asked, methods=[task.method], name=path))
    for path, respond in others.items():
        slots = pools.lookups.slots if path == "/v1/models" else None
        endpoint = Endpoint(_label(path), respond, pools.large, slots)
        routes.append(_WholePath(path, endpoint, methods=["GET"], name=path))
    metrics = Metrics([_label(path) for path in (*_MODEL_ROUTES, *others)], settings.folder)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        watching = None
        if parent is not None:
            watching = asyncio.create_task(_end_with(parent, settings.folder))
        yield
        if watching is not None:
            watching.cancel()
        pools.close()

    router = Router(routes, redirect_slashes=False, lifespan=lifespan)
    return _Gate(router, settings, metrics)


def _label(path: str) -> str:
    """Return the template of a path as metrics have it, without the kinds of its parts."""
    return re.sub(r":\w+}", "}", path)


async def _end_with(parent: int, folder: str | None) -> None:
    """End this process when its parent was killed and can no longer end it, nor clean up."""
    while os.getppid() == parent:
        await asyncio.sleep(1)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


class _Gate:
    """Stands before everything: who may ask, what every response carries, what is counted."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        token = None if settings.token_file is None else read_token(settings.token_file)
        self._credentials = None if token is None else f"bearer {token}".encode()
        self._host = settings.host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        problem = self._refusal(scope)
        # Without an application the router would answer what fits no route, in plain text.
        scope["app"] = self
        try:
            if problem is None:
                await self._app(scope, receive, told)
            else:
                await response_of(problem)(scope, receive, told)
        except HTTPException as error:
            await response_of(_problem_of(error))(scope, receive, told)
        finally:
            seconds = time.perf_counter() - began
            route, n = scope.get("embmap.route", "other"), scope.get("embmap.vectors", 0)
            self._metrics.count(route, status, seconds, n)

    def _refusal(self, scope: Scope) -> Problem | None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in _ONCE and name in headers:
                told = f"a request has one {name.decode().title()} header, not several"
                return Problem(400, "bad_http", told)
            headers[name] = value
        if self._credentials is None:
            # A page of another site can make its name mean this machine, but not change the header.
            host = headers.get(b"host", b"").decode("latin-1")
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if not is_loopback(name):
                return Problem(421, "wrong_host", "without a token only localhost is answered")
            return None
        path = scope["path"]
        if path in _OPEN or path.startswith("/static/"):
            return None
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = kind.lower() + b" " + token.strip()
        if hmac.compare_digest(given, self._credentials):
            return None
        needed = {"WWW-Authenticate": 'Bearer realm="embmap"'}
        return Problem(401, "unauthorized", "bring the token: Authorization: Bearer TOKEN", needed)


def _problem_of(error: HTTPException) -> Problem:
    """Return the problem of a request that fits no route."""
    codes = {404: ("not_found", "there is nothing here"), 405: ("bad_method", "not by this method")}
    code, message = codes.get(error.status_code, ("bad_request", "this cannot be answered"))
    return Problem(error.status_code, code, message, dict(error.headers or {}))
