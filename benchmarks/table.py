"""From the figures of a run to the table of docs/benchmarks.md: what was asked for, and what is so.

A row compares embmap with the peers over one kind of work, all of it measured in the same run, and
holds the result against the target that was set before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from benchmarks.files import walk_shape

__all__ = ["HEADINGS", "MISSED", "ROWS", "Row", "cells", "figures", "machine", "markdown"]

HEADINGS = ("work", "embmap", "peers", "peer / embmap", "target", "met?")
MISSED = "**no**"
_TARGET_WORDS = 1_000_000

Figures = Mapping[tuple[str, str], Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Parameters
    ----------
    title : str
        What is done.
    work : str
        What the benchmarks record it as.
    way : str
        How embmap does it.
    target : str
        What it shall be, in words; empty when nothing was asked for.
    limit : float, optional
        The most it may be, in the row's unit.
    ratios : dict
        For peers, the fraction of theirs that it must stay below.
    value : str
        Which figure: "seconds"; "symbols_per_second" or "bytes_per_second" where symbols or nbytes
        were recorded beside it; something else recorded, in bytes, or a share when it begins so.
    any_size : bool
        Whether the target holds for files of any size, not of a million words alone.
    """

    title: str
    work: str
    way: str
    target: str = ""
    limit: float | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    value: str = "seconds"
    any_size: bool = True


def _of_chunks(compression: str, numpy_ms: int, numba_ms: int) -> tuple[Row, ...]:
    """Return the rows of one compression of CVC files."""
    whole = f"{compression}, all rows"
    used = f"{compression}, all rows, used array"
    some = f"{compression}, 1000 rows"
    on_numpy, on_numba = "embmap, numpy", "embmap, numba"
    fast, faster = f"≤ {numpy_ms} ms", f"≤ {numba_ms} ms"
    return (
        Row(f"{whole}, numpy", whole, on_numpy, fast, numpy_ms / 1e3, any_size=False),
        Row(f"{whole}, numba", whole, on_numba, faster, numba_ms / 1e3, any_size=False),
        Row("… into a used array, numpy", used, on_numpy),
        Row("… into a used array, numba", used, on_numba),
        Row("… one row", f"{compression}, one row", "embmap", "≤ 5 µs", 5e-6),
        Row("… 1000 rows, numpy", some, on_numpy, "≤ 0.5 ms", 0.5e-3),
        Row("… 1000 rows, numba", some, on_numba, "≤ 0.5 ms", 0.5e-3),
    )


def _of_opening(layout: str) -> tuple[Row, ...]:
    """Return the rows of opening DWE files of one layout."""
    work = f"DWE, open, {layout}"
    fresh = f"{work}, fresh process"
    return (
        Row(work, work, "embmap", "≤ 10 ms", 10e-3),
        Row("… in a fresh process", fresh, "embmap", "≤ 10 ms", 10e-3),
        Row("… peak memory over import", fresh, "embmap", "≤ 8 MB", 8e6, value="peak_nbytes"),
        Row("… private memory over import", fresh, "embmap", "≤ 8 MB", 8e6, value="private_nbytes"),
    )


def _over_time(title: str, work: str) -> tuple[Row, ...]:
    """Return the rows of work on DWE files that has no target."""
    return (
        Row(f"{title}, numpy", work, "embmap, numpy"),
        Row("… numba, one thread", work, _ONE_THREAD),
        Row("… numba, two threads", work, _TWO_THREADS),
    )


_ONE_THREAD, _TWO_THREADS = "embmap, numba, one thread", "embmap, numba, two threads"
_EITHER = {"finalfusion": 1 / 300, "gensim": 1 / 300}
_TENTH = {"safetensors": 0.1}
ROWS = (
    Row("open", "open", "embmap", "≤ 1 ms, ≥ 300x either", 1e-3, _EITHER, any_size=False),
    Row("… peak memory over import", "open", "embmap", "≤ 2 MB", 2e6, value="peak_nbytes"),
    Row("… private memory over import", "open", "embmap", "≤ 2 MB", 2e6, value="private_nbytes"),
    Row("first look-up, no index", "first look-up", "embmap", "≤ 60 ms", 60e-3, any_size=False),
    Row("first look-up, index file", "first look-up", "embmap, index file", "≤ 1 ms", 1e-3),
    Row(
        "f[word], index file",
        "look-up",
        "embmap, index file",
        "≤ 900 ns, < finalfusion, < 0.55 gensim",
        900e-9,
        {"finalfusion": 1, "gensim": 0.55},
    ),
    Row("f[word], index in memory", "look-up", "embmap"),
    Row("batch of 10k words, index file", "batch", "embmap, index file", "≤ 4 ms", 4e-3),
    Row("batch of 10k words, index in memory", "batch", "embmap", "≤ 4 ms", 4e-3),
    Row("index build", "index build", "embmap", "≤ 250 ms", 250e-3, any_size=False),
    Row("… per word", "index build", "embmap", "≤ 24 B", 24, value="nbytes_per_word"),
    Row("unknown word, numba", "unknown word", "embmap, numba", "≤ 17 µs", 17e-6),
    Row("unknown word, numpy", "unknown word", "embmap, numpy", "≤ 100 µs", 100e-6),
    Row("… in a batch, numba", "unknown word, batch", "embmap, numba", "≤ 8 µs", 8e-6),
    Row("… in a batch, numpy", "unknown word, batch", "embmap, numpy", "≤ 8 µs", 8e-6),
    Row(
        "unknown word, quantized, numba",
        "unknown word, quantized",
        "embmap, numba",
        "≤ 60 µs",
        60e-6,
    ),
    Row(
        "unknown word, quantized, numpy",
        "unknown word, quantized",
        "embmap, numpy",
        "≤ 60 µs",
        60e-6,
    ),
    Row("… in a batch, numba", "unknown word, quantized, batch", "embmap, numba"),
    Row("… in a batch, numpy", "unknown word, quantized, batch", "embmap, numpy"),
    Row("quantized row by word", "quantized row", "embmap", "≤ 5 µs", 5e-6),
    Row("batch of 10k quantized rows", "quantized row, batch", "embmap", "≤ 20 ms", 20e-3),
    *_of_chunks("fp16", 100, 45),
    *_of_chunks("int8", 60, 40),
    Row("MiniLM, open, one tensor", "tensor", "embmap", "≤ 1 ms, ≤ 0.1 safetensors", 1e-3, _TENTH),
    Row("… in a fresh process", "tensor, fresh process", "embmap"),
    Row("… one row by token", "row of a tensor", "embmap"),
    *_of_opening("blocks"),
    *_of_opening("stream"),
    Row("trajectory, numpy", "trajectory", "embmap, numpy", "≤ 60 ms", 60e-3),
    Row("… numba, one thread", "trajectory", _ONE_THREAD),
    Row("… numba, two threads", "trajectory", _TWO_THREADS, "≤ 2.5 ms", 2.5e-3),
    Row("… of it, symbols a second", "trajectory", _TWO_THREADS, value="symbols_per_second"),
    Row("… symbols decoded, of the file", "trajectory", _TWO_THREADS, value="share_of_symbols"),
    Row("… bytes read, of the file", "trajectory", _TWO_THREADS, value="share_of_bytes"),
    Row("… from the cache", "trajectory, from the cache", "embmap"),
    Row("time step, numpy", "time step", "embmap, numpy", "≤ 110 ms", 110e-3, any_size=False),
    Row("… numba, one thread", "time step", _ONE_THREAD),
    Row("… numba, two threads", "time step", _TWO_THREADS, "≤ 8 ms", 8e-3, any_size=False),
    Row("… of it, symbols a second", "time step", _TWO_THREADS, value="symbols_per_second"),
    *_over_time("row of a time step", "row of a time step"),
    *_over_time("most related, first step", "most related, first step"),
    *_over_time("most related, middle step", "most related, middle step"),
    Row("DWE, written, blocks, per symbol", "write a DWE file, blocks", "embmap, numba"),
    Row("DWE, written, stream, per symbol", "write a DWE file, stream", "embmap, numba"),
    Row("most similar words", "most similar", "embmap", "≤ 31 ms", 31e-3, any_size=False),
    Row("… quantized, numpy", "most similar, quantized", "embmap, numpy"),
    Row("… quantized, numba", "most similar, quantized", "embmap, numba"),
    Row("text to finalfusion", "text", "embmap", value="bytes_per_second"),
    Row("… peak memory over import", "text", "embmap", value="peak_nbytes"),
)


def figures(results: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the medians over the passes of a run of what each pass measured.

    Parameters
    ----------
    results : sequence of dict
        What pytest-benchmark wrote as JSON in each pass.

    Returns
    -------
    dict
        From (work, way) to the figures by name: "seconds" for one unit of the work, and whatever
        was recorded beside it.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for measured in (each for one_pass in results for each in one_pass["benchmarks"]):
        facts = dict(measured["extra_info"])
        values = found.setdefault((facts.pop("work"), facts.pop("way")), {})
        values.setdefault("seconds", []).append(measured["stats"]["median"] / facts.pop("per"))
        for name, value in facts.items():
            known = [one for one in np.atleast_1d(value).tolist() if one is not None]
            values.setdefault(name, []).extend(known)
    medians = {
        key: {name: median(value) for name, value in values.items() if value}
        for key, values in found.items()
    }
    for facts in medians.values():
        if "nbytes" in facts:
            facts["bytes_per_second"] = facts["nbytes"] / facts["seconds"]
        if "symbols" in facts:
            facts["symbols_per_second"] = facts["symbols"] / facts["seconds"]
    return medians


def cells(found: Figures, n_words: int) -> list[tuple[str, ...]]:
    """Return the rows of the table that were measured.

    Parameters
    ----------
    found : dict
        The medians.
    n_words : int
        Size of the files.

    Returns
    -------
    list of tuple of str
        A cell for each of HEADINGS.
    """
    lines = []
    for row in ROWS:
        ours = found.get((row.work, row.way), {}).get(row.value)
        if ours is None:
            continue
        show = _SHOWN.get(row.value.partition("_")[0], nbytes)
        peers = {
            way: values[row.value]
            for (work, way), values in found.items()
            if work == row.work and not way.startswith("embmap") and row.value in values
        }
        lines.append(
            (
                row.title,
                show(ours),
                "; ".join(f"{peer} {show(theirs)}" for peer, theirs in peers.items()),
                "; ".join(factor(theirs, ours) for theirs in peers.values()),
                row.target,
                _met(row, ours, peers, n_words),
            )
        )
    return lines


def _met(row: Row, ours: float, peers: Mapping[str, float], n_words: int) -> str:
    if not row.target:
        return ""
    if not row.any_size and n_words != _TARGET_WORDS:
        return "set for 1M words"
    if not row.ratios.keys() <= peers.keys():
        return "a peer is missing"
    within = row.limit is None or ours <= row.limit
    faster = all(ours < share * peers[peer] for peer, share in row.ratios.items())
    return "yes" if within and faster else MISSED


def seconds(value: float) -> str:
    """Return a time with three digits and the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value * 1e9)} ns"


def nbytes(value: float) -> str:
    """Return a number of bytes with three digits and the unit that suits it."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value)} B"


def rate(value: float) -> str:
    """Return a number of millions in a second."""
    return f"{_digits(value / 1e6)} M/s"


def megabytes(value: float) -> str:
    """Return a number of megabytes in a second."""
    return f"{_digits(value / 1e6)} MB/s"


def share(value: float) -> str:
    """Return a part of a whole as percents."""
    return f"{_digits(100 * value)} %"


_SHOWN = {"seconds": seconds, "symbols": rate, "share": share, "bytes": megabytes}


def factor(theirs: float, ours: float) -> str:
    """Return how many times as much a peer takes."""
    return f"{_digits(theirs / ours)}x" if ours > 0 else ""


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine(results: Sequence[Mapping[str, Any]], n_words: int, command: str) -> str:
    """Return where and how a run was made, as markdown.

    Parameters
    ----------
    results : sequence of dict
        What pytest-benchmark wrote as JSON in each pass.
    n_words : int
        Size of the files.
    command : str
        What repeats it.

    Returns
    -------
    str
        A paragraph.
    """
    about = results[0]["machine_info"]
    cpu = about["cpu"]
    n_steps, n_words_over_time, dim = walk_shape(n_words)
    walks = f"{n_steps} time steps of {n_words_over_time:,} words of {dim}"
    versions = ", ".join(
        f"{name} {number}" for name, number in about["libraries"].items() if number
    )
    return (
        f"`{command}`: files of {n_words:,} words of 300 dimensions, CVC files of {n_words // 2:,} "
        f"rows of 256, DWE files of {walks}, all in the page cache; medians, {len(results)} x "
        "over.\n"
        f"{cpu.get('brand_raw', about['machine'])}, {cpu.get('count', '?')} cores, "
        f"{about['system']} {about['machine']}; {versions}."
    )


def markdown(lines: list[tuple[str, ...]]) -> str:
    """Return the table as markdown.

    Parameters
    ----------
    lines : list of tuple of str
        The rows.

    Returns
    -------
    str
        Without a newline at the end.
    """
    every = [HEADINGS, ("---",) * len(HEADINGS), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)
