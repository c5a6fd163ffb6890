"""The fields of a JSON body or a query, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import orjson

from embmap.serve.problems import Problem
from embmap.serve.settings import Limits

__all__ = ["Fields", "check_word", "parse_body", "parse_query", "refuse"]


class Fields:
    """Named values of a request. Handlers take theirs, then call :meth:`check_rest`."""

    def __init__(self, values: Mapping[str, Any], limits: Limits) -> None:
        self._values = dict(values)
        self._limits = limits

    def __contains__(self, name: str) -> bool:
        """Return whether a field was sent and not yet taken."""
        return name in self._values

    def check_rest(self) -> None:
        """Refuse fields that no handler took."""
        for name in self._values:
            refuse(f"this route has no field {name[:100]!r}")

    def word(self, name: str) -> str:
        """Take a word."""
        if name not in self._values:
            refuse(f"{name!r} is missing")
        return check_word(self._values.pop(name))

    def words(self, name: str) -> list[str]:
        """Take a list of words."""
        words = self._list(name)
        if not set(map(type, words)) <= {str}:
            refuse("a word must be a string")
        return words

    def rows(self, name: str) -> list[int]:
        """Take a list of row numbers."""
        return _check_rows(name, self._list(name))

    def words_and_rows(self, name: str, most: int) -> tuple[list[str], list[int]]:
        """Take a list of words and row numbers."""
        items = self._list(name, most)
        words = [check_word(item) for item in items if isinstance(item, str)]
        return words, _check_rows(name, [item for item in items if not isinstance(item, str)])

    def _list(self, name: str, most: int | None = None) -> list[Any]:
        values = self._values.pop(name)
        most = self._limits.words if most is None else most
        if not isinstance(values, list):
            refuse(f"{name!r} must be a list")
        if len(values) > most:
            refuse(f"{name!r} must have at most {most} items, not {len(values)}", "too_many")
        return values

    def metadata(self, name: str) -> dict[str, Any] | None:
        """Take an object, if the field has one."""
        return self._values.pop(name) if isinstance(self._values.get(name), dict) else None

    def terms(self, name: str) -> list[Any] | None:
        """Take a list of words and vectors, each by itself or in a pair with its weight."""
        if name not in self._values:
            return None
        terms: list[Any] = []
        for term in self._list(name):
            paired = isinstance(term, list) and len(term) == 2 and isinstance(term[0], str | list)
            item, weight = term if paired else (term, 1.0)
            parsed = _as_vector(name, item) if isinstance(item, list) else check_word(item)
            terms.append((parsed, _as_vector(name, [weight])[0]) if paired else parsed)
        if not terms:
            refuse(f"{name!r} must not be empty")
        return terms

    def vector(self, name: str, sizes: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Take a vector of one of some sizes: float64, all finite."""
        values = self._values.pop(name)
        if not isinstance(values, list) or len(values) not in sizes:
            refuse(f"{name!r} must be a list of {sizes[0]} numbers")
        return _as_vector(name, values)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Take one of the choices, by default the first."""
        value = self._values.pop(name, choices[0])
        if not isinstance(value, str) or value not in choices:
            refuse(f"{name!r} must be one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Take an integer from `least` to `most`."""
        value = self._values.pop(name, default)
        if isinstance(value, str):
            digits = value.removeprefix("-")
            if digits.isascii() and digits.isdecimal() and len(digits) < 19:
                value = int(value)
        value = _as_int(value)
        if type(value) is not int or not least <= value <= most:
            refuse(f"{name!r} must be an integer from {least} to {most}")
        return value

    def step(self, name: str) -> int | str:
        """Take the number or the label of a time step."""
        value = _as_int(self._values.pop(name))
        if type(value) is not int and not isinstance(value, str):
            refuse(f"{name!r} must be an integer or a label")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Take a boolean."""
        value = self._values.pop(name, default)
        if isinstance(value, str) and value in ("true", "false"):
            return value == "true"
        if not isinstance(value, bool):
            refuse(f"{name!r} must be true or false")
        return value


def _check_rows(name: str, values: list[Any]) -> list[int]:
    rows = [_as_int(row) for row in values]
    if not all(type(row) is int and row >= 0 for row in rows):
        refuse(f"{name!r} must hold integers of at least 0")
    return rows


def _as_vector(name: str, values: list[Any]) -> npt.NDArray[np.float64]:
    """Return numbers as float64, or refuse if one is not a finite number."""
    if not all(type(value) in (int, float) for value in values):
        refuse(f"{name!r} must hold numbers")
    try:
        vector = np.array(values, np.float64)
    except OverflowError:
        vector = np.array([np.inf])
    if not np.isfinite(vector).all():
        refuse(f"{name!r} must hold finite numbers")
    return vector


def _as_int(value: Any) -> Any:
    """Return an int for a float without a fraction: to JSON, 1 and 1.0 are the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def refuse(message: str, code: str = "bad_request") -> NoReturn:
    """Refuse a request."""
    raise Problem(400, code, message)


def check_word(word: object) -> str:
    """Return a word, or refuse. Its length is bounded by the body or the head."""
    if not isinstance(word, str):
        refuse("a word must be a string")
    return word


def parse_body(body: bytes, limits: Limits) -> Fields:
    """Return the fields of a JSON object. All of its strings can be encoded as UTF-8."""
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError:
        refuse("the body must be JSON in UTF-8", "bad_json")
    if not isinstance(values, dict):
        refuse("the body must be a JSON object", "bad_json")
    return Fields(values, limits)


def parse_query(pairs: list[tuple[str, str]], limits: Limits) -> Fields:
    """Return the fields of a query."""
    values = dict(pairs)
    if len(values) < len(pairs):
        refuse("the query must not repeat a parameter")
    return Fields(values, limits)
