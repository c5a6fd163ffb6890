"""Connections to a server, and its errors as the exceptions that local files raise."""

from __future__ import annotations

import http.client
import json
import os
import threading
import urllib.parse
import weakref
from typing import Any, NamedTuple

from embmap.client.interface import JSON, MISSING_HEADER
from embmap.errors import EmbmapError, StaleIndexError, UnknownWordError

__all__ = ["Connections", "RemoteError", "Reply", "encoded"]

_JSON_NBYTES = 1 << 24  # more than any JSON that the client asks for
_PIECE = 1 << 18
_MESSAGE_LETTERS = 1000


class RemoteError(EmbmapError, OSError):
    """A server refused or failed to answer, for a reason that local files do not have.

    Parameters
    ----------
    status : int
        HTTP status of the response; 0 if there was no response.
    code : str
        The server's code of the error, such as ``busy``.
    message : str
        The server's message.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status = status
        self.code = code
        self.message = message
        super().__init__(f"{message} ({status} {code})" if status else message)


class Reply(NamedTuple):
    """A response. `missing` lists the positions of words without a vector, with commas."""

    media_type: str
    missing: str
    content: bytearray


class _Held:
    """The connection of a thread. It is closed when the thread ends."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.process = os.getpid()

    def __del__(self) -> None:
        self.connection.close()


class Connections:
    """A keep-alive connection for each thread."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"url must be http://HOST:PORT or https://HOST:PORT, not {url!r}")
        secure = parts.scheme == "https"
        self._kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._address = (parts.hostname, parts.port)
        self._timeout = timeout
        self._base = parts.path.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._local = threading.local()
        self._all: weakref.WeakSet[_Held] = weakref.WeakSet()

    def _connection(self) -> http.client.HTTPConnection:
        """Return the connection of this thread; a forked process gets a new one."""
        held: _Held | None = getattr(self._local, "held", None)
        if held is None or held.process != os.getpid():
            host, port = self._address
            held = self._local.held = _Held(self._kind(host, port, timeout=self._timeout))
            self._all.add(held)
        return held.connection

    def ask(
        self, path: str, body: Any = None, accept: str = JSON, most: int = _JSON_NBYTES
    ) -> Reply:
        """Send a request and return the response; refuse an answer of more than `most` bytes."""
        headers = {**self._headers, "Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = JSON
            data = encoded(body)
        for last in (False, True):
            connection = self._connection()
            fresh = connection.sock is None
            try:
                return self._exchange(connection, path, data, headers, most=most)
            except RemoteError:
                raise
            except (http.client.HTTPException, OSError) as error:
                # A server may close an idle connection. Requests only read: sending again is safe.
                if fresh or last or isinstance(error, TimeoutError):
                    raise RemoteError(0, "unreachable", f"no answer: {error}") from error
        raise AssertionError  # the loop has answered or raised

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
        *,
        most: int,
    ) -> Reply:
        """Send a request and read the whole answer, or close the connection.

        The rest of an answer would be read as the answer to the next request.
        """
        try:
            method = "GET" if data is None else "POST"
            connection.request(method, self._base + path, data, headers)
            with connection.getresponse() as response:
                is_error = response.status != 200
                content = _content(response, max(most, _JSON_NBYTES) if is_error else most)
        except BaseException:  # also KeyboardInterrupt
            connection.close()
            raise
        if is_error:
            raise _error_of(response.status, content)
        kind = response.getheader("Content-Type", "").partition(";")[0].strip().lower()
        return Reply(kind, response.getheader(MISSING_HEADER, ""), content)

    def json(self, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of the answer, parsed."""
        reply = self.ask(path, body)
        try:
            if reply.media_type == JSON:
                return json.loads(reply.content)
        except (ValueError, RecursionError):
            pass
        raise RemoteError(200, "garbled", "the server's answer is not valid JSON")

    def close(self) -> None:
        """Close all connections. They open again for the next request."""
        for held in list(self._all):
            held.connection.close()


def encoded(value: Any) -> bytes:
    """Return a value as JSON, in as few bytes as UTF-8 allows."""
    return json.dumps(value, ensure_ascii=False).encode()


def _content(response: http.client.HTTPResponse, most: int) -> bytearray:
    """Return the body of a response. It is read in pieces, as its Content-Length may be false."""
    too_large = RemoteError(
        response.status, "too_large", f"the server's answer must have at most {most} bytes"
    )
    if response.length is not None and response.length > most:
        raise too_large
    content = bytearray()
    while piece := response.read1(_PIECE):
        content += piece
        if len(content) > most:
            raise too_large
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return content


def _error_of(status: int, content: bytearray) -> Exception:
    try:
        error = json.loads(content)["error"]
        code, message = error["code"], error["message"]
        word, n_unknown = error.get("word", ""), error.get("n_unknown", 1)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        code = None
    if not (isinstance(code, str) and isinstance(message, str)):
        message = f"the server answered with status {status}, but without an error of embmap serve"
        return RemoteError(status, "error", message)
    message = message[:_MESSAGE_LETTERS]
    if code == "unknown_word" and isinstance(word, str) and isinstance(n_unknown, int):
        return UnknownWordError(word, n_unknown=n_unknown)
    if code == "stale_index":
        return StaleIndexError(message)
    if code == "unknown_row":
        return IndexError(message)
    if status in (400, 422) or code == "unknown_section":
        return ValueError(message)
    return RemoteError(status, code, message)
