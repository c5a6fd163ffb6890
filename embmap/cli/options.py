"""Arguments and options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Backend", "BackendOption", "FileArgument", "JsonOption", "LayoutOption", "VocabOption"]

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An embedding file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
LayoutOption = Annotated[
    str | None, typer.Option(help="Read the file as this dialect of its format.")
]


class Backend(StrEnum):
    """How the file is read."""

    MMAP = "mmap"
    READ = "read"


BackendOption = Annotated[Backend, typer.Option(help="Map the file or read parts of it.")]
VocabOption = Annotated[
    Path | None, typer.Option(help="Words for a file without any: a text file, one per line.")
]
