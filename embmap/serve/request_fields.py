"""The fields of a JSON body or a query, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

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
        return [check_word(word) for word in self._list(name)]

    def rows(self, name: str) -> list[int]:
        """Take a list of row numbers."""
        rows = [_as_int(row) for row in self._list(name)]
        if not all(type(row) is int and row >= 0 for row in rows):
            refuse(f"{name!r} must hold integers of at least 0")
        return rows

    def _list(self, name: str) -> list[Any]:
        values = self._values.pop(name)
        if not isinstance(values, list):
            refuse(f"{name!r} must be a list")
        if len(values) > self._limits.words:
            message = f"{name!r} must have at most {self._limits.words} items, not {len(values)}"
            refuse(message, "too_many")
        return values

    def vector(self, name: str, dim: int) -> npt.NDArray[np.float64]:
        """Take a vector: (dim,) float64, all finite."""
        values = self._values.pop(name)
        if not isinstance(values, list) or len(values) != dim:
            refuse(f"{name!r} must be a list of {dim} numbers")
        if not all(type(value) in (int, float) for value in values):
            refuse(f"{name!r} must hold numbers")
        try:
            vector = np.array(values, np.float64)
        except OverflowError:
            vector = np.array([np.inf])
        if not np.isfinite(vector).all():
            refuse(f"{name!r} must hold finite numbers")
        return vector

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
    try:
        word.encode()
    except UnicodeEncodeError:
        refuse("a word must be valid Unicode")
    return word


def parse_body(body: bytes, limits: Limits) -> Fields:
    """Return the fields of a JSON object."""
    try:
        values = _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError):
        refuse("the body must be JSON", "bad_json")
    if not isinstance(values, dict):
        refuse("the body must be a JSON object", "bad_json")
    return Fields(values, limits)


def parse_query(pairs: list[tuple[str, str]], limits: Limits) -> Fields:
    """Return the fields of a query."""
    values = dict(pairs)
    if len(values) < len(pairs):
        refuse("the query must not repeat a parameter")
    return Fields(values, limits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
