"""Arguments and options that several commands take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from embmap.formats.format import Format, Writer
from embmap.formats.registry import get_file_formats
from embmap.io.mapping import Backend

__all__ = [
    "BackendOption",
    "ColumnOption",
    "CountOption",
    "FileArgument",
    "JsonOption",
    "LayoutOption",
    "SectionOption",
    "TimeOption",
    "VocabOption",
    "choose",
    "complete",
    "list_dialects",
    "name_option",
]

_RENAMED = {"input_format": "--from", "output_format": "--to", "timestep": "--time"}


def name_option(argument: str) -> str:
    """Return the option for an argument of the library."""
    return _RENAMED.get(argument, f"--{argument.replace('_', '-')}")


def complete(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the function by which a shell completes one of some names."""
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def choose(known: Collection[str], help: str) -> Any:
    """Return an option whose value is one of some names; the help lists them."""

    def parse(text: str) -> str:
        if text not in known:
            raise typer.BadParameter(f"must be one of {', '.join(known)}, not {text!r}")
        return text

    return typer.Option(
        parser=parse, metavar="|".join(known), help=help, autocompletion=complete(known)
    )


def list_dialects(formats: Iterable[Format | Writer]) -> list[str]:
    """Return the dialects that some formats have, or that some writers write."""
    return [dialect for format in formats for dialect in format.dialects]


# A cached back end raises BlockingIOError for what is not in memory, which only event loops handle.
_BACKENDS = [name for name in get_args(Backend) if name != "cached"]

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An embedding file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
LayoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIALECT",
        help="Read FILE as this dialect of its format.",
        autocompletion=complete(list_dialects(get_file_formats().values())),
    ),
]
BackendOption = Annotated[
    Backend, choose(_BACKENDS, "Map the file, or read only the parts that are needed.")
]
VocabOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Words for a file without words: a text file, one per line, or a word list in JSON.",
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        "--time",
        "-t",
        metavar="T",
        help="The time step of a DWE file: its number, or its label in --vocab.",
        show_default="the last, -1",
    ),
]
SectionOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="All rows of the sections and chunks of a CVC file with this metadata; "
        "may be repeated.",
    ),
]
ColumnOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The column to use of a CVC file with several.")
]
CountOption = Annotated[
    int, typer.Option("--n", "-n", metavar="N", min=0, help="Number of words to list.")
]
