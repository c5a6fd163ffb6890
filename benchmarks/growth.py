"""How cost grows with the number of words, dimensions and words in a group.

python -m benchmarks.growth            prints the figures
python -m benchmarks.growth --write    draws docs/growth.svg as well
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import embmap
from benchmarks.files import words

__all__ = ["Curve", "by_dimensions", "by_groups", "by_words", "draw", "main"]

WORDS = (1_000, 10_000, 100_000, 1_000_000)
DIMENSIONS = (10, 30, 100, 300, 1000)
GROUPS = (1, 10, 100, 1_000)
_ROUNDS = 7
_LOOKUPS = 2_000
_DIM = 32


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The cost of one kind of work at growing sizes.

    Attributes
    ----------
    panel, label : str
        The picture of the curve, and its label there.
    unit : str
        "s" or "B".
    sizes : tuple of int
        Numbers of words, of dimensions, or of words in a group.
    values : tuple of float
        A cost for each size.
    """

    panel: str
    label: str
    unit: str
    sizes: tuple[int, ...]
    values: tuple[float, ...]


def seconds(work: Callable[[], Any], per: int = 1) -> float:
    """Return the median time of a few rounds, after one that does not count."""
    work()
    taken = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) / per)
    return median(taken)


def _blocks(n: int, dim: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(n)
    for start in range(0, n, 10_000):
        yield random.standard_normal((min(10_000, n - start), dim), np.float32)


def _steps(n: int, dim: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(n)
    step = random.integers(-40, 40, (n, dim)).astype(np.int16)
    for _ in range(5):
        yield step
        step = step + random.integers(-2, 3, (n, dim)).astype(np.int16)


class _Words:
    """A text file of words, for formats without words."""

    def __init__(self, folder: Path, n: int) -> None:
        self.n = n
        self.path = folder / f"words-{n}.txt"
        with open(self.path, "w", encoding="utf-8") as out:
            out.writelines(f"{word}\n" for word in words(n))
        chosen = np.random.default_rng(0).integers(0, n, min(_LOOKUPS, n))
        wanted = dict.fromkeys(chosen.tolist(), "")
        for row, word in enumerate(words(n)):
            if row in wanted:
                wanted[row] = word
        self.asked = [wanted[row] for row in chosen.tolist()]


def write_file(
    folder: Path, format: str, named: _Words, dim: int = _DIM
) -> tuple[Path, dict[str, Any]]:
    """Write a file of a format; return its path and the options to open it."""
    path, n = folder / f"{format}-{named.n}-{dim}", named.n
    given = {"vocab": named.path}
    if format == "finalfusion":
        embmap.finalfusion.write(path, words(n), _blocks(n, dim))
        return path, {}
    if format == "embd":
        rows = np.concatenate(list(_blocks(n, dim)))
        embmap.embd.write(path, {"wte.weight": rows}, vocab=words(n))
        return path, {}
    if format == "dwe":
        embmap.dwe.write(path, _steps(n, dim), scale=0.1, group=min(100, n), layout="stream")
        return path, given
    embmap.cvc.write(
        path, _blocks(n, dim), compression=format.removeprefix("cvc "), chunk_rows=10_000
    )
    return path, given


FORMATS = ("finalfusion", "embd", "cvc fp16", "dwe")


def _look_up(file: embmap.EmbeddingFile, asked: Sequence[str]) -> None:
    for word in asked:
        file[word]


def by_words(folder: Path, sizes: Sequence[int] = WORDS) -> list[Curve]:
    """Measure opening, looking up and batches at growing numbers of words."""
    figures: dict[tuple[str, str, str], list[float]] = {}
    for n in sizes:
        named = _Words(folder, n)
        for format in FORMATS:
            path, options = write_file(folder, format, named)
            opening = seconds(lambda: embmap.open(path, **options).close())  # noqa: B023
            figures.setdefault(("opening", format, "s"), []).append(opening)
            with embmap.open(path, index="memory", **options) as file:
                file.find(named.asked)
                few = named.asked[:50] if format == "dwe" else named.asked
                single = seconds(partial(_look_up, file, few), len(few))
                batch = seconds(partial(file.batch, named.asked), len(named.asked))
            figures.setdefault(("a word", format, "s"), []).append(single)
            figures.setdefault(("a word of a batch", format, "s"), []).append(batch)
            path.unlink()
        named.path.unlink()
    return _curves(figures, sizes)


def by_dimensions(folder: Path, sizes: Sequence[int] = DIMENSIONS, n: int = 20_000) -> list[Curve]:
    """Measure single rows and batches at growing numbers of dimensions."""
    figures: dict[tuple[str, str, str], list[float]] = {}
    named = _Words(folder, n)
    rows = np.random.default_rng(1).integers(0, n, min(_LOOKUPS, n))
    for dim in sizes:
        for format in ("finalfusion", "cvc fp16", "cvc int8"):
            path, options = write_file(folder, format, named, dim)
            with embmap.open(path, **options) as file:
                matrix = file.vectors
                single = seconds(lambda: [matrix[row] for row in rows.tolist()], rows.size)  # noqa: B023
                batch = seconds(lambda: matrix[rows], rows.size)  # noqa: B023
            figures.setdefault(("a row", format, "s"), []).append(single)
            figures.setdefault(("a row of a batch", format, "s"), []).append(batch)
            path.unlink()
    named.path.unlink()
    return _curves(figures, sizes)


def by_groups(folder: Path, sizes: Sequence[int] = GROUPS, n: int = 20_000) -> list[Curve]:
    """Measure trajectories, time steps and file size at growing groups of a DWE file."""
    figures: dict[tuple[str, str, str], list[float]] = {}
    path = folder / "groups.dwe"
    for group in sizes:
        embmap.dwe.write(path, _steps(n, _DIM), scale=0.1, group=group, layout="stream")
        with embmap.open(path) as file:
            file.cache_nbytes = 0
            trajectory = seconds(lambda: file[n // 2])
            step = seconds(lambda: file.at(0).vectors[:], n)
        figures.setdefault(("group", "a trajectory", "s"), []).append(trajectory)
        figures.setdefault(("group", "a word of a whole step", "s"), []).append(step)
        nbytes = path.stat().st_size / (5 * n)
        figures.setdefault(("group size", "a word and time step", "B"), []).append(nbytes)
    path.unlink()
    return _curves(figures, sizes)


def _curves(figures: dict[tuple[str, str, str], list[float]], sizes: Sequence[int]) -> list[Curve]:
    """Return a curve for each panel, label and unit."""
    return [
        Curve(panel=panel, label=label, unit=unit, sizes=tuple(sizes), values=tuple(values))
        for (panel, label, unit), values in figures.items()
    ]


_AXES = {
    "opening": "words",
    "a word": "words",
    "a word of a batch": "words",
    "a row": "dimensions",
    "a row of a batch": "dimensions",
    "group": "words of a group (DWE)",
}


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw a picture for each kind of work."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, NullFormatter

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "0", "font.family": "sans-serif"}):
        figure = Figure(figsize=(11, 6.5), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        for axes, (panel, axis) in zip(figure.subplots(2, 3).flat, _AXES.items(), strict=True):
            shown = [each for each in curves if each.panel == panel]
            values = [value for each in shown for value in each.values]
            decades = np.floor(np.log10(min(values))), np.ceil(np.log10(max(values)))
            for curve in shown:
                axes.loglog(curve.sizes, curve.values, "o-", label=curve.label, markersize=4)
            axes.set_title(panel if panel != "group" else "decoding", loc="left", fontsize=11)
            axes.set_xlabel(axis)
            axes.yaxis.set_major_formatter(EngFormatter("s"))
            axes.set_ylim(10.0 ** decades[0], 10.0 ** decades[1])
            axes.set_xticks(shown[0].sizes)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            for each in (axes.xaxis, axes.yaxis):
                each.set_minor_formatter(NullFormatter())
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and draw if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument(
        "--largest", type=int, default=WORDS[-1], help="the greatest number of words"
    )
    parser.add_argument("--write", action="store_true", help="draw docs/growth.svg")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="embmap-growth-") as name:
        folder = Path(name)
        sizes = sorted({*(n for n in WORDS if n < asked.largest), asked.largest})
        curves = by_words(folder, sizes)
        curves += by_dimensions(folder) + by_groups(folder)
    for curve in curves:
        listed = ", ".join(
            f"{size}: {value:.3g} {curve.unit}"
            for size, value in zip(curve.sizes, curve.values, strict=True)
        )
        print(f"{curve.panel}, {curve.label}: {listed}")
    if asked.write:
        draw(curves, Path(__file__).parent.parent / "docs" / "growth.svg")


if __name__ == "__main__":
    main()
