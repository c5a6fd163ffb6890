"""Runs the workloads, each way of opening in a process of its own, and collects what they cost."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from embmap.bench.probes import Usage, drop_from_cache, fraction_cached, read_through, usage
from embmap.bench.workloads import (
    STRATEGIES,
    WORKLOADS,
    Opened,
    Sample,
    Settings,
    Strategy,
    Workload,
    sample,
)
from embmap.codecs import kernels
from embmap.progress import Progress

__all__ = ["AT_ONCE", "COLD", "WARM", "Measurement", "Result", "measure"]

COLD, WARM = "cold", "warm"
AT_ONCE = "processes at once"
_LEAST_OPENINGS, _MOST_OPENINGS = 3, 20
_LEAST_PIECES = 5
_DROPPED = 0.05  # of a file may stay in memory and it still counts as cold


@dataclass(frozen=True)
class Measurement:
    """What one workload cost.

    Attributes
    ----------
    strategy, workload, temperature : str
        What was measured.
    n_pieces, n_vectors : int
        How much was done.
    median, p99 : float
        Seconds of a piece.
    vectors_per_second : float or None
        None where no vectors are asked for.
    usage : Usage
        What it took, the file still open.
    """

    strategy: str
    workload: str
    temperature: str
    n_pieces: int
    n_vectors: int
    median: float
    p99: float
    vectors_per_second: float | None
    usage: Usage


@dataclass(frozen=True)
class Result:
    """All that was measured for a file.

    Attributes
    ----------
    measurements : tuple of Measurement
        In the order of the tables.
    cold : bool
        Whether the system forgot the file when it was asked to; else there are no cold ones.
    about : dict
        The file, in JSON-able words.
    notes : tuple of str
        What was left out, and why.
    """

    measurements: tuple[Measurement, ...]
    cold: bool
    about: dict[str, Any]
    notes: tuple[str, ...]

    def find(self, strategy: str, workload: str, temperature: str = WARM) -> Measurement | None:
        """Return a measurement."""
        for each in self.measurements:
            if (each.strategy, each.workload, each.temperature) == (
                strategy,
                workload,
                temperature,
            ):
                return each
        return None


def measure(settings: Settings, progress: Progress | None = None) -> Result:
    """Measure all workloads with all ways of opening a file."""
    usage()  # say at once that psutil is missing
    drawn = sample(settings)
    notes = []
    read_through(settings.path)  # what lies below the system may keep it too: the same for all
    cold = _forgets(settings)
    if not cold:
        notes.append("nothing cold was measured: the system keeps the file when asked to drop it")
    strategies = list(STRATEGIES)
    load_nbytes = drawn.n_rows * drawn.row_nbytes
    if load_nbytes > _free_nbytes() // 2:
        strategies = [each for each in strategies if each.prepare != "load"]
        notes.append(f"reading everything was left out: {load_nbytes / 1e9:.1f} GB do not fit")
    runs: list[tuple[Strategy, str]] = []
    for temperature in [COLD, WARM] if cold else [WARM]:
        runs += [(strategy, temperature) for strategy in strategies]
    many = [strategy for strategy in strategies if strategy.prepare != "touch"]
    total = len(runs) + len(many)
    found: list[Measurement] = []
    for strategy, temperature in runs:
        if temperature == WARM:
            read_through(settings.path)
        (measured,) = _in_children(_all_workloads, 1, settings, strategy, drawn, temperature)
        found += measured
        if progress is not None:
            progress("measuring", len(found) // len(WORKLOADS), total)
    for i, strategy in enumerate(many):
        measured = _in_children(_share, settings.processes, settings, strategy, drawn)
        found.append(_together(strategy, measured))
        if progress is not None:
            progress("measuring", len(runs) + i + 1, total)
    with Opened(settings, STRATEGIES[0]) as opened:
        about = opened.file.info()
        about["dtype"], about["dim"] = str(opened.matrix.dtype), opened.matrix.shape[1]
    kept = ("path", "format", "layout", "nbytes", "shape", "dtype", "dim", "n_words", "index")
    about = {key: about[key] for key in kept}
    if about["format"] == "dwe":
        notes.append("decoded groups are kept for repeated look-ups, as f.cache_nbytes says")
    return Result(tuple(found), cold, about, tuple(notes))


def _forgets(settings: Settings) -> bool:
    """Whether the system forgets the pages of a file when it is asked to."""
    gc.collect()
    _forget(settings)
    left = fraction_cached(settings.path)
    return left is not None and left <= _DROPPED


def _forget(settings: Settings) -> None:
    """Drop the pages of a file, of its index and of its words."""
    vocab = settings.options.get("vocab")
    words = Path(vocab) if isinstance(vocab, str | Path) else None
    for path in [settings.path, words]:
        if path is not None:
            drop_from_cache(path)
            index = path.with_name(path.name + ".embx")
            if index.exists():
                drop_from_cache(index)


def _free_nbytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _in_children(work: Callable[..., Any], n: int, *arguments: Any) -> list[Any]:
    """Return what `n` new processes make of some work, each by itself."""
    context: Any = multiprocessing.get_context("spawn")
    if "forkserver" in multiprocessing.get_all_start_methods():  # quicker, where it exists
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["embmap.bench.runner"])
    together = context.Barrier(n)
    children = []
    for _ in range(n):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(there, together, work, arguments), daemon=True)
        child.start()
        there.close()
        children.append((child, here))
    answers = []
    for child, here in children:
        try:
            answer, error = here.recv()
        except EOFError:
            answer, error = None, RuntimeError("a measuring process died")
        child.join()
        if error is not None:
            raise error
        answers.append(answer)
    return answers


def _child(
    out: Connection, together: Any, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    try:
        out.send((work(*arguments, together), None))
    except Exception as error:
        together.abort()
        out.send((None, error))


def _all_workloads(
    settings: Settings, strategy: Strategy, drawn: Sample, temperature: str, together: Any
) -> list[Measurement]:
    del together
    found = []
    loaded = None
    warmed = False
    for workload in WORKLOADS:
        if not (workload.times_opening or warmed):
            _warm_kernels(settings, drawn)
            warmed = True
        if workload.times_opening:
            found.append(_openings(settings, strategy, workload, drawn, temperature))
            continue
        if temperature == COLD:
            if strategy.prepare == "load":  # once it is in memory nothing is cold
                continue
            _forget(settings)
        before = usage()
        if strategy.prepare == "load":
            loaded = loaded or Opened(settings, strategy)
            found.append(_pieces(settings, strategy, workload, drawn, temperature, before, loaded))
            continue
        with Opened(settings, strategy) as opened:
            found.append(_pieces(settings, strategy, workload, drawn, temperature, before, opened))
        gc.collect()  # the map has to go before its pages can be forgotten
    return found


def _warm_kernels(settings: Settings, drawn: Sample) -> None:
    """Load the compiled loops that a longer run would load by itself, where rows are decoded."""
    with Opened(settings, STRATEGIES[0]) as opened:
        if not opened.matrix.zero_copy and kernels.jit_for(1 << 60) is not None:
            opened.rows(int(drawn.rows[0]))
            opened.rows(drawn.rows[:100])
            opened.sum(slice(0, 100))


def _openings(
    settings: Settings,
    strategy: Strategy,
    workload: Workload,
    drawn: Sample,
    temperature: str,
) -> Measurement:
    """Measure a workload that begins with opening the file, again and again."""
    seconds: list[float] = []
    n = 0
    spent = Usage(*[None] * len(Usage._fields))
    while len(seconds) < _MOST_OPENINGS and (
        sum(seconds) < settings.seconds
        or (len(seconds) < _LEAST_OPENINGS and sum(seconds) < 10 * settings.seconds)
    ):
        gc.collect()
        if temperature == COLD:
            _forget(settings)
        before = usage()
        start = time.perf_counter()
        opened = Opened(settings, strategy)
        n = 0
        for work, count in workload.pieces(opened, drawn):
            work()
            n += count
        seconds.append(time.perf_counter() - start)
        spent = usage().since(before)
        opened.__exit__()
        del opened
    return _measurement(strategy, workload.name, temperature, seconds, n * len(seconds), spent)


def _pieces(
    settings: Settings,
    strategy: Strategy,
    workload: Workload,
    drawn: Sample,
    temperature: str,
    before: Usage,
    opened: Opened,
) -> Measurement:
    """Measure a workload piece by piece until the time is up."""
    seconds, n = _timed(workload.pieces(opened, drawn), settings.seconds)
    return _measurement(strategy, workload.name, temperature, seconds, n, usage().since(before))


def _timed(
    pieces: Iterator[tuple[Callable[[], Any], int]], limit: float
) -> tuple[list[float], int]:
    seconds, n, spent = [], 0, 0.0
    clock = time.perf_counter
    for work, count in pieces:
        start = clock()
        work()
        taken = clock() - start
        seconds.append(taken)
        n += count
        spent += taken
        if spent >= limit and (len(seconds) >= _LEAST_PIECES or spent >= 10 * limit):
            break
    return seconds, n


def _share(
    settings: Settings, strategy: Strategy, drawn: Sample, together: Any
) -> tuple[list[float], int, float, Usage]:
    """Look rows up while other processes do the same, and stay until all have been counted."""
    _warm_kernels(settings, drawn)
    before = usage()
    with Opened(settings, strategy) as opened:
        singles = next(each for each in WORKLOADS if each.name == "random rows")
        together.wait()
        start = time.perf_counter()
        seconds, n = _timed(singles.pieces(opened, drawn), settings.seconds)
        wall = time.perf_counter() - start
        together.wait()
        spent = usage().since(before)
        together.wait()
    return seconds, n, wall, spent


def _together(
    strategy: Strategy, parts: list[tuple[list[float], int, float, Usage]]
) -> Measurement:
    """Add up what processes did at once."""
    seconds = [each for part in parts for each in part[0]]
    rate = sum(n / wall for _, n, wall, _ in parts)
    columns = zip(*(spent for _, _, _, spent in parts), strict=True)
    totals = Usage(*(None if None in column else sum(column) for column in columns))
    return Measurement(
        strategy.name,
        AT_ONCE,
        WARM,
        len(seconds),
        sum(n for _, n, _, _ in parts),
        float(np.median(seconds)),
        float(np.percentile(seconds, 99)),
        rate,
        totals,
    )


def _measurement(
    strategy: Strategy,
    workload: str,
    temperature: str,
    seconds: list[float],
    n: int,
    spent: Usage,
) -> Measurement:
    return Measurement(
        strategy.name,
        workload,
        temperature,
        len(seconds),
        n,
        float(np.median(seconds)),
        float(np.percentile(seconds, 99)),
        n / sum(seconds) if n else None,
        spent,
    )
