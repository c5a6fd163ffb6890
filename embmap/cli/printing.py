"""Output of the commands: tables for people, JSON for programs, one line for an error."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.table import Column, Table

import embmap
from embmap.io.atomic_write import replacing

__all__ = [
    "complain",
    "dump_json",
    "flatten",
    "format_value",
    "make_console",
    "open_text",
    "print_json",
    "print_neighbors",
    "print_neighbors_of_each",
    "print_rows",
    "replace_non_finite",
]

_SHOWN = 6  # parts named by info; ls lists all
_HEADINGS = {"dot": "dot product", "change": "change of the dot product"}


def print_rows(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table: fitted to a terminal, or in aligned lines of any length."""
    console = make_console()
    if console.is_terminal:
        columns = [Column(name, overflow="fold") for name in names or ("", "")]
        table = Table(*columns, show_header=bool(names), box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    lines = [names, *rows] if names else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        typer.echo("  ".join(cells).rstrip())


def print_neighbors(
    found: list[embmap.Neighbor],
    as_json: bool,
    score: str,
    *,
    sign: int = 1,
    when: str | None = None,
) -> None:
    """Print words with their rows and `sign` times their scores, which are named `score`.

    `when` is the time that the heading names.
    """
    if as_json:
        print_json(_list_neighbors(found, score, sign))
        return
    heading = _HEADINGS.get(score, score)
    heading = heading if when is None else f"{heading}, {when}"
    print_rows(("word", "row", heading), _format_neighbors(found, sign))


def print_neighbors_of_each(
    found: dict[str, list[embmap.Neighbor]], as_json: bool, score: str
) -> None:
    """Print the neighbors of each of several words."""
    if as_json:
        print_json({word: _list_neighbors(each, score) for word, each in found.items()})
        return
    rows = [(word, *row) for word, each in found.items() for row in _format_neighbors(each)]
    print_rows(("of", "word", "row", _HEADINGS.get(score, score)), rows)


def _list_neighbors(
    found: list[embmap.Neighbor], score: str, sign: int = 1
) -> list[dict[str, Any]]:
    return [
        {"row": row, "word": word, score: replace_non_finite([sign * value])[0]}
        for row, word, value in found
    ]


def _format_neighbors(found: list[embmap.Neighbor], sign: int = 1) -> list[tuple[str, str, str]]:
    return [
        (str(row) if word is None else word, str(row), f"{sign * value:.4f}")
        for row, word, value in found
    ]


def make_console() -> Console:
    """Return a console that prints text as it is."""
    return Console(highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(dump_json(value, indent=2))


def dump_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with escapes if stdout cannot print every character."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return json.dumps(value, indent=indent, ensure_ascii=encoding != "utf8", allow_nan=False)


def replace_non_finite(numbers: list[float]) -> list[float | None]:
    """Return numbers for JSON, with None for NaN and infinities."""
    return [x if math.isfinite(x) else None for x in numbers]


def flatten(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return nested facts as pairs of a dotted name and a text."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            names = [str(item.get("name", item)) for item in value[:_SHOWN]]
            more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
            yield prefix + name, ", ".join(names) + more
        elif value is not None and value != []:
            yield prefix + name, format_value(value)


def format_value(value: Any) -> str:
    """Return a value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return str(value)


@contextmanager
def open_text(output: Path | None) -> Iterator[TextIO]:
    """Open a file for UTF-8 text, or stdout if there is no path."""
    if output is None:
        yield sys.stdout
    else:
        with replacing(output) as binary:
            out = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
            yield out
            out.flush()
            out.detach()


def complain(message: str) -> None:
    """Print one line on stderr."""
    line = " ".join(message.split())
    sys.stderr.write(f"embmap: {line}\n")
