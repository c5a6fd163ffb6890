"""The command ``embmap``: a thin layer over the public face.

Tables for people on a terminal, JSON for programs. Exit status 0; 1 when a word is unknown or a
check found a problem; 2 for a bad file or bad usage. An error is one line on stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

import embmap
from embmap.atomic_write import replacing

__all__ = ["run"]

_SHOWN = 6  # parts named by info; ls lists all

app = typer.Typer(
    help="Open embedding files without reading them.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An embedding file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
LayoutOption = Annotated[
    str | None, typer.Option(help="Read the file as this dialect of its format.")
]


class Backend(StrEnum):
    """How the file is read."""

    MMAP = "mmap"
    READ = "read"


class VectorFormat(StrEnum):
    """How vectors are printed."""

    TEXT = "text"
    JSON = "json"
    NPY = "npy"


BackendOption = Annotated[Backend, typer.Option(help="Map the file or read parts of it.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"embmap {embmap.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@app.command()
def info(
    file: FileArgument,
    as_json: JsonOption = False,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """Say what a file is, from its header alone."""
    with embmap.open(file, layout=layout, backend=backend.value) as opened:
        facts = opened.info()
    if as_json:
        _print_json(facts)
        return
    _print_rows((), list(_flat(facts)))


@app.command()
def ls(
    file: FileArgument,
    as_json: JsonOption = False,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """List the parts of a file and where they lie."""
    with embmap.open(file, layout=layout, backend=backend.value) as opened:
        parts = opened.info()["chunks"]
    if as_json:
        _print_json(parts)
        return
    names = tuple(parts[0]) if parts else ()
    _print_rows(names, [tuple(_text(value) for value in part.values()) for part in parts])


@app.command()
def get(
    file: FileArgument,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD...", help="Words; - reads them from stdin.")
    ] = None,
    row: Annotated[list[int] | None, typer.Option(help="A row number; may be repeated.")] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="The rows of CVC sections with this metadata."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="A column of a CVC file of several.")] = None,
    format: Annotated[VectorFormat, typer.Option(help="How to print.")] = VectorFormat.TEXT,
    output: Annotated[Path | None, typer.Option(help="Write here and not to stdout.")] = None,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """Print the vectors of words or rows."""
    if not words and not row and not section:
        raise typer.BadParameter("give a WORD, --row or --section")
    if words == ["-"]:
        words = sys.stdin.read().removesuffix("\n").split("\n") if sys.stdin else []
        words = [] if words == [""] else [word.removesuffix("\r") for word in words]
    if output is not None and output.exists() and output.samefile(file):
        raise typer.BadParameter("--output is the embedding file itself")
    with embmap.open(file, layout=layout, backend=backend.value) as opened:
        found: list[tuple[str | int, Any]] = [(word, opened.get(word)) for word in words or ()]
        rows = [*(row or ()), *(_section_rows(opened, section) if section else ())]
        matrix = _column(opened, column)
        for number in rows:
            try:
                found.append((number, opened[number] if matrix is None else matrix[number]))
            except IndexError:
                found.append((number, None))
        unknown = [key for key, vector in found if vector is None]
        known = [(key, vector) for key, vector in found if vector is not None]
        if format is VectorFormat.NPY and unknown:
            known = []  # an array with rows left out would be taken for a whole one
        if known or not unknown:
            dim = opened.dim if matrix is None else matrix.shape[1]
            _write_vectors(known, format, output, (dim, opened.dtype))
    for key in unknown:
        what = f"no vector for {key!r}" if isinstance(key, str) else f"no row {key}"
        _complain(f"{file}: {what}")
    if unknown:
        raise typer.Exit(1)


def _section_rows(opened: embmap.EmbeddingFile, conditions: list[str]) -> list[int]:
    """Return the rows of the sections that a CVC file has under the conditions."""
    if not isinstance(opened, embmap.cvc.CvcFile):
        raise typer.BadParameter(f"{opened.format} files have no sections")
    match: dict[str, Any] = {}
    for condition in conditions:
        key, equals, text = condition.partition("=")
        if not equals:
            raise typer.BadParameter(f"--section takes KEY=VALUE, not {condition!r}")
        match[key] = text
    rows = opened.section(**match)
    if not rows.size:  # numbers and truth values are written as JSON
        with contextlib.suppress(ValueError):
            rows = opened.section(**{key: json.loads(text) for key, text in match.items()})
    if not rows.size:
        raise typer.BadParameter(f"no section has {', '.join(conditions)}")
    return [int(number) for number in rows]


def _column(opened: embmap.EmbeddingFile, name: str | None) -> embmap.Matrix | None:
    """Return the column that is asked for, if one is."""
    if name is None:
        return None
    if not isinstance(opened, embmap.cvc.CvcFile) or name not in opened.columns:
        raise typer.BadParameter(f"there is no column {name!r}")
    return opened.columns[name]


def _write_vectors(
    found: Sequence[tuple[str | int, Any]],
    format: VectorFormat,
    output: Path | None,
    kind: tuple[int, Any],
) -> None:
    if format is VectorFormat.NPY:
        vectors = np.empty((0, kind[0]), kind[1])
        if found:
            vectors = np.stack([vector for _, vector in found])
        if output is not None:
            with replacing(output) as binary:
                np.save(binary, vectors)
        elif sys.stdout.isatty():
            raise typer.BadParameter("npy is binary; redirect it or give --output")
        else:
            np.save(sys.stdout.buffer, vectors)
        return
    with _text_output(output) as out:
        if format is VectorFormat.JSON:
            values = [
                {"word" if isinstance(key, str) else "row": key, "vector": _numbers(vector)}
                for key, vector in found
            ]
            out.write(_json(values) + "\n")
            return
        for key, vector in found:
            # numpy prints the shortest digits that give the same number back in the file's type.
            out.write(f"{key} {' '.join(map(str, vector))}\n")


@contextmanager
def _text_output(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
    else:
        with replacing(output) as binary:
            out = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
            yield out
            out.flush()
            out.detach()


@app.command()
def verify(
    file: FileArgument,
    as_json: JsonOption = False,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """Check everything in a file: words, sizes, values, its index."""
    with (
        embmap.open(file, layout=layout, backend=backend.value) as opened,
        embmap.progress_bar() as step,
    ):
        report = opened.verify(step)
    if as_json:
        problems = [problem._asdict() for problem in report.problems]
        _print_json({"ok": report.ok, "checked": report.checked, "problems": problems})
    else:
        for severity, offset, message in report.problems:
            where = "" if offset is None else f" (byte {offset})"
            typer.echo(f"{severity}: {message}{where}")
        verdict = "ok" if report.ok else "damaged"
        typer.echo(f"{file}: {verdict}; checked {', '.join(report.checked)}")
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def index(
    file: FileArgument,
    output: Annotated[Path | None, typer.Option(help="Where to write it; FILE.embx.")] = None,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """Write a word index beside a file, so that look-ups need not scan it."""
    with (
        embmap.open(file, layout=layout, backend=backend.value, index="memory") as opened,
        embmap.progress_bar() as step,
    ):
        try:
            path = opened.build_index(output, progress=step)
        except ValueError as error:
            if isinstance(error, embmap.EmbmapError):
                raise
            raise typer.BadParameter(str(error)) from None
        n_words = len(opened)
    typer.echo(f"{path}: {n_words} words, {path.stat().st_size} bytes")


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Keep the files here; a temporary folder by default.")
    ] = None,
) -> None:
    """Make a real embedding from this Python's docstrings and look words up in it."""
    from embmap.demo.tour import tour

    tour(_console(), folder)


def run(arguments: Sequence[str]) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str
        What stands after ``embmap`` on the command line.

    Returns
    -------
    int
        0; 1 when a word is unknown or a check failed; 2 for a bad file or usage.
    """
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        status = command.main(list(arguments), prog_name="embmap", standalone_mode=False)
        sys.stdout.flush()
    except (embmap.EmbmapError, ImportError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be said on it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}")
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted")
    except Exception as error:
        message = getattr(error, "format_message", None)  # click's, or typer's own copy of click
        if message is None:
            if isinstance(error, ValueError):  # an argument that the library refuses
                return _fail(str(error))
            raise
        return _fail(f"{message()} (embmap --help)")
    return status if isinstance(status, int) else 0


def _fail(message: str) -> int:
    _complain(message)
    return 2


def _complain(message: str) -> None:
    line = " ".join(message.split())
    sys.stderr.write(f"embmap: {line}\n")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _complain(f"warning: {message}")


def _print_rows(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table: fitted to a terminal, whole and aligned where there is none."""
    console = _console()
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


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _print_json(value: Any) -> None:
    typer.echo(_json(value, indent=2))


def _json(value: Any, indent: int | None = None) -> str:
    """Return JSON, with escapes where stdout cannot print every character."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return json.dumps(value, indent=indent, ensure_ascii=encoding != "utf8", allow_nan=False)


def _numbers(vector: Any) -> list[float | None]:
    """Return a vector's numbers; JSON has none for those that are not finite."""
    return [x if math.isfinite(x) else None for x in vector.tolist()]


def _flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            names = [str(item.get("name", item)) for item in value[:_SHOWN]]
            more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
            yield prefix + name, ", ".join(names) + more
        elif value is not None:
            yield prefix + name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return str(value)
