"""Runs the workloads and collects what they cost.

Each strategy runs in a process of its own, so that none finds memory or pages of another.
"""

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

from embmap.bench.probes import Usage, drop_from_cache, fraction_cached, read_through, read_usage
from embmap.bench.workloads import (
    AT_ONCE,
    LOAD,
    RANDOM_ROWS,
    STRATEGIES,
    TOUCH,
    WORKLOADS,
    Opened,
    Sample,
    Settings,
    Strategy,
    Workload,
    draw_sample,
)
from embmap.codecs import kernels
from embmap.progress import Progress

__all__ = ["COLD", "WARM", "Measurement", "Result", "measure"]

COLD, WARM = "cold", "warm"
_LEAST_OPENINGS, _MOST_OPENINGS = 3, 20
_LEAST_PIECES = 5
_DROPPED = 0.05  # a file of which this part is still in memory counts as cold


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one workload cost.

    Attributes
    ----------
    strategy, workload, temperature : str
        What was measured.
    n_pieces, n_vectors : int
        How much was done.
    median, p99 : float
        Seconds for a piece of work.
    vectors_per_second : float or None
        None if the workload asks for no vectors.
    read_per_byte : float or None
        Bytes read from devices for each byte of a vector; None if either is unknown.
    usage : Usage
        Memory, reads and faults until the end of the work, with the file still open.
    """

    strategy: str
    workload: str
    temperature: str
    n_pieces: int
    n_vectors: int
    median: float
    p99: float
    vectors_per_second: float | None
    read_per_byte: float | None
    usage: Usage


@dataclass(frozen=True)
class Result:
    """All that was measured for a file.

    Attributes
    ----------
    measurements : tuple of Measurement
        In the order of the tables.
    cold : bool
        Whether the system dropped the file from memory when asked to. If not, nothing cold was
        measured.
    about : dict
        Facts about the file, for JSON.
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
    """Measure all workloads with all strategies."""
    read_usage()  # fail at once if psutil is missing
    drawn = draw_sample(settings)
    notes = []
    read_through(settings.path)  # into the caches below the system, for all
    cold = _forgets(settings)
    if not cold:
        notes.append("nothing cold was measured: the system did not drop the file from memory")
    strategies = list(STRATEGIES)
    load_nbytes = drawn.n_rows * drawn.row_nbytes
    if load_nbytes > _free_nbytes() // 2:
        strategies = [each for each in strategies if each.prepare != LOAD]
        notes.append(f"reading everything was left out: {load_nbytes / 1e9:.1f} GB is too much")
    runs: list[tuple[Strategy, str]] = []
    for temperature in [COLD, WARM] if cold else [WARM]:
        runs += [(strategy, temperature) for strategy in strategies]
    many = [strategy for strategy in strategies if strategy.prepare != TOUCH]
    total = len(runs) + len(many)
    found: list[Measurement] = []
    for strategy, temperature in runs:
        if temperature == WARM:
            read_through(settings.path)
        run = _Run(settings, strategy, drawn, temperature)
        (measured,) = _in_children(_measure_workloads, 1, run)
        found += measured
        if progress is not None:
            progress("measuring", len(found) // len(WORKLOADS), total)
    for i, strategy in enumerate(many):
        run = _Run(settings, strategy, drawn, WARM)
        shares = _in_children(_measure_share, settings.processes, run)
        found.append(_add_up(strategy, shares))
        if progress is not None:
            progress("measuring", len(runs) + i + 1, total)
    with Opened(settings, STRATEGIES[0]) as opened:
        about = opened.file.info()
        about["dtype"], about["dim"] = str(opened.matrix.dtype), opened.matrix.shape[-1]
    kept = ("path", "format", "layout", "nbytes", "shape", "dtype", "dim", "n_words", "index")
    about = {key: about[key] for key in kept}
    if about["format"] == "dwe":
        notes.append("decoded groups are kept for repeated look-ups, within f.cache_nbytes")
    return Result(tuple(found), cold, about, tuple(notes))


def _forgets(settings: Settings) -> bool:
    """Whether the system drops the pages of a file from memory when asked to."""
    gc.collect()
    _forget(settings)
    left = fraction_cached(settings.path)
    return left is not None and left <= _DROPPED


def _forget(settings: Settings) -> None:
    """Drop the pages of a file, its index and its words from memory."""
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


def _in_children(work: Callable[[_Run, Any], Any], n: int, run: _Run) -> list[Any]:
    """Do the same work in `n` new processes, which share a barrier; return their results."""
    context: Any = multiprocessing.get_context("spawn")
    if "forkserver" in multiprocessing.get_all_start_methods():  # quicker, where it exists
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["embmap.bench.runner"])
    together = context.Barrier(n)
    children = []
    for _ in range(n):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(there, together, work, run), daemon=True)
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


def _child(out: Connection, together: Any, work: Callable[[_Run, Any], Any], run: _Run) -> None:
    try:
        out.send((work(run, together), None))
    except Exception as error:
        together.abort()
        out.send((None, error))


def _measure_workloads(run: _Run, _: Any) -> list[Measurement]:
    """Measure all workloads of a strategy, one after the other."""
    found = []
    loaded = None
    warmed = False
    for workload in WORKLOADS:
        if not (workload.times_opening or warmed):
            run.warm_kernels()
            warmed = True
        if workload.times_opening:
            found.append(run.measure_openings(workload))
            continue
        if run.temperature == COLD:
            if run.strategy.prepare == LOAD:  # nothing is cold once it is in memory
                continue
            _forget(run.settings)
        before = read_usage()
        if run.strategy.prepare == LOAD:
            loaded = loaded or Opened(run.settings, run.strategy)
            found.append(run.measure_pieces(workload, loaded, before))
            continue
        with Opened(run.settings, run.strategy) as opened:
            found.append(run.measure_pieces(workload, opened, before))
        gc.collect()  # the system keeps pages that a map still refers to
    return found


@dataclass(frozen=True)
class _Run:
    """What a process measures: a strategy, with the file in memory or not."""

    settings: Settings
    strategy: Strategy
    drawn: Sample
    temperature: str

    def warm_kernels(self) -> None:
        """Load the compiled loops, if rows are decoded; a longer run would load them by itself."""
        kernels.hurry()
        with Opened(self.settings, STRATEGIES[0]) as opened:
            if not opened.matrix.zero_copy:
                opened.read_rows(int(self.drawn.rows[0]))
                opened.read_rows(self.drawn.rows[:100])
                opened.sum(slice(0, 100))

    def measure_openings(self, workload: Workload) -> Measurement:
        """Measure a workload that begins with opening the file, again and again."""
        limit = self.settings.seconds
        seconds: list[float] = []
        n = 0
        spent = Usage(*[None] * len(Usage._fields))
        while len(seconds) < _MOST_OPENINGS and (
            sum(seconds) < limit or (len(seconds) < _LEAST_OPENINGS and sum(seconds) < 10 * limit)
        ):
            gc.collect()
            if self.temperature == COLD:
                _forget(self.settings)
            before = read_usage()
            start = time.perf_counter()
            opened = Opened(self.settings, self.strategy)
            n = 0
            for work, count in workload.pieces(opened, self.drawn):
                work()
                n += count
            seconds.append(time.perf_counter() - start)
            spent = read_usage().since(before)
            opened.__exit__()
            del opened
        return self._measurement(workload, seconds, n, spent, n_openings=len(seconds))

    def measure_pieces(self, workload: Workload, opened: Opened, before: Usage) -> Measurement:
        """Measure a workload piece by piece until the time is up."""
        seconds, n = _time_pieces(workload.pieces(opened, self.drawn), self.settings.seconds)
        return self._measurement(workload, seconds, n, read_usage().since(before))

    def _measurement(
        self,
        workload: Workload,
        seconds: list[float],
        n: int,
        spent: Usage,
        *,
        n_openings: int = 1,
    ) -> Measurement:
        """Return a measurement; the usage is about `n` vectors, asked for after each opening."""
        asked = n * self.drawn.row_nbytes
        n *= n_openings
        return Measurement(
            strategy=self.strategy.name,
            workload=workload.name,
            temperature=self.temperature,
            n_pieces=len(seconds),
            n_vectors=n,
            median=float(np.median(seconds)),
            p99=float(np.percentile(seconds, 99)),
            vectors_per_second=n / sum(seconds) if n else None,
            read_per_byte=spent.device / asked if asked and spent.device is not None else None,
            usage=spent,
        )


def _time_pieces(
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


def _measure_share(run: _Run, together: Any) -> tuple[list[float], int, float, Usage]:
    """Look rows up while other processes do the same, and stay until all have been counted."""
    run.warm_kernels()
    before = read_usage()
    with Opened(run.settings, run.strategy) as opened:
        singles = next(each for each in WORKLOADS if each.name == RANDOM_ROWS)
        together.wait()
        start = time.perf_counter()
        seconds, n = _time_pieces(singles.pieces(opened, run.drawn), run.settings.seconds)
        wall = time.perf_counter() - start
        together.wait()
        spent = read_usage().since(before)
        together.wait()
    return seconds, n, wall, spent


def _add_up(strategy: Strategy, shares: list[tuple[list[float], int, float, Usage]]) -> Measurement:
    """Add up the work of processes that ran at once."""
    seconds = [each for share in shares for each in share[0]]
    columns = zip(*(spent for _, _, _, spent in shares), strict=True)
    return Measurement(
        strategy=strategy.name,
        workload=AT_ONCE,
        temperature=WARM,
        n_pieces=len(seconds),
        n_vectors=sum(n for _, n, _, _ in shares),
        median=float(np.median(seconds)),
        p99=float(np.percentile(seconds, 99)),
        vectors_per_second=sum(n / wall for _, n, wall, _ in shares),
        read_per_byte=None,
        usage=Usage(*(None if None in column else sum(column) for column in columns)),
    )
