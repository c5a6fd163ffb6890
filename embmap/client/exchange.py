"""One connection to a server: a request is sent, and its answer is received into one buffer.

Of HTTP/1.1, this is what answers of a server, or of a proxy before it, can contain: content of a
given length, in chunks, or up to the end of the connection. A server may be hostile: no answer
takes more memory than was allowed, and every answer that is not HTTP is a :class:`NotHttpError`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import urllib.parse
from io import BufferedReader
from typing import NamedTuple, cast

import numpy as np

__all__ = ["Address", "Connection", "Content", "NotHttpError"]

Content = bytearray | memoryview

_BUFFER_NBYTES = 1 << 16
_LINE_NBYTES = 1 << 16  # of the longest line of a head
_MOST_LINES = 100  # of a head, or of trailers
_PIECE = 1 << 18  # bytes received at a time if the length of the content is not known
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")


class NotHttpError(ConnectionError):
    """A server sent something that is not an HTTP response, or only a part of one."""


class Address(NamedTuple):
    """Where a server is: its host and port, the path before its routes, and whether TLS is used."""

    host: str
    port: int
    base: str
    secure: bool
    host_header: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the address in a URL, or raise ValueError."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"url must be http://HOST:PORT or https://HOST:PORT, not {url!r}")
        base = parts.path.rstrip("/")
        if not all("!" <= letter <= "~" for letter in base):
            raise ValueError(f"the path of url must be percent-encoded ASCII, not {base!r}")
        secure = parts.scheme == "https"
        host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode()
        shown = f"[{host}]" if ":" in host else host
        if parts.port is not None:
            shown += f":{parts.port}"
        return cls(host, parts.port or (443 if secure else 80), base, secure, shown)


class Connection:
    """A connection that stays open, for one thread. It is closed when it is deleted."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.process = os.getpid()
        self._address = address
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._received: BufferedReader | None = None
        self._stays = False  # whether the connection stays open after the answer

    def __del__(self) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that an earlier request used."""
        return self._socket is not None

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        received, self._received = self._received, None
        connection, self._socket = self._socket, None
        if connection is not None and self.process == os.getpid():
            # Ends a read of another thread. A forked process must not do this to its parent.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if received is not None:
            received.close()
        if connection is not None:
            connection.close()

    def _open(self) -> socket.socket:
        address = self._address
        connection = socket.create_connection((address.host, address.port), self._timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.secure:
                import ssl

                context = ssl.create_default_context()
                context.set_alpn_protocols(["http/1.1"])
                connection = context.wrap_socket(connection, server_hostname=address.host)
        except BaseException:
            connection.close()
            raise
        self._socket = connection
        self._received = cast(BufferedReader, connection.makefile("rb", _BUFFER_NBYTES))
        return connection

    def send(self, request: bytes) -> None:
        """Send a request."""
        (self._socket or self._open()).sendall(request)

    def receive_head(self) -> tuple[int, dict[str, str]]:
        """Return the status of an answer and its headers, by their names in lower case."""
        while True:
            line = _STATUS.fullmatch(self._line())
            if line is None:
                raise NotHttpError("the answer is not HTTP")
            status, headers = int(line[2]), self._headers()
            if status >= 200:  # interim answers have a head and nothing else
                break
        tokens = [each.strip() for each in headers.get("connection", "").lower().split(",")]
        if status in (204, 304):
            headers = {**headers, "content-length": "0", "transfer-encoding": ""}
        self._stays = "keep-alive" in tokens if line[1] == b"0" else "close" not in tokens
        return status, headers

    def receive_content(self, headers: dict[str, str], most: int) -> Content | None:
        """Return the content of an answer; None, and the rest unread, if it is too large."""
        length = headers.get("content-length")
        coding = headers.get("transfer-encoding", "").strip().lower()
        if coding not in ("", "chunked"):
            raise NotHttpError("the answer has an unknown transfer coding")
        content: Content | None
        if coding:
            content = self._chunks(most)
        elif length is None:
            self._stays = False
            content = self._rest(most)
        elif _LENGTH.fullmatch(length):
            content = self._exactly(int(length)) if int(length) <= most else None
        else:
            raise NotHttpError("the answer has no valid length")
        if not self._stays:
            self.close()
        return content

    def _line(self) -> bytes:
        line = self._reader().readline(_LINE_NBYTES)
        if not line.endswith(b"\n"):
            what = "ended" if len(line) < _LINE_NBYTES else "has a line that is too long"
            raise NotHttpError(f"the answer {what}")
        return line

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for _ in range(_MOST_LINES):
            line = self._line()
            if line in (b"\r\n", b"\n"):
                return headers
            name, _, value = line.decode("latin-1").partition(":")
            name = name.lower()
            value = value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        raise NotHttpError("the head of the answer has too many lines")

    def _exactly(self, nbytes: int) -> memoryview:
        # Memory of a length that is false is never touched.
        content = np.empty(nbytes, np.uint8).data
        if self._reader().readinto(content) < nbytes:
            raise NotHttpError("the answer ended early")
        return content

    def _chunks(self, most: int) -> bytearray | None:
        content = bytearray()
        while True:
            head = _CHUNK.fullmatch(self._line())
            if head is None:
                raise NotHttpError("a chunk of the answer has no valid length")
            nbytes = int(head[1], 16)
            if len(content) + nbytes > most:
                return None
            if not nbytes:
                self._headers()  # trailers
                return content
            content += self._exactly(nbytes)
            if self._line().strip():
                raise NotHttpError("a chunk of the answer is longer than its length")

    def _rest(self, most: int) -> bytearray | None:
        content = bytearray()
        while piece := self._reader().read1(_PIECE):
            content += piece
            if len(content) > most:
                return None
        return content

    def _reader(self) -> BufferedReader:
        if self._received is None:
            raise NotHttpError("the connection is closed")
        return self._received
