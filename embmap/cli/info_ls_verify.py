"""``embmap info``, ``ls`` and ``verify``: what a file is, its parts, and whether it is intact."""

from __future__ import annotations

import typer

import embmap
from embmap.cli.options import BackendOption, FileArgument, JsonOption, LayoutOption
from embmap.cli.printing import flatten, format_value, print_json, print_rows

__all__ = ["info", "ls", "verify"]


def info(
    file: FileArgument,
    as_json: JsonOption = False,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Describe a file; reads only its header."""
    with embmap.open(file, layout=layout, backend=backend) as opened:
        facts = opened.info()
    if as_json:
        print_json(facts)
    else:
        print_rows((), list(flatten(facts)))


def ls(
    file: FileArgument,
    as_json: JsonOption = False,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """List the parts of a file with their offsets and sizes."""
    with embmap.open(file, layout=layout, backend=backend) as opened:
        parts = opened.info()["chunks"]
    if as_json:
        print_json(parts)
        return
    names = tuple(parts[0]) if parts else ()
    print_rows(names, [tuple(format_value(value) for value in part.values()) for part in parts])


def verify(
    file: FileArgument,
    as_json: JsonOption = False,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Check everything in a file.

    Checks the words, sizes, values and the index, and exits with 1 if something is damaged.
    """
    with embmap.open(file, layout=layout, backend=backend) as opened, embmap.progress_bar() as step:
        report = opened.verify(step)
    if as_json:
        problems = [problem._asdict() for problem in report.problems]
        found = {"ok": report.ok, "checked": report.checked, "unchecked": report.unchecked}
        print_json(found | {"problems": problems})
    else:
        for severity, offset, message in report.problems:
            where = "" if offset is None else f" (byte {offset})"
            typer.echo(f"{severity}: {message}{where}")
        for why in report.unchecked:
            typer.echo(f"not checked: {why}")
        verdict = "ok" if report.ok else "damaged"
        typer.echo(f"{file}: {verdict}; checked {', '.join(report.checked)}")
    if not report.ok:
        raise typer.Exit(1)
