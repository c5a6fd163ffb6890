"""TOML and JSON from a file or a caller, parsed within bounds, and values made fit for JSON.

The TOML parser of the standard library needs memory by the square of the parts of a dotted key, one
stack frame for each level of nesting, and accepts numbers of any length. This module measures a
text before it is parsed, and bounds the depth of the values for the code that walks through them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["LONGEST_TOML", "jsonable", "parse_json", "parse_toml"]

LONGEST_TOML = 1 << 20  # bytes
_DEEPEST = 32  # levels of TOML, and parts of a dotted key
_DEEPEST_JSON = 256  # levels; code that walks through them takes a few stack frames for each
_MOST_PARTS = 1 << 16  # keys, parts of dotted keys, tables, arrays and values
_INT64 = range(-(2**63), 2**63)

# Strings and comments are matched as the parser reads them, so that text in them does not count as
# keys. An unterminated string reaches as far as it may span; the parser fails there as well.
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5}|\Z)'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+"
    r"|[][{}.=,\n]",
    re.DOTALL,
)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML that may be hostile; raise ValueError if it is wrong or exceeds a bound."""
    nbytes = len(text) if len(text) > LONGEST_TOML else len(text.encode())
    if nbytes > LONGEST_TOML:
        raise ValueError(f"the TOML has {nbytes} bytes, more than {LONGEST_TOML}")
    _measure(text)
    import tomllib

    values = tomllib.loads(text, parse_float=_finite)
    for level in _levels(values, _DEEPEST):
        if any(isinstance(item, int) and item not in _INT64 for item in level):
            raise ValueError("the TOML contains an integer of more than 64 bits")
    return values


def parse_json(
    text: str | bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse JSON that may be hostile; raise ValueError if it is wrong or nested too deeply."""
    import json

    if isinstance(text, bytes):
        text = text.decode()
    try:
        value = json.loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise _too_deep(_DEEPEST_JSON) from None
    if text.count("{") + text.count("[") > _DEEPEST_JSON:  # else it cannot be too deep
        for _ in _levels(value, _DEEPEST_JSON):
            pass
    return value


def jsonable(value: Any) -> Any:
    """Return a value from a file in a form that JSON can hold."""
    if isinstance(value, dict):
        return {jsonable(str(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, int | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value).encode(errors="replace").decode()


def _measure(text: str) -> None:
    """Raise ValueError if the parts of a text are too many or nested too deeply."""
    depth = n_dots = n_parts = 0
    for found in _TOKEN.finditer(text):
        piece = found[0]
        if piece == ".":
            n_dots += 1
        elif piece in "[{":
            depth += 1
            n_dots = 0
        elif piece in "]}":
            depth -= 1
        elif piece in "=,\n":
            n_dots = 0
        else:
            continue
        n_parts += piece in "[{.=,"
        if max(depth, n_dots + 1) > _DEEPEST:
            raise _too_deep(_DEEPEST)
        if n_parts > _MOST_PARTS:
            raise ValueError(f"the TOML must have at most {_MOST_PARTS} keys and values")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is not a finite number")
    return value


def _levels(value: Any, most: int) -> Iterator[list[Any]]:
    """Yield the items of each level of nested values, from the top down."""
    level = [value]
    for _ in range(most + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return
        level = [
            item for each in level for item in (each.values() if isinstance(each, dict) else each)
        ]
        yield level
    raise _too_deep(most)


def _too_deep(most: int) -> ValueError:
    return ValueError(f"values must be nested at most {most} levels deep")
