"""What a request can be told is wrong with it: a status, a code for programs, a sentence.

Messages never name a path of the server.
"""

from __future__ import annotations

import json
from typing import Any

from embmap.errors import EmbmapError, FormatError, UnknownWordError, UnsupportedError

__all__ = ["Problem", "problem_of"]


class Problem(Exception):  # noqa: N818 (the word of RFC 9457)
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: dict[str, str] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(code)
        self.status = status
        self.headers = headers or {}
        self._error = {"code": code, "message": message, **facts}

    def body(self) -> bytes:
        """Return the JSON of the response."""
        return json.dumps({"error": self._error}).encode()


def problem_of(error: BaseException) -> Problem:
    """Return what a request is told about an error."""
    match error:
        case Problem():
            return error
        case UnknownWordError():
            return unknown_word(error.word, error.n_unknown)
        case UnsupportedError():
            return Problem(422, "unsupported", error.message)
        case FormatError():
            return unavailable(f"the file is damaged or has changed: {error.message}")
        case EmbmapError() | OSError():
            return unavailable("the file cannot be read now")
        case _:
            return Problem(500, "internal", "the server failed to answer this; its log says where")


def unavailable(message: str) -> Problem:
    """Return the problem of a file that cannot be served now."""
    return Problem(503, "model_unavailable", message, {"Retry-After": "1"})


def unknown_word(word: str, n_unknown: int = 1) -> Problem:
    """Return the problem of a word that has no vector."""
    told = str(UnknownWordError(word, n_unknown=n_unknown))
    return Problem(404, "unknown_word", told, word=word, n_unknown=n_unknown)
