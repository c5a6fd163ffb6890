"""Starts and stops a server: one process, or several that share a listening socket."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from tempfile import TemporaryDirectory

import uvicorn
from uvicorn.supervisors import Multiprocess

from embmap.serve.application import SETTINGS
from embmap.serve.listening import affordable_connections, listen
from embmap.serve.models import Model
from embmap.serve.protocol import BoundedHttp
from embmap.serve.settings import Settings, read_token

__all__ = ["run"]

_FINISH_SECONDS = 30
_START_SECONDS = 60.0


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests that are being answered then are finished."""
    settings.check()
    if settings.token_file is not None:
        read_token(settings.token_file)
    for source in settings.models:  # better an error now than a 503 later
        with Model(source, settings.backend).open() as file:
            if source.vocab is not None and file.vocab is not None:
                _ = file.vocab.starts  # counts the lines
    with (
        listen(settings.host, settings.port) as listening,
        # A single process shares nothing; without a folder it leaves nothing behind if killed.
        _shared_folder() if settings.workers > 1 else nullcontext() as folder,
    ):
        os.environ[SETTINGS] = replace(settings, folder=folder).to_json()
        try:
            port = listening.getsockname()[1]
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            _serve(settings, listening, lambda: say(f"http://{host}:{port}"))
        finally:
            os.environ.pop(SETTINGS, None)


def _serve(settings: Settings, listening: socket.socket, say: Callable[[], None]) -> None:
    config = uvicorn.Config(
        "embmap.serve.application:from_environment",
        factory=True,
        workers=settings.workers,
        log_level="error",
        access_log=False,
        http=BoundedHttp,
        ws="none",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_FINISH_SECONDS,
        limit_concurrency=affordable_connections(settings.limits.connections, len(settings.models)),
    )
    if settings.workers > 1:
        _Supervisor(config, [listening], say).run()
        return
    # uvicorn raises the signal again after it has finished. Ignored, it does not kill the process.
    before = {each: signal.signal(each, _ignore) for each in (signal.SIGTERM, signal.SIGINT)}
    closed = getattr(signal, "SIGHUP", None)  # sent when the terminal closes; nohup ignores it
    if closed is not None and signal.getsignal(closed) == signal.SIG_DFL:
        before[closed] = signal.signal(closed, _terminate)
    try:
        _Server(config, say).run([listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """Calls `say` once it is up."""

    def __init__(self, config: uvicorn.Config, say: Callable[[], None]) -> None:
        super().__init__(config)
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say()


class _Supervisor(Multiprocess):
    """Calls `say` once all its workers are up."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], say: Callable[[], None]
    ) -> None:
        closed = getattr(signal, "SIGHUP", None)
        before = None if closed is None else signal.getsignal(closed)
        super().__init__(config, sockets)  # installs handlers even for ignored signals
        if closed is not None and before == signal.SIG_IGN:
            signal.signal(closed, signal.SIG_IGN)
        self._say = say

    def handle_hup(self) -> None:
        """End as after SIGTERM, because the terminal was closed."""
        self.handle_term()

    def init_processes(self) -> None:
        super().init_processes()
        if all(each.wait_until_ready(_START_SECONDS, self.should_exit) for each in self.processes):
            self._say()


@contextmanager
def _shared_folder() -> Iterator[str]:
    """Make the workers' folder, locked so that temp-file cleaners skip it."""
    with ExitStack() as until_end:
        folder = until_end.enter_context(
            TemporaryDirectory(prefix="embmap-serve-", ignore_cleanup_errors=True)
        )
        try:
            import fcntl
        except ImportError:  # Windows has neither flock nor such cleaners
            pass
        else:
            descriptor = os.open(folder, os.O_RDONLY)
            until_end.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield folder


def _terminate(*_: object) -> None:
    """End as after SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


def _ignore(*_: object) -> None:
    """Do nothing about a signal."""
