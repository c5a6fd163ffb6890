"""``embmap trajectory``, ``related`` and ``changes``: words over time, from DWE files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import numpy as np
import numpy.typing as npt
import typer

import embmap
from embmap.cli.options import (
    BackendOption,
    CountOption,
    FileArgument,
    JsonOption,
    LayoutOption,
    TimeOption,
    VocabOption,
)
from embmap.cli.printing import (
    complain,
    print_json,
    print_neighbors,
    print_neighbors_of_each,
    print_rows,
    replace_non_finite,
)
from embmap.io.atomic_write import refuse_overwriting, replacing
from embmap.words.time_labels import name_step, range_of

__all__ = ["changes", "choose_time_step", "related", "require_time_steps", "trajectory"]

_MOST_TICKS = 10  # names of time steps in a picture

WordArgument = Annotated[
    str, typer.Argument(metavar="WORD", help="A word, or a row number without --vocab.")
]


def trajectory(
    file: FileArgument,
    words: Annotated[
        list[str], typer.Argument(metavar="WORD", help="Words, or row numbers without --vocab.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Compare with this word at every time step.",
            show_default="the word itself at the first time step",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the cosines into this picture, such as out.png."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the vectors as .npy: (words, T, K) float32."),
    ] = None,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Show how words move over time, as cosines.

    The cosines of each time step are with the first time step, or with another word.
    """
    written = [target for target in (output, plot) if target is not None]
    refuse_overwriting(written, [file, *([vocab] if vocab else [])])
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        dynamic = require_time_steps(opened)
        asked = [_parse_word(dynamic, word) for word in words]
        labels = dynamic.timestep_labels
        vectors = dynamic[asked]
        if to is None:
            values, what = _cosines(vectors, vectors[:, :1]), "cosine with the first time step"
        else:
            other = dynamic[_parse_word(dynamic, to)]
            values, what = _cosines(vectors, other[np.newaxis]), f"cosine with {to!r}"
    if output is not None:
        with replacing(output) as binary:
            np.save(binary, vectors)
    if plot is not None:
        _draw(plot, words, values, (what, labels))
    if as_json:
        lines = {
            word: replace_non_finite(line)
            for word, line in zip(words, values.tolist(), strict=True)
        }
        named = {"labels": labels} if labels else {}
        print_json({"what": what, **named, "words": lines})
        return
    times = map(str, labels or range(len(values.T)))
    columns = zip(times, values.T.tolist(), strict=True)
    rows = [(time, *(f"{x:.4f}" for x in column)) for time, column in columns]
    print_rows(("time", *words), rows)


def related(
    file: FileArgument,
    words: Annotated[
        list[str], typer.Argument(metavar="WORD", help="Words, or row numbers without --vocab.")
    ],
    time: TimeOption = None,
    n: CountOption = 10,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """List the words most related to each word at a time step.

    They have the greatest dot products with the word.
    """
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        dynamic = require_time_steps(opened)
        asked = [_parse_word(dynamic, word) for word in words]
        choose_time_step(dynamic, time)
        last = name_step(dynamic.num_timesteps - 1, dynamic.num_timesteps, dynamic.timestep_labels)
        found = dynamic.most_related(asked, last if time is None else time, n)
    if len(words) == 1:
        print_neighbors(found[0], as_json, "dot")
        return
    print_neighbors_of_each(dict(zip(words, found, strict=True)), as_json, "dot")


def changes(
    file: FileArgument,
    word: WordArgument,
    n: CountOption = 10,
    min_increasing: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Minimum number of words whose dot product grew."),
    ] = 0,
    min_decreasing: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Minimum number of words whose dot product shrank."),
    ] = 0,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """List the words that moved most relative to a word.

    Their dot products with the word changed most from the first to the last time step.
    """
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        dynamic = require_time_steps(opened)
        found = dynamic.largest_changes(
            _parse_word(dynamic, word), n, min_increasing, min_decreasing
        )
        labels = dynamic.timestep_labels
    print_neighbors(found, as_json, "change", when=range_of(labels) if labels else None)


def require_time_steps(opened: embmap.EmbeddingFile) -> embmap.dwe.DweFile:
    """Return a file if it has time steps; refuse it otherwise."""
    if opened.num_timesteps is None:
        raise ValueError(f"{opened.format} files have no time steps")
    return cast(embmap.dwe.DweFile, opened)


def choose_time_step(opened: embmap.EmbeddingFile, t: str | None) -> embmap.EmbeddingFile:
    """Return a time step of a file, by default the last; refuse one that does not exist."""
    if t is None:
        return opened.at()
    try:
        return require_time_steps(opened).at(t)
    except IndexError as error:
        raise ValueError(f"--time: {error}") from None


def _cosines(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the cosines of vectors along the last axis, NaN for a vector of zeros."""
    wide, other = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1) * np.linalg.norm(other, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = np.vecdot(wide, other) / lengths
    return found


def _draw(
    path: Path,
    words: list[str],
    values: npt.NDArray[np.float64],
    names: tuple[str, tuple[int | str, ...]],
) -> None:
    """Draw a line for each word over time; `names` are of the values and of the time steps."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'embmap[plot]'") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    what, labels = names
    places = [label for label in labels if isinstance(label, int)]
    is_scale = bool(labels) and len(places) == len(labels) and places == sorted(places)
    at = places if is_scale else range(values.shape[1])
    for word, line in zip(words, values, strict=True):
        axes.plot(at, line, label=word, linewidth=1.8)
    if labels and not is_scale:
        shown = at[:: -(-len(labels) // _MOST_TICKS)]
        axes.set_xticks(shown, [str(labels[t]) for t in shown])
    axes.set_xlabel("time step" if not is_scale else "")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    kind = path.suffix.lstrip(".").lower() or "png"
    known = sorted(figure.canvas.get_supported_filetypes())
    if kind not in known:
        raise ValueError(f"--plot must end in one of .{', .'.join(known)}, not {path.suffix!r}")
    with replacing(path) as binary:
        figure.savefig(binary, format=kind, dpi=150)


def _parse_word(opened: embmap.dwe.DweFile, word: str) -> str | int:
    """Return a word, or the row that it names in a file without words."""
    if opened.vocab is not None:
        if word not in opened:
            complain(f"{opened.path}: no vector for {word!r}")
            raise typer.Exit(1)
        return word
    n = len(opened)
    try:
        row = int(word)
    except ValueError:
        raise ValueError(
            f"{word!r} is not a row number, and DWE files contain no words; give --vocab"
        ) from None
    if not -n <= row < n:
        raise ValueError(f"a row must be from {-n} to {n - 1}, not {row}")
    return row
