"""What requests say, checked: fields of a JSON body and of a query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from embmap.serve.problems import Problem
from embmap.serve.settings import Limits

__all__ = ["Fields", "body_fields", "query_fields"]


class Fields:
    """Named values of a request. Whoever has taken all he knows calls :meth:`check_rest`."""

    def __init__(self, values: Mapping[str, Any], limits: Limits) -> None:
        self._values = dict(values)
        self._limits = limits

    def __contains__(self, name: str) -> bool:
        """Whether a field is there and has not been taken."""
        return name in self._values

    def check_rest(self) -> None:
        """Refuse fields that nobody took."""
        for name in self._values:
            refuse(f"there is no field {name[:100]!r} here")

    def word(self, name: str) -> str:
        """Take a word."""
        if name not in self._values:
            refuse(f"{name!r} is missing")
        return checked_word(self._values.pop(name))

    def words(self, name: str) -> list[str]:
        """Take a list of words."""
        return [checked_word(word) for word in self._list(name)]

    def rows(self, name: str) -> list[int]:
        """Take a list of row numbers."""
        rows = [_whole(row) for row in self._list(name)]
        for row in rows:
            if type(row) is not int or row < 0:
                refuse(f"{name!r} takes whole numbers from 0 on")
        return rows

    def _list(self, name: str) -> list[Any]:
        values = self._values.pop(name)
        if not isinstance(values, list):
            refuse(f"{name!r} takes a list")
        if len(values) > self._limits.words:
            refuse(f"{name!r} takes at most {self._limits.words}", "too_many")
        return values

    def vector(self, name: str, dim: int) -> npt.NDArray[np.float64]:
        """Take a vector."""
        values = self._values.pop(name)
        if not isinstance(values, list) or len(values) != dim:
            refuse(f"{name!r} takes a list of {dim} numbers")
        if not all(type(value) in (int, float) for value in values):
            refuse(f"{name!r} takes numbers")
        try:
            vector = np.array(values, np.float64)
        except OverflowError:
            vector = np.array([np.inf])
        if not np.isfinite(vector).all():
            refuse(f"{name!r} takes finite numbers")
        return vector

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Take one of some values; the first of them when it is not there."""
        value = self._values.pop(name, choices[0])
        if not isinstance(value, str) or value not in choices:
            refuse(f"{name!r} is one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Take a whole number."""
        value = self._values.pop(name, default)
        if isinstance(value, str):
            digits = value.removeprefix("-")
            if digits.isascii() and digits.isdecimal() and len(digits) < 19:
                value = int(value)
        value = _whole(value)
        if type(value) is not int or not least <= value <= most:
            refuse(f"{name!r} is a whole number from {least} to {most}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Take a truth value."""
        value = self._values.pop(name, default)
        if isinstance(value, str) and value in ("true", "false"):
            return value == "true"
        if not isinstance(value, bool):
            refuse(f"{name!r} is true or false")
        return value


def _whole(value: Any) -> Any:
    """Return an int for a float that is one: JSON does not tell 1 from 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def refuse(message: str, code: str = "bad_request") -> NoReturn:
    """Refuse a request."""
    raise Problem(400, code, message)


def checked_word(word: object) -> str:
    """Return a word that may be asked for, of any length: bodies and heads are bounded."""
    if not isinstance(word, str):
        refuse("a word is a string")
    try:
        word.encode()
    except UnicodeEncodeError:
        refuse("a word has to be valid Unicode")
    return word


def body_fields(body: bytes, limits: Limits) -> Fields:
    """Return the fields of a JSON object."""
    try:
        values = _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError):
        refuse("the body is not JSON", "bad_json")
    if not isinstance(values, dict):
        refuse("the body is not a JSON object", "bad_json")
    return Fields(values, limits)


def query_fields(pairs: list[tuple[str, str]], limits: Limits) -> Fields:
    """Return the fields of a query."""
    values = dict(pairs)
    if len(values) < len(pairs):
        refuse("a parameter stands here twice")
    return Fields(values, limits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
