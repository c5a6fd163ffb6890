"""Hostile JSON and TOML: documents of other values or structure, and what only looks like one."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from typing import Any

__all__ = ["hostile_json", "hostile_toml"]

_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 7, 4096, 2**31, 2**32, 2**53, -(2**63), 2**63, 2**64),
    *(10**30, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "0", "float32", "fp16"),
    *("int8", "none", "lossless", "\0", "\ud800", "x" * 300, [], {}, [[]], [0], {"": 0}),
    *([{}] * 3, {"rows": 1}, {"offset": 0, "size": 4}),
]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a document: what holds it, and its key there."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return found
    for key in keys:
        found += [(value, key), *_places(value[key])]
    return found


def _nested(rng: random.Random) -> Any:
    value: Any = 0
    for _ in range(rng.choice((3, 20, 28, 40, 90))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _changed(rng: random.Random, document: Any) -> Any:
    """The document with one value changed, lost, moved or repeated."""
    places = _places(document)
    if not places:
        return rng.choice(_VALUES)
    holder, key = rng.choice(places)
    other, other_key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = copy.deepcopy(other[other_key])
    elif kind == 2 and isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 2, 100))
    elif kind == 3 and isinstance(holder, dict):
        holder[rng.choice(("", "x", f"{key} ", "ü", str(other_key)))] = holder.pop(key)
    elif kind == 4:
        holder[key] = _nested(rng)
    elif isinstance(holder[key], int) and kind < 7:
        other = rng.choice((-1, 1, 2, holder[key], 2**31, 2**32, -(2**32), 0.5))
        with contextlib.suppress(OverflowError):  # a fraction of a number that no float holds
            holder[key] += other
    else:
        holder[key] = rng.choice(_VALUES)
    return document


def hostile_json(rng: random.Random, text: bytes) -> bytes:
    """JSON that no valid file contains, or almost JSON."""
    document = json.loads(text)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        document = _changed(rng, copy.deepcopy(document))
    made = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    out = made.encode("utf-8", "surrogatepass")
    kind = rng.randrange(16)
    if kind == 0:
        place = out.find(b'"', rng.randrange(len(out)))
        out = out[: place + 1] + rng.choice((b"\xff", b"\\", b'"', b"\0", b"\n")) + out[place + 1 :]
    elif kind == 1 and isinstance(document, dict) and document:
        key = json.dumps(rng.choice(list(document)))
        out = f"{{{key}: {json.dumps(rng.choice(_VALUES))},".encode() + out[1:]
    elif kind == 2:
        out = out.replace(
            b": ", b": " + rng.choice((b" ", b"-", b"+", b"0", b"1e", b"9" * 5000)), 1
        )
    elif kind == 3:
        out = rng.choice((b"\xef\xbb\xbf", b" " * 100, b"[")) + out
    elif kind == 4:
        out = out[: rng.randrange(len(out) + 1)]
    return out


_TOML = [
    *("", "a", "a =", "a = 1\na = 2", "[a]\n[a]", "a.b = 1\n[a.b]", "a = {b = 1}\n[a.c]\nd = 1"),
    *('"" = 1', "a = 1e400", "a = nan", "a = 0x" + "f" * 300, "a = " + "9" * 5000),
    *("a = 1979-05-27T07:32:00Z", "a = 25:61:61", "a = 0000-00-00", 'a = "\\ud800"', "a = '''"),
    *('a = """' + "x" * 300 + '"""', "a = " + "[" * 2000, "a = " + "[" * 50 + "]" * 50),
    *("a" + ".a" * 300 + " = 1", "[" + "a." * 300 + "a]", "a = \ufeff1", "\ufeffa = 1", "a = 1\r"),
    *("a = {" * 300, "a = [1, 'b', {c = 2}]", "# \0", "[[a]]\n[[a.b]]\n[a.b.c]", "a = true\tfalse"),
]


def hostile_toml(rng: random.Random, text: str) -> bytes:
    """TOML that no valid file contains, or almost TOML."""
    made = rng.choice((text, rng.choice(_TOML), f"{text}\n{rng.choice(_TOML)}"))
    out = made.encode("utf-8", "surrogatepass")
    if rng.random() < 0.5 and out:
        place = rng.randrange(len(out))
        new = rng.choice(
            (b"", b"\xff", b"=", b'"', b"[", b"]", b"\n", b"\0", b"'", rng.randbytes(2))
        )
        out = out[:place] + new + out[place + rng.randrange(2) :]
    return out


_NUMBERS = [
    *(
        "nan",
        "inf",
        "-inf",
        "1e999",
        "1e-999",
        "1E5",
        "0x10",
        "1_0",
        "--1",
        "+-1",
        "1.2.3",
        "",
        "e",
    ),
    *(
        "٣",
        "\uff11",
        "1,5",
        "9" * 400,
        "0." + "0" * 400 + "1",
        "NaN()",
        "Infinity",
        "true",
        "1j",
        ".",
        "-",
    ),
]
_SEPARATORS = [
    b"\t",
    b"  ",
    b"\xc2\xa0",
    b"\0",
    b"\r\n",
    b"\n",
    b"\n\n",
    b"\v",
    b"\xe2\x80\xa8",
    b"",
]


def hostile_text(rng: random.Random, text: bytes) -> bytes:
    """A text of words and numbers with others among them, or with other lines and blanks."""
    lines = text.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        number = rng.randrange(len(lines))
        cells = lines[number].split(b" ")
        cell = rng.randrange(len(cells))
        kind = rng.randrange(9)
        if kind < 3:
            cells[cell] = rng.choice(_NUMBERS).encode()
        elif kind == 3:
            del cells[cell]
        elif kind == 4:
            cells.insert(cell, rng.choice((b"1", b"x", b"\xff", b"", b"\xef\xbb\xbf")))
        elif kind == 5:
            cells[cell] = cells[cell] + rng.choice(_SEPARATORS) + cells[cell]
        elif kind == 6:
            cells[cell] = rng.choice((b"\xff", b"\xc3\x28", b"x" * 3000, b"\xed\xa0\x80", b"\0"))
        elif kind == 7:
            lines.insert(rng.randrange(len(lines)), lines[number])
        else:
            lines.pop(number)
            if not lines:
                return b""
            continue
        lines[min(number, len(lines) - 1)] = b" ".join(cells)
    return rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\r")).join(lines)
