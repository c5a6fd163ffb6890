"""Starting a server and stopping it: one process, or several over one listening socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace

import uvicorn
from uvicorn.supervisors import Multiprocess

from embmap.serve.application import SETTINGS
from embmap.serve.models import Model
from embmap.serve.protocol import BoundedHttp
from embmap.serve.settings import Settings, read_token

__all__ = ["run"]

_FINISH_SECONDS = 30
_START_SECONDS = 60.0


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, and finish what is being answered then.

    Parameters
    ----------
    settings : Settings
        Which files, and where.
    say : callable
        Called with the URL once requests are answered.

    Raises
    ------
    EmbmapError, OSError, ValueError
        When a file cannot be opened, or the settings would not be safe.
    """
    settings.check()
    if settings.token_file is not None:
        read_token(settings.token_file)
    for source in settings.models:  # what is wrong now is better said before than with a 503
        with Model(source, settings.backend).open() as file:
            if source.vocab is not None and file.vocab is not None:
                _ = file.vocab.starts  # counts the lines
    listening = _listen(settings.host, settings.port)
    folder = tempfile.mkdtemp(prefix="embmap-serve-")
    try:
        os.environ[SETTINGS] = replace(settings, folder=folder).to_json()
        with listening, _kept(folder):
            port = listening.getsockname()[1]
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            _serve(settings, listening, lambda: say(f"http://{host}:{port}"))
    finally:
        os.environ.pop(SETTINGS, None)
        shutil.rmtree(folder, ignore_errors=True)


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
        limit_concurrency=settings.limits.connections,
    )
    if settings.workers > 1:
        _Supervisor(config, [listening], say).run()
        return
    # uvicorn raises the signal again when it has finished; that is no reason to die of it.
    before = {each: signal.signal(each, _ignore) for each in (signal.SIGTERM, signal.SIGINT)}
    closed = getattr(signal, "SIGHUP", None)  # the terminal was; nohup has it ignored
    if closed is not None and signal.getsignal(closed) == signal.SIG_DFL:
        before[closed] = signal.signal(closed, _terminate)
    try:
        _Server(config, say).run([listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """Tells when it is up."""

    def __init__(self, config: uvicorn.Config, say: Callable[[], None]) -> None:
        super().__init__(config)
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say()


class _Supervisor(Multiprocess):
    """Tells when all its workers are up."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], say: Callable[[], None]
    ) -> None:
        super().__init__(config, sockets)
        self._say = say

    def init_processes(self) -> None:
        super().init_processes()
        if all(each.wait_until_ready(_START_SECONDS, self.should_exit) for each in self.processes):
            self._say()


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(error.errno, f"{host}: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        if os.name != "nt":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind(address)
        listening.listen(1024)
        listening.set_inheritable(True)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from None
    return listening


@contextlib.contextmanager
def _kept(folder: str) -> Iterator[None]:
    """Keep what cleans up temporary files from a folder: it spares what is locked."""
    try:
        import fcntl
    except ImportError:  # Windows, which has nothing of the kind
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _terminate(*_: object) -> None:
    """End as after SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


def _ignore(*_: object) -> None:
    """Do nothing about a signal."""
