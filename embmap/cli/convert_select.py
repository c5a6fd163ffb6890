"""``embmap convert`` and ``embmap select``: one embedding file made from another."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import embmap
from embmap.cli.options import JsonOption, VocabOption, complete, list_dialects
from embmap.cli.printing import complain, format_value, print_json
from embmap.conversion import INPUT_FORMATS, OUTPUT_FORMATS
from embmap.formats.registry import FORMATS, get_written_formats

__all__ = ["convert", "select"]

_WRITERS = [each.writer for each in get_written_formats().values() if each.writer is not None]


def _parse_dtype(text: str) -> str:
    """Return the name of a dtype that is known; the output may still refuse it."""
    if text == "bfloat16":
        return text
    try:
        return np.dtype(text).name
    except (TypeError, ValueError):
        raise typer.BadParameter(
            f"must be a type of numpy's such as float32, not {text!r}"
        ) from None


FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        "-f",
        metavar="FORMAT",
        help=f"Format of IN: {', '.join(INPUT_FORMATS)}.",
        show_default="recognized by the bytes of IN",
        autocompletion=complete(INPUT_FORMATS),
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        "-t",
        metavar="FORMAT",
        help=f"Format of OUT: {', '.join(OUTPUT_FORMATS)}.",
        show_default="from the extension of OUT",
        autocompletion=complete(OUTPUT_FORMATS),
    ),
]
LossyOption = Annotated[
    bool,
    typer.Option(
        "--lossy", help="Replace bytes that are not UTF-8, and leave out words OUT cannot hold."
    ),
]


def convert(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="IN",
            help="The file to read; it may be compressed. A.zip/B is the file B in a zip archive. "
            "Several become the time steps of a DWE or npz file.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to create or replace.")],
    source_format: FromOption = None,
    target_format: ToOption = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            parser=_parse_dtype,
            metavar="TYPE",
            help="Type of the numbers, if OUT has a choice: float32, float16, float64, bfloat16.",
            autocompletion=complete(("float32", "float16", "float64", "bfloat16")),
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Cut vectors to their first N numbers."),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--unnormalize",
            help="Scale rows to unit length, or multiply rows by the norms that IN holds.",
        ),
    ] = None,
    lossy: LossyOption = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Take only the first N words.")
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take only the words in this file, one per line."),
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Metadata for OUT: a TOML file that replaces the metadata of IN."
        ),
    ] = None,
    vocab: VocabOption = None,
    tensor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The tensor, array or column of IN to convert."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="T", help="The time step of IN to convert: -1 for the last, or its label."
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Factor to numbers, for integers over time in an npy or npz file."
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="DIALECT",
            help="Read IN as this dialect of its format.",
            autocompletion=complete(list_dialects(FORMATS.values())),
        ),
    ] = None,
    output_layout: Annotated[
        str | None,
        typer.Option(
            metavar="DIALECT",
            help="Write OUT in this dialect of its format.",
            autocompletion=complete(list_dialects(_WRITERS)),
        ),
    ] = None,
    subwords: Annotated[
        str,
        typer.Option(
            metavar="CHOICE",
            help="Subwords in finalfusion files: keep, explicit (as n-grams) or none.",
            autocompletion=complete(("keep", "explicit", "none")),
        ),
    ] = "keep",
    compression: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For CVC files: fp16, int8 or lossless.",
            autocompletion=complete(("fp16", "int8", "lossless")),
        ),
    ] = None,
    quantize: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="For finalfusion files: product-quantize rows to N bytes each."
        ),
    ] = None,
    opq: Annotated[
        bool, typer.Option("--opq", help="With --quantize: learn a rotation as well.")
    ] = False,
    bits: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            max=16,
            help="For DWE and npz files: bits of each number.",
            show_default="8, or as in IN if it holds integers over time",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert an embedding file to another format."""
    _run(
        sources if len(sources) > 1 else sources[0],
        target,
        as_json,
        input_format=source_format,
        output_format=target_format,
        dim=dim,
        dtype=dtype,
        normalize=normalize,
        lossy=lossy,
        limit=limit,
        words=words,
        metadata=metadata,
        vocab=vocab,
        tensor=tensor,
        timestep=time,
        scale=scale,
        layout=layout,
        output_layout=output_layout,
        subwords=subwords,
        compression=compression,
        quantize=quantize,
        opq=opq,
        bits=bits,
    )


def select(
    file: Annotated[Path, typer.Argument(metavar="IN", help="The file to read.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The file to create or replace.")],
    words: Annotated[
        Path, typer.Option(metavar="FILE", help="A text file with the words to take, one per line.")
    ],
    source_format: FromOption = None,
    target_format: ToOption = None,
    lossy: LossyOption = False,
    vocab: VocabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy some words of a file to another file.

    OUT may be of any format; the words keep the order of IN.
    """
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
    with embmap.progress_bar() as step:
        report = embmap.convert(source, target, progress=step, **options)
    if as_json:
        paths = {
            "path": str(report.path),
            "words_path": report.words_path and str(report.words_path),
        }
        print_json({**asdict(report), **paths})
        return
    size = f"{report.n_words} x {format_value(report.dim)} {report.dtype}"
    typer.echo(f"{report.path}: {report.output_format}, {size}, rows of {report.lengths} length")
    if report.words_path is not None:
        typer.echo(f"{report.words_path}: the words")
    for n, what in (
        (report.n_duplicates, "repeated words were left out; the first of each was taken"),
        (report.n_dropped, "words were left out because the output cannot hold them"),
        (report.n_missing, "of the words asked for are not in the input"),
    ):
        if n:
            complain(f"{n} {what}")
    parts = [part for part in report.left_out if part != "repeated words"]  # counted above
    if parts:
        complain(f"{target} does not hold the input's {', '.join(parts)}")
