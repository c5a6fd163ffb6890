"""``embmap index``: the files beside a file that make look-ups and searches quicker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

import embmap
from embmap.cli.options import BackendOption, FileArgument, LayoutOption, VocabOption, choose
from embmap.progress import Progress

__all__ = ["index"]

Kind = Literal["words", "sketch", "ann"]
_KINDS = "Find words (FILE.embx), or search exactly (FILE.sketch) or approximately (FILE.usearch)."


def index(
    file: FileArgument,
    output: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The index to write.", show_default="FILE.embx"),
    ] = None,
    kind: Annotated[Kind, choose(get_args(Kind), _KINDS)] = "words",
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Write an index beside a file: of its words, for quick first look-ups, or of its vectors.

    With an index of words, a process finds words without scanning them. With a sketch, exact
    searches read a byte for each number of a vector.
    """
    with (
        embmap.open(file, layout=layout, backend=backend, vocab=vocab, index="memory") as opened,
        embmap.progress_bar() as step,
    ):
        builds: dict[Kind, Callable[[Path | None, Progress | None], Path]] = {
            "words": lambda path, step: opened.build_index(path, progress=step),
            "sketch": lambda path, step: opened.build_sketch(path, progress=step),
            "ann": lambda path, step: opened.build_ann(path, progress=step),
        }
        path = builds[kind](output, step)
        n = len(opened)
    typer.echo(f"{path}: {n} {'words' if kind == 'words' else 'rows'}, {path.stat().st_size} bytes")
