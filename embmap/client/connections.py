"""Connections to a server, and its errors as the exceptions that local files raise."""

from __future__ import annotations

import json
import os
import threading
import weakref
from typing import Any, NamedTuple

from embmap.client.exchange import Address, Connection, Content
from embmap.client.interface import JSON, MISSING_HEADER
from embmap.errors import EmbmapError, StaleIndexError, UnknownWordError

__all__ = ["Connections", "RemoteError", "Reply", "encoded"]

_JSON_NBYTES = 1 << 24  # more than any JSON that the client asks for
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
    content: Content


class Connections:
    """A keep-alive connection for each thread."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self._address = Address.of(url)
        self._timeout = timeout
        self._head = f"Host: {self._address.host_header}\r\nAccept-Encoding: identity\r\n"
        if token is not None:
            if not all("!" <= letter <= "~" for letter in token):
                raise ValueError("token must be one line of visible ASCII characters")
            self._head += f"Authorization: Bearer {token}\r\n"
        self._local = threading.local()
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()

    def _connection(self) -> Connection:
        """Return the connection of this thread; a forked process gets a new one."""
        held: Connection | None = getattr(self._local, "held", None)
        if held is None or held.process != os.getpid():
            held = self._local.held = Connection(self._address, self._timeout)
            self._all.add(held)
        return held

    def ask(
        self, path: str, data: bytes | None = None, accept: str = JSON, most: int = _JSON_NBYTES
    ) -> Reply:
        """Send a request and return the response; refuse an answer of more than `most` bytes.

        `data` is the JSON of a POST request.
        """
        method = "GET" if data is None else "POST"
        head = f"{method} {self._address.base}{path} HTTP/1.1\r\n{self._head}Accept: {accept}\r\n"
        if data is not None:
            head += f"Content-Type: {JSON}\r\nContent-Length: {len(data)}\r\n"
        request = b"%b\r\n%b" % (head.encode("ascii"), data or b"")
        for last in (False, True):
            connection = self._connection()
            fresh = not connection.is_open
            try:
                return _reply(connection, request, most)
            except RemoteError:
                raise
            except OSError as error:
                # A server may close an idle connection. Requests only read: sending again is safe.
                if fresh or last or isinstance(error, TimeoutError):
                    raise RemoteError(0, "unreachable", f"no answer: {error}") from error
        raise AssertionError  # the loop has answered or raised

    def json(self, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of the answer, parsed; `body` may be JSON already."""
        data = body if isinstance(body, bytes | None) else encoded(body)
        reply = self.ask(path, data)
        try:
            if reply.media_type == JSON:
                return json.loads(bytes(reply.content))
        except (ValueError, RecursionError):
            pass
        raise RemoteError(200, "garbled", "the server's answer is not valid JSON")

    def close(self) -> None:
        """Close all connections. They open again for the next request."""
        for held in list(self._all):
            held.close()


def encoded(value: Any) -> bytes:
    """Return a value as JSON, in as few bytes as UTF-8 allows."""
    return json.dumps(value, ensure_ascii=False).encode()


def _reply(connection: Connection, request: bytes, most: int) -> Reply:
    """Send a request and read the whole answer, or close the connection.

    The rest of an answer would be read as the answer to the next request.
    """
    try:
        connection.send(request)
        status, headers = connection.receive_head()
        allowed = most if status == 200 else max(most, _JSON_NBYTES)
        content = connection.receive_content(headers, allowed)
        if content is None:
            message = f"the server's answer must have at most {allowed} bytes"
            raise RemoteError(status, "too_large", message)
    except BaseException:  # also KeyboardInterrupt
        connection.close()
        raise
    if status != 200:
        raise _error_of(status, content)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return Reply(kind, headers.get(MISSING_HEADER.lower(), ""), content)


def _error_of(status: int, content: Content) -> Exception:
    try:
        error = json.loads(bytes(content))["error"]
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
