"""The listening socket, and the number of file descriptors that its connections may use.

A server without free descriptors can neither answer nor open files. Therefore a reserve is kept for
files, and connections are accepted a few at a time, so that surplus ones are closed before more
arrive.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from multiprocessing import reduction
from typing import Any

from embmap.serve.protocol import warn_once

__all__ = ["Listening", "affordable_connections", "listen"]

_ACCEPTED_AT_ONCE = 16
_RESERVED = 128  # for Python, threads that open files, and connections about to be closed
_RESERVED_FOR_MODEL = 16  # for the version that is served and one that is being opened
_FEWEST = 16


def affordable_connections(most: int, n_models: int) -> int:
    """Raise the soft limit of descriptors to the hard limit; return how many connections fit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return most
    limit, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
        limit = allowed
    if limit == resource.RLIM_INFINITY:
        return most
    return max(min(most, limit - _RESERVED - _RESERVED_FOR_MODEL * n_models), _FEWEST)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host and port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(error.errno, f"{host}: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listening = (socket.socket if os.name == "nt" else Listening)(family, kind, protocol)
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


class Listening(socket.socket):
    """A socket from which an event loop accepts a few connections at a time.

    asyncio accepts until no connection waits, closes none meanwhile, and logs each failure.
    Therefore this socket pretends now and then that no connection waits. Without a free descriptor,
    it gives up a spare one to accept the waiting connection, and closes it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._n_left = _ACCEPTED_AT_ONCE
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for a worker process that is being started, as multiprocessing pickles sockets."""
        return _inherited, (reduction.DupFd(self.fileno()),)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        if not self._n_left:
            self._n_left = _ACCEPTED_AT_ONCE
            raise BlockingIOError
        self._n_left -= 1
        try:
            return super().accept()
        except BlockingIOError:
            self._n_left = _ACCEPTED_AT_ONCE
            raise
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._n_left = 0  # otherwise asyncio would try again at once
        warn_once("no file descriptor is left: new connections are closed")
        self._drop()
        raise BlockingIOError

    def _drop(self) -> None:
        """Accept the waiting connection with the spare descriptor, and close it."""
        self._close_spare()
        try:
            super().accept()[0].close()
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        """Close the socket and its spare descriptor."""
        self._close_spare()
        super().close()

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


def _inherited(descriptor: Any) -> Listening:
    return Listening(fileno=descriptor.detach())
