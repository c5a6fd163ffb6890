"""Commands that make one embedding file of another."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import embmap
from embmap.cli.options import JsonOption, LayoutOption, VocabOption
from embmap.cli.output import as_text, complain, print_json

__all__ = ["app"]

app = typer.Typer()


class Subwords(StrEnum):
    """What becomes of subwords."""

    KEEP = "keep"
    EXPLICIT = "explicit"
    NONE = "none"


FromOption = Annotated[
    str | None,
    typer.Option("--from", "-f", metavar="FORMAT", help="Format of IN; its bytes tell it."),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", "-t", metavar="FORMAT", help="Format of OUT; its extension tells it."),
]
LossyOption = Annotated[
    bool, typer.Option(help="Replace bytes that are not UTF-8, leave out words OUT cannot hold.")
]


@app.command()
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="IN... OUT", help="What to read (several for DWE), what to write."),
    ],
    source_format: FromOption = None,
    target_format: ToOption = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of the numbers: float32, float16, float64.")
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--unnormalize",
            help="Scale rows to unit length, or give them the lengths that norms tell.",
        ),
    ] = None,
    lossy: LossyOption = False,
    limit: Annotated[int | None, typer.Option(min=0, help="Only the first words.")] = None,
    words: Annotated[
        Path | None, typer.Option(help="Only the words of this file, one per line.")
    ] = None,
    metadata: Annotated[Path | None, typer.Option(help="A TOML file with metadata.")] = None,
    vocab: VocabOption = None,
    tensor: Annotated[str | None, typer.Option(help="Which tensor, array or column of IN.")] = None,
    time: Annotated[int | None, typer.Option(help="Which time step of IN; -1 is the last.")] = None,
    layout: LayoutOption = None,
    output_layout: Annotated[
        str | None, typer.Option(help="Write this dialect of the format.")
    ] = None,
    subwords: Annotated[
        Subwords, typer.Option(help="Of finalfusion files: keep, make explicit, or leave out.")
    ] = Subwords.KEEP,
    compression: Annotated[
        str | None, typer.Option(help="Of CVC files: fp16, int8, lossless.")
    ] = None,
    quantize: Annotated[
        int | None,
        typer.Option(min=1, help="Product-quantize rows of finalfusion files to so many bytes."),
    ] = None,
    opq: Annotated[bool, typer.Option("--opq", help="Learn a rotation for --quantize.")] = False,
    bits: Annotated[int, typer.Option(min=2, max=16, help="Of a number in DWE files.")] = 8,
    as_json: JsonOption = False,
) -> None:
    """Convert an embedding file to another format; OUT is replaced as `cp` replaces it."""
    if len(files) < 2:
        raise typer.BadParameter("name what to read and what to write")
    _run(
        files[:-1] if len(files) > 2 else files[0],
        files[-1],
        as_json,
        input_format=source_format,
        output_format=target_format,
        dtype=dtype,
        normalize=normalize,
        lossy=lossy,
        limit=limit,
        words=words,
        metadata=metadata,
        vocab=vocab,
        tensor=tensor,
        timestep=time,
        layout=layout,
        output_layout=output_layout,
        subwords=subwords.value,
        compression=compression,
        quantize=quantize,
        opq=opq,
        bits=bits,
    )


@app.command()
def select(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to read.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="What to write.")],
    words: Annotated[Path, typer.Option(help="The words to take, one per line.")],
    source_format: FromOption = None,
    target_format: ToOption = None,
    lossy: LossyOption = False,
    vocab: VocabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy some of the words of a file, in its order, to a file of any format."""
    _run(
        file,
        output,
        as_json,
        input_format=source_format,
        output_format=target_format,
        lossy=lossy,
        words=words,
        vocab=vocab,
    )


def _run(source: Any, target: Path, as_json: bool, **options: Any) -> None:
    if options.get("dtype") not in (None, "float16", "float32", "float64"):
        raise typer.BadParameter(f"--dtype is float32, float16 or float64, not {options['dtype']}")
    with embmap.progress_bar() as step:
        report = embmap.convert(source, target, progress=step, **options)
    if as_json:
        paths = {
            "path": str(report.path),
            "words_path": report.words_path and str(report.words_path),
        }
        print_json({**asdict(report), **paths})
        return
    size = f"{report.n_words} x {as_text(report.dim)} {report.dtype}"
    typer.echo(f"{report.path}: {report.output_format}, {size}, rows of {report.lengths} length")
    if report.words_path is not None:
        typer.echo(f"{report.words_path}: the words")
    for n, what in (
        (report.n_duplicates, "repeated words were left out, the first of each was taken"),
        (report.n_dropped, "words were left out: the output cannot hold them"),
        (report.n_missing, "of the words asked for are not in the input"),
    ):
        if n:
            complain(f"{n} {what}")
    if report.left_out:
        complain(f"{target} does not hold the input's {', '.join(report.left_out)}")
