"""The command that serves files over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embmap.cli.options import Backend
from embmap.cli.output import complain

__all__ = ["app"]

app = typer.Typer()


@app.command()
def serve(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Embedding files; NAME=FILE names one."),
    ],
    host: Annotated[str, typer.Option(help="Where to listen; others need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8808,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many processes answer.")] = 1,
    token_file: Annotated[
        Path | None, typer.Option(help="Holds the token that requests have to bring.")
    ] = None,
    vocab: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE", help="Words for a file without any: a text file, one per line."
        ),
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help="Read parts of the files, or map them.")
    ] = Backend.READ,
) -> None:
    """Serve files over HTTP; the page at / shows them."""
    try:
        from embmap.serve.process import run
    except ImportError as error:
        raise ImportError(f"serving needs {error.name}: pip install 'embmap[serve]'") from None
    from embmap.serve.settings import Settings, model_sources

    if backend is Backend.MMAP:
        complain("warning: with --backend mmap a file that is truncated kills whoever reads it")
    settings = Settings(
        models=model_sources(files, vocab or ()),
        host=host,
        port=port,
        workers=workers,
        token_file=None if token_file is None else str(token_file.absolute()),
        backend=backend.value,
    )
    run(settings, typer.echo)
