"""Commands for words that move over time: dynamic embeddings (DWE files)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt
import typer

import embmap
from embmap.cli.options import (
    Backend,
    BackendOption,
    FileArgument,
    JsonOption,
    LayoutOption,
    VocabOption,
)
from embmap.cli.output import as_numbers, complain, print_json, print_rows
from embmap.io.atomic_write import refuse_overwriting, replacing

__all__ = ["app"]

app = typer.Typer()

WordsArgument = Annotated[
    list[str], typer.Argument(metavar="WORD...", help="Words, or row numbers without --vocab.")
]
WordArgument = Annotated[
    str, typer.Argument(metavar="WORD", help="A word, or a row number without --vocab.")
]
NOption = Annotated[int, typer.Option("--n", "-n", min=0, help="How many words.")]


@app.command()
def trajectory(
    file: FileArgument,
    words: WordsArgument,
    to: Annotated[
        str | None, typer.Option(metavar="WORD", help="Compare with this word at every time step.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the lines into this picture.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the vectors here as .npy: (words, T, K) float32.")
    ] = None,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """Show how words move: their cosine with the first time step, or with another word."""
    written = [target for target in (output, plot) if target is not None]
    refuse_overwriting(written, [file, *([vocab] if vocab else [])])
    with embmap.open(file, layout=layout, backend=backend.value, vocab=vocab) as opened:
        dynamic = dynamic_file(opened)
        asked = [_word(dynamic, word) for word in words]
        vectors = dynamic[asked]
        if to is None:
            values, what = cosines(vectors, vectors[:, :1]), "cosine with the first time step"
        else:
            other = dynamic[_word(dynamic, to)]
            values, what = cosines(vectors, other[np.newaxis]), f"cosine with {to!r}"
    if output is not None:
        with replacing(output) as binary:
            np.save(binary, vectors)
    if plot is not None:
        draw(plot, words, values, what)
    if as_json:
        lines = {word: as_numbers(line) for word, line in zip(words, values, strict=True)}
        print_json({"what": what, "words": lines})
        return
    rows = [(str(t), *(f"{x:.4f}" for x in column)) for t, column in enumerate(values.T.tolist())]
    print_rows(("time", *words), rows)


@app.command()
def related(
    file: FileArgument,
    word: WordArgument,
    time: Annotated[int, typer.Option("--time", "-t", help="The time step; -1 is the last.")] = -1,
    n: NOption = 10,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """List the words most similar to a word at a time step."""
    with embmap.open(file, layout=layout, backend=backend.value, vocab=vocab) as opened:
        dynamic = dynamic_file(opened)
        found = dynamic.most_related(_word(dynamic, word), at_time(dynamic, time).t, n)
    _print_neighbors(found, as_json, "similarity")


@app.command()
def changes(
    file: FileArgument,
    word: WordArgument,
    n: NOption = 10,
    min_increasing: Annotated[
        int, typer.Option(min=0, help="How many shall have come closer at the least.")
    ] = 0,
    min_decreasing: Annotated[
        int, typer.Option(min=0, help="How many shall have gone away at the least.")
    ] = 0,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = Backend.MMAP,
) -> None:
    """List the words whose similarity to a word changed most between first and last time step."""
    with embmap.open(file, layout=layout, backend=backend.value, vocab=vocab) as opened:
        dynamic = dynamic_file(opened)
        row = _word(dynamic, word)
        found = dynamic.largest_changes(row, n, min_increasing, min_decreasing)
    _print_neighbors(found, as_json, "change")


def dynamic_file(opened: embmap.EmbeddingFile) -> embmap.dwe.DweFile:
    """Return a file with time steps; refuse the others."""
    if opened.num_timesteps is None:
        raise typer.BadParameter(f"{opened.format} files have no time steps")
    return cast(embmap.dwe.DweFile, opened)


def at_time(opened: embmap.dwe.DweFile, t: int) -> embmap.dwe.TimestepFile:
    """Return a file at a time step that exists; refuse the others."""
    try:
        return opened.at(t)
    except IndexError:
        n = opened.num_timesteps
        raise typer.BadParameter(
            f"there is no time step {t}; the file has {n}, from 0 on"
        ) from None


def cosines(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the cosines of vectors along the last axis."""
    wide, other = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1) * np.linalg.norm(other, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = np.vecdot(wide, other) / lengths
    return found


def draw(path: Path, words: list[str], values: npt.NDArray[np.float64], what: str) -> None:
    """Draw a line for each word over time."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'embmap[plot]'") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    for word, line in zip(words, values, strict=True):
        axes.plot(line, label=word, linewidth=1.8)
    axes.set_xlabel("time step")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    kind = path.suffix.lstrip(".").lower() or "png"
    if kind not in figure.canvas.get_supported_filetypes():
        raise typer.BadParameter(f"there is no picture of the kind {path.suffix!r}; try .png")
    with replacing(path) as binary:
        figure.savefig(binary, format=kind, dpi=150)


def _word(opened: embmap.dwe.DweFile, word: str) -> str | int:
    """Return a word, or the row that stands for it where there are no words."""
    if opened.vocab is not None:
        if word not in opened:
            complain(f"{opened.path}: no word {word!r}")
            raise typer.Exit(1)
        return word
    if not word.removeprefix("-").isdecimal():
        raise typer.BadParameter(f"{word!r}: DWE files carry no words; give --vocab or row numbers")
    if int(word) not in range(-len(opened), len(opened)):
        raise typer.BadParameter(f"there is no row {word}; the file has {len(opened)}")
    return int(word)


def _print_neighbors(found: list[embmap.Neighbor], as_json: bool, score: str) -> None:
    if as_json:
        values: list[dict[str, Any]] = [
            {"row": row, "word": word, score: as_numbers(np.array([value]))[0]}
            for row, word, value in found
        ]
        print_json(values)
        return
    rows = [
        (str(row) if word is None else word, str(row), f"{value:.4f}") for row, word, value in found
    ]
    print_rows(("word", "row", score), rows)
