"""``embmap index``: the word index of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import embmap
from embmap.cli.options import BackendOption, FileArgument, LayoutOption

__all__ = ["index"]


def index(
    file: FileArgument,
    output: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The index to write.", show_default="FILE.embx"),
    ] = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Write a word index, for quick first look-ups.

    With the index, a process finds words without scanning them.
    """
    with (
        embmap.open(file, layout=layout, backend=backend, index="memory") as opened,
        embmap.progress_bar() as step,
    ):
        path = opened.build_index(output, progress=step)
        n_words = len(opened)
    typer.echo(f"{path}: {n_words} words, {path.stat().st_size} bytes")
