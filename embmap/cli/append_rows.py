"""``embmap append``: rows of one file appended to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import embmap
from embmap.cli.options import ColumnOption, VocabOption
from embmap.cli.printing import complain
from embmap.vectors.streamed import Selected

__all__ = ["append"]


def append(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The CVC file to extend.")],
    rows: Annotated[
        Path, typer.Argument(metavar="ROWS", help="An embedding file with the rows to append.")
    ],
    section: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Make the new rows a section with this metadata; may be repeated.",
        ),
    ] = None,
    chunk_rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of rows in a new chunk.")
    ] = 100_000,
    column: ColumnOption = None,
    vocab: VocabOption = None,
) -> None:
    """Append the rows of another file to a CVC file.

    If FILE.words.txt is beside FILE, it gets the words of ROWS.
    """
    about = dict(_split(condition) for condition in section or ())
    beside = Path(f"{rows}.words.txt")
    if vocab is None and beside.is_file():
        vocab = beside
    has_words = Path(f"{file}.words.txt").is_file()
    with embmap.open(rows, vocab=vocab) as source, embmap.progress_bar() as step:
        columns = source.columns if isinstance(source, embmap.cvc.CvcFile) else {}
        if column is not None and column not in columns:
            raise ValueError(f"{rows} has no column {column!r}")
        values = source.vectors if column is None else columns[column]
        n, words = len(source), source.vocab
        if values is None and not columns:
            raise ValueError(f"{rows} has no vectors")
        if values is not None and len(values) > n:  # the others belong to n-grams
            values = Selected(values, range(n))
        embmap.cvc.append(
            file,
            columns if values is None else values,
            words=words if has_words else None,
            section=about or None,
            chunk_rows=chunk_rows,
            progress=step,
        )
    with embmap.open(file) as opened:
        typer.echo(f"{file}: {len(opened)} rows, {n} of them new")
    if words is not None and not has_words:
        complain(f"{file} does not hold the words of {rows}, because its own rows have no words")


def _split(condition: str) -> tuple[str, str]:
    """Return the key and the value of an option."""
    key, equals, value = condition.partition("=")
    if not equals:
        raise ValueError(f"--section must be KEY=VALUE, not {condition!r}")
    return key, value
