"""``embmap bench``: measures whether to map a file or to read it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import embmap
from embmap.cli.options import (
    ColumnOption,
    FileArgument,
    JsonOption,
    LayoutOption,
    VocabOption,
)
from embmap.cli.printing import print_json, print_rows
from embmap.io.atomic_write import refuse_overwriting, replacing, spool_beside

__all__ = ["bench"]

_QUICK = 0.05  # seconds of each workload


def bench(
    file: FileArgument,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take seconds, for figures that are less exact.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of processes that look rows up at once.",
            show_default="4, or 2 with --quick",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an HTML page with pictures to this file."),
    ] = None,
    column: ColumnOption = None,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
) -> None:
    """Measure whether to map a file or to read it."""
    from embmap.bench.advice import ABOUT_MEMORY, advise
    from embmap.bench.probes import describe_machine
    from embmap.bench.runner import measure
    from embmap.bench.table import COLUMNS, format_cells
    from embmap.bench.workloads import Settings

    options = {"layout": layout, "vocab": vocab}
    at_once = processes or (2 if quick else 4)
    settings = Settings(
        path=file,
        seconds=_QUICK if quick else 1.0,
        options=options,
        column=column,
        processes=at_once,
    )
    if report is not None:
        from embmap.bench.page import render_page  # fail before measuring if an extra is missing

        refuse_overwriting([report], [file, *([vocab] if vocab else [])])
        if report.is_dir():
            raise ValueError(f"--report must be a file, not the folder {report}")
        spool_beside(report).close()  # fail before measuring if the folder cannot be written
    with embmap.progress_bar() as step:
        result = measure(settings, step)
    where = describe_machine()
    if report is not None:
        text = render_page(result, where)
        with replacing(report) as out:
            out.write(text.encode())
    if as_json:
        facts: dict[str, Any] = {
            "advice": advise(result),
            "notes": list(result.notes),
            "file": result.about,
            "machine": where,
            "measurements": [
                {**asdict(each), "usage": each.usage._asdict()} for each in result.measurements
            ],
        }
        print_json(facts)
        return
    print_rows(COLUMNS, [format_cells(each) for each in result.measurements])
    typer.echo("")
    for sentence in (*advise(result), *result.notes, ABOUT_MEMORY):
        typer.echo(sentence)
