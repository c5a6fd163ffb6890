"""``embmap demo``: an embedding of this Python's docstrings, made, written and looked at."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from embmap.cli.printing import make_console
from embmap.cli.serve_files import PortOption, serve
from embmap.demo import tour

__all__ = ["demo"]


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Keep the files here.", show_default="a temporary folder"
        ),
    ] = None,
    serve_files: Annotated[
        bool, typer.Option("--serve", help="Then serve the files, with a page to explore them.")
    ] = False,
    port: PortOption = 8808,
) -> None:
    """Make an embedding from docstrings and explore it."""
    with contextlib.ExitStack() as stack:
        if folder is None and serve_files:
            temporary = tempfile.TemporaryDirectory(prefix="embmap-demo-")
            folder = Path(stack.enter_context(temporary))
        tour.tour(make_console(), folder)
        if folder is not None and serve_files:
            slices = folder / tour.SLICES
            serve(
                [str(folder / tour.SUBWORDS), str(slices)],
                port=port,
                vocab=[f"{slices.stem}={folder / tour.SLICE_WORDS}"],
            )
        elif not serve_files:
            typer.echo("\nembmap demo --serve opens these files in a page.")
