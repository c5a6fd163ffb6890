"""The command that measures whether to map a file or to read it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import embmap
from embmap.cli.options import FileArgument, JsonOption, LayoutOption, VocabOption
from embmap.cli.output import print_json, print_rows
from embmap.io.atomic_write import refuse_overwriting, replacing, spool_beside

__all__ = ["app"]

app = typer.Typer()
_QUICK = 0.05


@app.command()
def bench(
    file: FileArgument,
    quick: Annotated[bool, typer.Option("--quick", help="Within seconds, less exactly.")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="How many look rows up at once: 4, quickly 2.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a page with pictures here: HTML.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="A column of a CVC file of several.")] = None,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
) -> None:
    """Measure on this machine whether to map a file or to read it."""
    from embmap.bench.advice import WHY_PROPORTIONAL, advice
    from embmap.bench.probes import machine
    from embmap.bench.runner import measure
    from embmap.bench.table import COLUMNS, cells
    from embmap.bench.workloads import Settings

    options = {"layout": layout, "vocab": vocab}
    at_once = processes or (2 if quick else 4)
    settings = Settings(file, _QUICK if quick else 1.0, options, column, at_once)
    if report is not None:
        from embmap.bench.page import page  # it may be missing an extra: say so before measuring

        refuse_overwriting([report], [file, *([vocab] if vocab else [])])
        if report.is_dir():
            raise typer.BadParameter(f"{report} is a folder; name a file for the report")
        spool_beside(report).close()  # a place that cannot be written: say so as well
    with embmap.progress_bar() as step:
        result = measure(settings, step)
    where = machine()
    if report is not None:
        text = page(result, where)
        with replacing(report) as out:
            out.write(text.encode())
    if as_json:
        facts: dict[str, Any] = {
            "advice": advice(result),
            "notes": list(result.notes),
            "file": result.about,
            "machine": where,
            "measurements": [
                {**asdict(each), "usage": each.usage._asdict()} for each in result.measurements
            ],
        }
        print_json(facts)
        return
    print_rows(COLUMNS, [cells(each) for each in result.measurements])
    typer.echo("")
    for sentence in (*advice(result), *result.notes, WHY_PROPORTIONAL):
        typer.echo(sentence)
