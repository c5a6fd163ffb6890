"""Requests that HTTP forbids, or leaves room to read in more than one way."""

from __future__ import annotations

__all__ = ["ambiguous_lengths", "odd_heads"]

_REST = "HTTP/1.1\r\nHost: localhost\r\n"


def ambiguous_lengths(body: bytes) -> list[tuple[tuple[str, ...], bytes]]:
    """Header lines and what follows the head: servers may differ about where it ends."""
    n = len(body)
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (n, body)
    length, chunked = f"Content-Length: {n}", "Transfer-Encoding: chunked"
    return [
        ((length, chunked), whole),
        ((chunked, length), whole),
        ((chunked, f"Content-Length: {len(whole)}"), whole),
        ((length, f"Content-Length: {n + 5}"), body),
        ((f"Content-Length: {n}, {n}",), body),
        ((f"Content-Length: {n},{n + 1}",), body),
        ((f"Content-Length: +{n}",), body),
        ((f"Content-Length: -{n}",), body),
        ((f"Content-Length: 0x{n:x}",), body),
        ((f"Content-Length: {n}_0",), body),
        ((f"Content-Length: {n + 2**64}",), body),
        ((f"Content-Length: {n} {n}",), body),
        (("Content-Length: ",), body),
        (("Content-Length : 17",), body),
        (("Transfer-Encoding : chunked",), whole),
        (("Transfer-Encoding: xchunked",), whole),
        (("Transfer-Encoding: chunked, identity",), whole),
        (("Transfer-Encoding: identity, chunked", length), whole),
        (("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), whole),
        (("Transfer-Encoding: gzip, chunked",), whole),
        (("Transfer-Encoding:\x0bchunked",), whole),
        (("Transfer-Encoding: chunked\x00",), whole),
        (("X: y\r Transfer-Encoding: chunked",), whole),
        (("X: y\n\tTransfer-Encoding: chunked", length), body),
        ((chunked,), b"%x;a=b\nX\r\n%s\r\n0\r\n\r\n" % (n, body)),
        ((chunked,), b"0x%x\r\n%s\r\n0\r\n\r\n" % (n, body)),
        ((chunked,), b"%x\n%s\n0\n\n" % (n, body)),
        ((chunked,), b"1%016x\r\n%s\r\n0\r\n\r\n" % (n, body)),
        ((chunked,), b"-1\r\n%s\r\n0\r\n\r\n" % body),
        ((chunked,), b"%x\r\n%sXX0\r\n\r\n" % (n, body)),
    ]


def odd_heads(plain: str) -> list[bytes]:
    """Whole requests whose first words are `plain`, "GET" and a path, or other ones."""
    absolute = plain.replace("/", "http://localhost/", 1)
    found = [
        f"{plain} {_REST}X: y\r\n  folded: z\r\n\r\n",
        f"{plain} {_REST}Host: evil.example\r\n\r\n",
        f"{plain} HTTP/1.1\r\n\r\n",
        f"{plain} HTTP/1.0\r\n\r\n",
        f"{plain} HTTP/2.0\r\nHost: localhost\r\n\r\n",
        f"{plain} HTTP/1.1\nHost: localhost\n\n",
        f"{plain}\r\n\r\n",
        f"{plain} {_REST}: y\r\n\r\n",
        f"{plain} {_REST}X\r\n\r\n",
        f"{plain} {_REST}X y: z\r\n\r\n",
        f"{plain} {_REST}X: \x00\r\n\r\n",
        f"{absolute} {_REST}\r\n",
        f"CONNECT localhost:80 {_REST}\r\n",
        f"TRACE / {_REST}\r\n",
        f"OPTIONS * {_REST}\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        f"{plain} {_REST}Upgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        f"{plain} {_REST}Expect: 100-continue\r\n\r\n",
        f"{plain} {_REST}Connection: close, keep-alive\r\n\r\n",
        f"{plain}\x00 {_REST}\r\n",
        f"{plain}%00%zz?t=%ff {_REST}\r\n",
    ]
    return [each.encode("latin-1") for each in found]
