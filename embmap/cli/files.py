"""Commands for files of every format."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import embmap
from embmap.cli.options import (
    Backend,
    BackendOption,
    FileArgument,
    JsonOption,
    LayoutOption,
    VocabOption,
)
from embmap.cli.output import (
    as_json,
    as_numbers,
    as_text,
    complain,
    flat,
    make_console,
    print_json,
    print_rows,
    text_output,
)
from embmap.cli.over_time import at_time, dynamic_file
from embmap.cli.serving import serve as serve_files
from embmap.io.atomic_write import refuse_overwriting, replacing
from embmap.io.parsing import parse_json

__all__ = ["app"]

_SLICES = "docstrings-slices.dwe"

app = typer.Typer(
    help="Open embedding files without reading them.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


class VectorFormat(StrEnum):
    """How vectors are printed."""

    TEXT = "text"
    JSON = "json"
    NPY = "npy"


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
        print_json(facts)
        return
    print_rows((), list(flat(facts)))


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
        print_json(parts)
        return
    names = tuple(parts[0]) if parts else ()
    print_rows(names, [tuple(as_text(value) for value in part.values()) for part in parts])


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
    time: Annotated[
        int | None, typer.Option("--time", "-t", help="A time step of a DWE file; -1 is the last.")
    ] = None,
    format: Annotated[VectorFormat, typer.Option(help="How to print.")] = VectorFormat.TEXT,
    output: Annotated[Path | None, typer.Option(help="Write here and not to stdout.")] = None,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """Print the vectors of words or rows."""
    if not words and not row and not section:
        raise typer.BadParameter("give a WORD, --row or --section")
    if words == ["-"]:
        words = sys.stdin.read().removesuffix("\n").split("\n") if sys.stdin else []
        words = [] if words == [""] else [word.removesuffix("\r") for word in words]
    if output is not None:
        refuse_overwriting([output], [file, *([vocab] if vocab else [])])
    with embmap.open(file, layout=layout, backend=backend.value, vocab=vocab) as opened:
        at = opened.at() if time is None else at_time(dynamic_file(opened), time)
        matrix = at.vectors if column is None else _column(opened, column)
        found: list[tuple[str | int, Any]] = []
        for word in words or ():
            if column is None:
                found.append((word, at.get(word)))
            else:
                place = int(at.find([word])[0])
                found.append((word, None if matrix is None or place < 0 else matrix[place]))
        rows = [*(row or ()), *(_section_rows(opened, section) if section else ())]
        for number in rows:
            try:
                found.append((number, at[number] if matrix is None else matrix[number]))
            except IndexError:
                found.append((number, None))
        unknown = [key for key, vector in found if vector is None]
        known = [(key, vector) for key, vector in found if vector is not None]
        if format is VectorFormat.NPY and unknown:
            known = []  # an array with rows left out would be taken for a whole one
        if known or not unknown:
            dim = at.dim if matrix is None else matrix.shape[1]
            _write_vectors(known, format, output, (dim, at.dtype))
    for key in unknown:
        what = f"no vector for {key!r}" if isinstance(key, str) else f"no row {key}"
        complain(f"{file}: {what}")
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
            rows = opened.section(**{key: parse_json(text) for key, text in match.items()})
    if not rows.size:
        raise typer.BadParameter(f"no section has {', '.join(conditions)}")
    return [int(number) for number in rows]


def _column(opened: embmap.EmbeddingFile, name: str) -> embmap.Matrix:
    """Return a column of a CVC file."""
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
    with text_output(output) as out:
        if format is VectorFormat.JSON:
            values = [
                {"word" if isinstance(key, str) else "row": key, "vector": as_numbers(vector)}
                for key, vector in found
            ]
            out.write(as_json(values) + "\n")
            return
        for key, vector in found:
            # numpy prints the shortest digits that give the same number back in the file's type.
            out.write(f"{key} {' '.join(map(str, vector))}\n")


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
        found = {"ok": report.ok, "checked": report.checked, "unchecked": report.unchecked}
        print_json(found | {"problems": problems})
    else:
        for severity, offset, message in report.problems:
            where = "" if offset is None else f" (byte {offset})"
            typer.echo(f"{severity}: {message}{where}")
        verdict = "ok" if report.ok else "damaged"
        typer.echo(f"{file}: {verdict}; checked {', '.join(report.checked)}")
        for why in report.unchecked:
            typer.echo(f"not checked: {why}")
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
    serve: Annotated[
        bool, typer.Option("--serve", help="Then open the files in a page on this machine.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page.")] = 8808,
) -> None:
    """Make a real embedding from this Python's docstrings and look words up in it."""
    from embmap.demo.tour import tour

    with contextlib.ExitStack() as stack:
        if folder is None and serve:
            temporary = tempfile.TemporaryDirectory(prefix="embmap-demo-")
            folder = Path(stack.enter_context(temporary))
        tour(make_console(), folder)
        if folder is not None and serve:
            serve_files(
                [str(folder / name) for name in ("docstrings-subwords.fifu", _SLICES)],
                port=port,
                vocab=[f"{Path(_SLICES).stem}={folder / Path(_SLICES).stem}.txt"],
            )
        elif not serve:
            typer.echo("\nembmap demo --serve opens these files in a page.")
