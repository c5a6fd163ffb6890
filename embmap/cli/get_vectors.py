"""``embmap get``: the vectors of words and rows."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import embmap
from embmap.cli.options import (
    BackendOption,
    ColumnOption,
    FileArgument,
    LayoutOption,
    SectionOption,
    TimeOption,
    VocabOption,
)
from embmap.cli.printing import complain, dump_json, open_text, replace_non_finite
from embmap.cli.trajectory_related_changes import choose_time_step
from embmap.io.atomic_write import refuse_overwriting, replacing

__all__ = ["find_section_rows", "get"]

_Found = list[tuple[str | int, Any]]  # a word or row, and its vector; None if there is no vector


class VectorFormat(StrEnum):
    """How vectors are printed."""

    TEXT = "text"
    JSON = "json"
    NPY = "npy"


def get(
    file: FileArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="Words; - reads them from stdin, one per line."),
    ] = None,
    row: Annotated[
        list[int] | None, typer.Option(metavar="N", help="The number of a row; may be repeated.")
    ] = None,
    section: SectionOption = None,
    column: ColumnOption = None,
    time: TimeOption = None,
    format: Annotated[VectorFormat, typer.Option(help="How to print.")] = VectorFormat.TEXT,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write.", show_default="stdout"),
    ] = None,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Print the vectors of words or rows."""
    if not words and not row and not section:
        raise ValueError("give a WORD, --row or --section")
    if words == ["-"]:
        words = _read_words()
    if output is not None:
        refuse_overwriting([output], [file, *([vocab] if vocab else [])])
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        if column is None and isinstance(opened, embmap.cvc.CvcFile) and opened.vectors is None:
            raise ValueError(
                f"{file} has several columns; choose one with --column: {', '.join(opened.columns)}"
            )
        at = choose_time_step(opened, time)
        matrix = at.vectors if column is None else _choose_column(opened, column)
        found: _Found
        if column is None:
            found = [(word, at.get(word)) for word in words or ()]
        else:
            places = at.find(words or ()).tolist()
            found = [
                (word, None if matrix is None or place < 0 else matrix[place])
                for word, place in zip(words or (), places, strict=True)
            ]
        rows = [*(row or ()), *(find_section_rows(opened, section) if section else ())]
        for number in rows:
            try:
                found.append((number, at[number] if matrix is None else matrix[number]))
            except IndexError:
                found.append((number, None))
        hint = "; the file contains no words, give --vocab" if at.vocab is None else ""
        unknown = [key for key, vector in found if vector is None]
        known = [(key, vector) for key, vector in found if vector is not None]
        if format is VectorFormat.NPY and unknown:
            known = []  # the rows of the array could not be told apart
        if known or not unknown:
            shape = (0, at.dim if matrix is None else matrix.shape[1])
            _write_vectors(known, format, output, np.empty(shape, at.dtype))
    for key in unknown:
        what = f"no vector for {key!r}{hint}" if isinstance(key, str) else f"no row {key}"
        complain(f"{file}: {what}")
    if unknown:
        raise typer.Exit(1)


def _read_words() -> list[str]:
    """Return the lines of stdin, which end at newlines only."""
    text = sys.stdin.read().removesuffix("\n") if sys.stdin else ""
    return [line.removesuffix("\r") for line in text.split("\n")] if text else []


def find_section_rows(opened: embmap.EmbeddingFile, conditions: list[str]) -> list[int]:
    """Return the rows of the sections and chunks of a CVC file that meet all conditions."""
    if not isinstance(opened, embmap.cvc.CvcFile):
        raise ValueError(f"{opened.format} files have no sections")
    match: dict[str, Any] = {}
    for condition in conditions:
        key, equals, text = condition.partition("=")
        if not equals:
            raise ValueError(f"--section must be KEY=VALUE, not {condition!r}")
        match[key] = text
    rows = opened.section(**match)
    if not rows.size:  # numbers and truth values are written as JSON
        with contextlib.suppress(ValueError, RecursionError):
            rows = opened.section(**{key: json.loads(text) for key, text in match.items()})
    if not rows.size:
        raise ValueError(f"no section and no chunk has {', '.join(conditions)}")
    return [int(number) for number in rows]


def _choose_column(opened: embmap.EmbeddingFile, name: str) -> embmap.Matrix:
    """Return a column of a CVC file."""
    if not isinstance(opened, embmap.cvc.CvcFile):
        raise ValueError(f"{opened.format} files have no columns")
    columns = opened.columns
    try:
        return columns[name]
    except KeyError:
        known = ", ".join(columns)
        raise ValueError(f"--column must be one of {known}, not {name!r}") from None


def _write_vectors(
    found: Sequence[tuple[str | int, Any]],
    format: VectorFormat,
    output: Path | None,
    nothing: Any,
) -> None:
    """Write vectors; without any, an .npy file holds the array `nothing`."""
    if format is VectorFormat.NPY:
        vectors = np.stack([vector for _, vector in found]) if found else nothing
        if output is not None:
            with replacing(output) as binary:
                np.save(binary, vectors)
        elif sys.stdout.isatty():
            raise ValueError("npy is binary; redirect it or give --output")
        else:
            np.save(sys.stdout.buffer, vectors)
        return
    with open_text(output) as out:
        if format is VectorFormat.JSON:
            values = [
                {
                    "word" if isinstance(key, str) else "row": key,
                    "vector": replace_non_finite(vector.tolist()),
                }
                for key, vector in found
            ]
            out.write(dump_json(values) + "\n")
            return
        for key, vector in found:
            # numpy prints the shortest digits that give the same number back in the file's type.
            out.write(f"{key} {' '.join(map(str, vector))}\n")
