"""Connections to a server, and its errors as local files would raise them."""

from __future__ import annotations

import http.client
import json
import os
import threading
import urllib.parse
import weakref
from typing import Any, NamedTuple

from embmap.errors import EmbmapError, UnknownWordError

__all__ = ["JSON", "Connections", "RemoteError", "Reply"]

JSON = "application/json"


class RemoteError(EmbmapError, OSError):
    """A server refused or could not answer, for a reason that local files do not have.

    Parameters
    ----------
    status : int
        Of the response; 0 when there was none.
    code : str
        What the server calls it.
    message : str
        And what it says.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status = status
        self.code = code
        self.message = message
        super().__init__(f"{message} ({status} {code})" if status else message)


class Reply(NamedTuple):
    """What a server answered.

    Attributes
    ----------
    media_type : str
        Of its body.
    missing : str
        The numbers of the words that have no vector, with commas.
    content : bytes
        Its body.
    """

    media_type: str
    missing: str
    content: bytes


class _Held:
    """The connection of a thread; closed when the thread ends."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.process = os.getpid()

    def __del__(self) -> None:
        self.connection.close()


class Connections:
    """One connection for each thread, kept alive.

    Parameters
    ----------
    url : str
        Of the server.
    token : str or None
        What it asks for.
    timeout : float
        Seconds to wait for an answer.

    Raises
    ------
    ValueError
        When that is no URL of a server.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{url!r} is no URL of a server: write http://HOST:PORT")
        secure = parts.scheme == "https"
        self._kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._address = (parts.hostname, parts.port)
        self._timeout = timeout
        self._base = parts.path.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._local = threading.local()
        self._all: weakref.WeakSet[_Held] = weakref.WeakSet()

    def _connection(self) -> http.client.HTTPConnection:
        """Return the connection of this thread; a forked process has one of its own."""
        held: _Held | None = getattr(self._local, "held", None)
        if held is None or held.process != os.getpid():
            host, port = self._address
            held = self._local.held = _Held(self._kind(host, port, timeout=self._timeout))
            self._all.add(held)
        return held.connection

    def ask(self, path: str, body: Any = None, accept: str = JSON) -> Reply:
        """Send a request.

        Parameters
        ----------
        path : str
            From the root of the server, quoted.
        body : object, optional
            What to send as JSON.
        accept : str
            The media type that is wanted.

        Returns
        -------
        Reply
            The answer.

        Raises
        ------
        RemoteError, UnknownWordError, IndexError, ValueError
            When the server refused or could not be reached.
        """
        headers = {**self._headers, "Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = JSON
            data = json.dumps(body).encode()
        method = "GET" if data is None else "POST"
        for last in (False, True):
            connection = self._connection()
            fresh = connection.sock is None
            try:
                connection.request(method, self._base + path, data, headers)
                response = connection.getresponse()
                content = response.read()
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                # A server may close a connection that nothing is said on; requests only read.
                if fresh or last or isinstance(error, TimeoutError):
                    raise RemoteError(0, "unreachable", f"no answer: {error}") from error
                continue
            if response.status != 200:
                raise _error_of(response.status, content)
            kind = response.getheader("Content-Type", "").partition(";")[0]
            return Reply(kind, response.getheader("Embmap-Missing", ""), content)
        raise AssertionError  # the loop has answered or raised

    def json(self, path: str, body: Any = None) -> Any:
        """Send a request for JSON.

        Parameters
        ----------
        path : str
            From the root of the server, quoted.
        body : object, optional
            What to send as JSON.

        Returns
        -------
        object
            The answer.
        """
        content = self.ask(path, body).content
        try:
            return json.loads(content)
        except ValueError:
            raise RemoteError(200, "garbled", "the server's answer cannot be read") from None

    def close(self) -> None:
        """Close all of them; they open again when they are needed."""
        for held in list(self._all):
            held.connection.close()


def _error_of(status: int, content: bytes) -> Exception:
    try:
        error = json.loads(content)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, LookupError, TypeError):
        return RemoteError(status, "error", "the server answered something else than an error")
    if code == "unknown_word":
        return UnknownWordError(error.get("word", ""), n_unknown=error.get("n_unknown", 1))
    if code == "unknown_row":
        return IndexError(message)
    if status in (400, 422):
        return ValueError(message)
    return RemoteError(status, code, message)
