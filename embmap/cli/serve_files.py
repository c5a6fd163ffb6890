"""``embmap serve``: files over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embmap.cli.options import BackendOption
from embmap.cli.printing import complain

__all__ = ["PortOption", "serve"]

PortOption = Annotated[
    int,
    typer.Option(
        metavar="PORT", min=0, max=65535, help="The port of the server; 0 takes any free port."
    ),
]


def serve(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Embedding files; NAME=FILE gives one a name."),
    ],
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST", help="The address to listen on; one that is not local needs a token."
        ),
    ] = "127.0.0.1",
    port: PortOption = 8808,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="Number of processes that answer.")
    ] = 1,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token that requests must carry."),
    ] = None,
    vocab: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="Words for a file without words: a text file, one per line.",
        ),
    ] = None,
    backend: BackendOption = "read",
) -> None:
    """Serve files over HTTP, with a page to explore them."""
    try:
        from embmap.serve.process import run
    except ImportError as error:
        raise ImportError(f"serving needs {error.name}: pip install 'embmap[serve]'") from None
    from embmap.serve.settings import Settings, model_sources

    if backend == "mmap":
        complain("warning: with --backend mmap, truncating a file kills the process that reads it")
    settings = Settings(
        models=model_sources(files, vocab or ()),
        host=host,
        port=port,
        workers=workers,
        token_file=None if token_file is None else str(token_file.absolute()),
        backend=backend,
    )
    run(settings, typer.echo)
