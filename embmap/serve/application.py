"""The application a worker runs: routes, and what stands before all of them.

Every response carries the headers of a strict site, every error is JSON, and nothing of a request
is ever written to a log but the template of its path.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embmap.serve import handlers
from embmap.serve.asking import body_fields, query_fields
from embmap.serve.handlers import Call
from embmap.serve.metrics import Metrics
from embmap.serve.models import Models
from embmap.serve.openapi import description
from embmap.serve.pages import Pages
from embmap.serve.pool import Pool
from embmap.serve.problems import Problem, problem_of
from embmap.serve.representations import JSON, Answer, chosen, json_answer
from embmap.serve.settings import Settings, is_loopback, read_token

__all__ = ["SETTINGS", "application", "from_environment"]

SETTINGS = "EMBMAP_SERVE_SETTINGS"  # names the file with the settings
_LOG = logging.getLogger("embmap.serve")
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_DRAINED = 8  # times the limit: who is still sending hears of no refusal
_OPEN = ("/", "/healthz")  # what is seen without a token, with everything under /static/
_MODEL_ROUTES: dict[str, tuple[str, Callable[[Call], Answer]]] = {
    "/v1/{name}/vectors/{word:path}": ("GET", handlers.vectors),
    "/v1/{name}/lookup": ("POST", handlers.lookup),
    "/v1/{name}/similar": ("POST", handlers.similar),
    "/v1/{name}/analogy": ("POST", handlers.analogy),
    "/v1/{name}/complete": ("GET", handlers.complete),
    "/v1/{name}/trajectory/{word:path}": ("GET", handlers.trajectory),
    "/v1/{name}/related/{word:path}": ("GET", handlers.related),
}
_OTHER_ROUTES = ("/", "/static/{path:path}", "/healthz", "/v1/models", "/metrics", "/openapi.json")


def from_environment() -> ASGIApp:
    """Return the application that the environment describes: what a worker process runs.

    Returns
    -------
    ASGI application
        With the settings of the file that EMBMAP_SERVE_SETTINGS names.
    """
    return application(Settings.from_json(Path(os.environ[SETTINGS]).read_text("utf-8")))


def application(settings: Settings) -> ASGIApp:
    """Return the application that serves some files.

    Parameters
    ----------
    settings : Settings
        Which, and what is refused.

    Returns
    -------
    ASGI application
        Nothing has been opened yet.

    Raises
    ------
    ValueError
        When the settings would not be safe.
    """
    settings.check()
    serving = _Serving(settings)
    routes = [
        Route("/healthz", serving.route("/healthz", serving.health)),
        Route("/metrics", serving.route("/metrics", serving.counts)),
        Route("/openapi.json", serving.route("/openapi.json", serving.openapi)),
        Route("/v1/models", serving.route("/v1/models", serving.list_models)),
        Route("/", serving.route("/", serving.page)),
        Route("/static/{path:path}", serving.route("/static/{path:path}", serving.page)),
    ]
    for template, (method, handler) in _MODEL_ROUTES.items():
        endpoint = serving.route(template, serving.model_endpoint(method, handler))
        routes.append(Route(template, endpoint, methods=[method]))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        serving.pool.close()

    app = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_problem}
    )
    app.router.redirect_slashes = False
    return _Gate(app, settings, serving.metrics)


class _Serving:
    """What the routes of one worker share."""

    def __init__(self, settings: Settings) -> None:
        self.limits = settings.limits
        self.models = Models(settings)
        self.pool = Pool(settings.limits)
        self.metrics = Metrics((*_MODEL_ROUTES, *_OTHER_ROUTES), settings.metrics_folder)
        self.pages = Pages()
        self._description = json_answer(description(settings.limits))

    def route(
        self, template: str, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that turns whatever is raised into a problem."""

        async def guarded(request: Request) -> Response:
            request.scope["embmap.route"] = template
            try:
                return await endpoint(request)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:
                problem = problem_of(error)
                if problem.status == 500:
                    _tell(template, error)
                return _response_of(problem)

        return guarded

    async def health(self, _: Request) -> Response:
        return _response(json_answer({"status": "ok"}))

    async def counts(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Request) -> Response:
        return _response(self._description)

    async def page(self, request: Request) -> Response:
        return self.pages.response(request)

    async def list_models(self, request: Request) -> Response:
        with self.pool.admitted():
            chosen(request.headers.get("accept"), [JSON])
            models = await self.pool.run(self.models.facts)
        limits = {
            "words": self.limits.words,
            "word_nbytes": self.limits.word_nbytes,
            "body_nbytes": self.limits.body_nbytes,
            "answer_nbytes": self.limits.answer_nbytes,
            "neighbors": self.limits.neighbors,
        }
        return _response(json_answer({"models": models, "limits": limits}))

    def model_endpoint(
        self, method: str, handler: Callable[[Call], Answer]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            with self.pool.admitted():
                model = self.models[request.path_params["name"]]
                body = None if method == "GET" else await self._body(request)
                pairs = request.query_params.multi_items()
                word = request.path_params.get("word")
                accept = ", ".join(request.headers.getlist("accept")) or None

                def answer() -> Answer:
                    fields = query_fields(pairs, self.limits)
                    if body is not None:
                        fields.check_rest()
                        fields = body_fields(body, self.limits)
                    version = model.current()
                    found = handler(Call(version, fields, word, accept, self.limits))
                    model.check_unchanged(version)
                    return found

                found: Answer = await self.pool.run(answer)
            request.scope["embmap.vectors"] = found.n_vectors
            return _response(found)

        return endpoint

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request: JSON, not too long, in time."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            # Also what keeps pages of other sites from sending requests here.
            raise Problem(415, "not_json", f"send the body as Content-Type: {JSON}")
        limit = self.limits.body_nbytes
        too_large = Problem(
            413, "too_large", f"a body has at most {limit} bytes", {"Connection": "close"}
        )
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > _DRAINED * limit:
            raise too_large
        body = bytearray()
        n_read = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
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
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        problem = self._refusal(scope)
        try:
            if problem is None:
                await self._app(scope, receive, told)
            else:
                await _response_of(problem)(scope, receive, told)
        finally:
            seconds = time.perf_counter() - began
            route, n = scope.get("embmap.route", "other"), scope.get("embmap.vectors", 0)
            self._metrics.count(route, status, seconds, n)

    def _refusal(self, scope: Scope) -> Problem | None:
        headers = dict(scope["headers"])
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


def _response(answer: Answer) -> Response:
    headers = {"Cache-Control": "no-store", "Vary": "Accept", **answer.headers}
    return Response(answer.content, media_type=answer.media_type, headers=headers)


def _response_of(problem: Problem) -> Response:
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(problem.body(), problem.status, headers, JSON)


async def _http_problem(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    codes = {404: ("not_found", "there is nothing here"), 405: ("bad_method", "not by this method")}
    code, message = codes.get(status, ("bad_request", "this cannot be answered"))
    headers = dict(getattr(error, "headers", None) or {})
    return _response_of(Problem(status, code, message, headers))


def _tell(template: str, error: Exception) -> None:
    """Log where an error came from, without its message: it might quote the request."""
    lines = [
        f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    _LOG.error("%s: %s at %s", template, type(error).__name__, " < ".join(reversed(lines[-6:])))
