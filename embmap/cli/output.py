"""What commands print: tables for people, JSON for programs, one line for an error."""

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

from embmap.io.atomic_write import replacing

__all__ = [
    "as_json",
    "as_numbers",
    "as_text",
    "complain",
    "flat",
    "make_console",
    "print_json",
    "print_rows",
    "text_output",
]

_SHOWN = 6  # parts named by info; ls lists all


def print_rows(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table: fitted to a terminal, whole and aligned where there is none."""
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


def make_console() -> Console:
    """Return a console that prints text as it is."""
    return Console(highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(as_json(value, indent=2))


def as_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with escapes where stdout cannot print every character."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return json.dumps(value, indent=indent, ensure_ascii=encoding != "utf8", allow_nan=False)


def as_numbers(vector: Any) -> list[float | None]:
    """Return a vector's numbers for JSON."""
    return [x if math.isfinite(x) else None for x in vector.tolist()]


def flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return facts as lines of a table."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            names = [str(item.get("name", item)) for item in value[:_SHOWN]]
            more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
            yield prefix + name, ", ".join(names) + more
        elif value is not None:
            yield prefix + name, as_text(value)


def as_text(value: Any) -> str:
    """Return a value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return str(value)


@contextmanager
def text_output(output: Path | None) -> Iterator[TextIO]:
    """Open what text is written to."""
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
