"""Answers that are errors: a status, a code for programs, and a sentence.

Messages never name a path of the server.
"""

from __future__ import annotations

import json
from typing import Any

from embmap.errors import EmbmapError, FormatError, UnknownWordError, UnsupportedError
from embmap.search.queries import NotFiniteError, QueryError, UnknownSectionError

__all__ = ["Problem", "problem_of", "unavailable", "unknown_word"]


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
    """Return the answer to a request that ended in an error."""
    match error:
        case Problem():
            return error
        case UnknownWordError():
            return unknown_word(error.word, error.n_unknown)
        case NotFiniteError():
            return Problem(422, "not_finite", "this word's vector is not finite")
        case UnknownSectionError():
            return Problem(404, "unknown_section", str(error))
        case QueryError():
            return Problem(400, "bad_request", str(error))
        case UnsupportedError():
            return Problem(422, "unsupported", error.message)
        case FormatError():
            return unavailable(f"the file is damaged or has changed: {error.message}")
        case EmbmapError() | OSError():
            return unavailable("the file cannot be read now")
        case _:
            return Problem(500, "internal", "the server failed to answer; see its log")


def unavailable(message: str) -> Problem:
    """Return the problem of a file that cannot be served now."""
    return Problem(503, "model_unavailable", message, {"Retry-After": "1"})


def unknown_word(word: str, n_unknown: int = 1) -> Problem:
    """Return the problem of a word that has no vector."""
    message = str(UnknownWordError(word, n_unknown=n_unknown))
    return Problem(404, "unknown_word", message, word=word, n_unknown=n_unknown)
