"""Strategies, which are ways to open a file, and workloads, which use it piece by piece.

Rows and words are drawn before the clock runs, so every strategy does the same work in the same
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import embmap

__all__ = [
    "AT_ONCE",
    "BATCHES",
    "FIRST_LOOKUP",
    "LOAD",
    "MAP",
    "MAP_NORMAL",
    "PASS",
    "POSITIONAL_READS",
    "RANDOM_ROWS",
    "READ_EVERYTHING",
    "STRATEGIES",
    "TOUCH",
    "WORKLOADS",
    "Opened",
    "Sample",
    "Settings",
    "Strategy",
    "Workload",
    "draw_sample",
    "touch_pages",
]

# Names of strategies and workloads, as the tables show them.
MAP, MAP_NORMAL, MAP_TOUCHED = "map", "map, normal", "map, pre-faulted"
POSITIONAL_READS, READ_EVERYTHING = "positional reads", "read everything"
FIRST_LOOKUP, RANDOM_ROWS, PASS = "first look-up", "random rows", "sequential pass"
BATCHES = {n: f"batches of {n:,}" for n in (100, 10_000)}
AT_ONCE = "processes at once"  # random rows, in several processes

TOUCH, LOAD = "touch", "load"
_PAGE = 4096
_BLOCK_NBYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured, and for how long.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    seconds : float
        Approximate time for each workload.
    options : dict
        Options of :func:`embmap.open`: format, layout, vocab.
    column : str or None
        The column of a CVC file with several.
    processes : int
        Number of processes that look rows up at once.
    seed : int
        Seed of the rows and words that are drawn.
    """

    path: Path
    seconds: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    column: str | None = None
    processes: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Sample:
    """The rows and words that workloads look up.

    Attributes
    ----------
    n_rows, row_nbytes : int
        Number of rows of the matrix, and size of a vector as it is returned.
    rows : numpy.ndarray
        Shape (n,), int64, evenly distributed.
    stream : list of str or int
        Words, or rows of a file without words, distributed by Zipf's law in file order.
    """

    n_rows: int
    row_nbytes: int
    rows: npt.NDArray[np.int64]
    stream: list[str] | list[int]


def draw_sample(settings: Settings) -> Sample:
    """Draw the rows and words to look up."""
    random = np.random.default_rng(settings.seed)
    with Opened(settings, STRATEGIES[0]) as opened:
        n = len(opened.matrix)
        if not n:
            raise ValueError(f"{settings.path} has no vectors to measure")
        rows = random.integers(0, n, 1 << 17)
        words = opened.file.vocab
        n_named = n if words is None else min(len(words), n)
        # Zipf's law with exponent 1 is an even distribution of the logarithm of the rank.
        ranks = np.floor(np.exp(random.uniform(0, np.log(n_named + 1), 1 << 14))) - 1
        numbers = np.minimum(ranks.astype(np.int64), n_named - 1).tolist()
        stream = numbers
        if words is not None and n_named:
            named = {row: words[row] for row in set(numbers)}
            stream = [named[row] for row in numbers]
        row_nbytes = math.prod(opened.matrix.shape[1:]) * opened.matrix.dtype.itemsize
        return Sample(n, row_nbytes, rows, stream)


@dataclass(frozen=True)
class Strategy:
    """A way to open a file.

    Attributes
    ----------
    name : str
        The name in the tables.
    options : dict
        Options of :func:`embmap.open`.
    prepare : str
        TOUCH reads every page before the work, LOAD copies the vectors into memory.
    """

    name: str
    options: dict[str, Any]
    prepare: str = ""


STRATEGIES = (
    Strategy(MAP, {}),
    Strategy(MAP_NORMAL, {"access": "normal"}),
    Strategy(MAP_TOUCHED, {"access": "normal"}, TOUCH),
    Strategy(POSITIONAL_READS, {"backend": "read"}),
    Strategy(READ_EVERYTHING, {"backend": "read"}, LOAD),
)


class Opened:
    """A file opened with a strategy."""

    def __init__(self, settings: Settings, strategy: Strategy) -> None:
        self.file = embmap.open(settings.path, **settings.options, **strategy.options)
        matrix = self.file.vectors
        if isinstance(self.file, embmap.cvc.CvcFile) and settings.column is not None:
            if settings.column not in self.file.columns:
                raise ValueError(f"{settings.path} has no column {settings.column!r}")
            matrix = self.file.columns[settings.column]
        if matrix is None:
            raise ValueError(f"{settings.path} has no single matrix of vectors; name a column")
        self.matrix: Any = matrix
        if strategy.prepare == TOUCH:
            for _, block in matrix.blocks():
                touch_pages(block)
        elif strategy.prepare == LOAD:
            self.matrix = np.array(matrix)

    def __enter__(self) -> Opened:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file and drop the vectors."""
        self.file.close()
        self.matrix = None

    def look_up(self, key: str | int) -> npt.NDArray[Any]:
        """Return a vector by word or by row."""
        return self.read_rows(int(self.file.find([key])[0]) if isinstance(key, str) else key)

    def read_rows(self, rows: Any) -> npt.NDArray[Any]:
        """Return rows, of which every page has been read."""
        found: npt.NDArray[Any] = touch_pages(self.matrix[rows])
        return found

    def sum(self, rows: slice) -> Any:
        """Add up rows, which reads every number, as a program that uses whole rows does."""
        return self.matrix[rows].sum()


def touch_pages(vectors: Any) -> Any:
    """Read a number of every page of vectors, and return the vectors."""
    if vectors.size and vectors.nbytes <= _PAGE:
        vectors.item(0), vectors.item(-1)
    else:
        vectors.reshape(-1)[:: max(_PAGE // vectors.itemsize, 1)].sum()
    return vectors


Pieces = Iterator[tuple[Callable[[], Any], int]]


@dataclass(frozen=True)
class Workload:
    """A use of an open file.

    Attributes
    ----------
    name : str
        The name in the tables.
    pieces : callable
        Returns pieces of work to be timed one by one, each with the number of its vectors.
    times_opening : bool
        Whether opening the file is a part of the workload, which is then repeated as a whole.
    """

    name: str
    pieces: Callable[[Opened, Sample], Pieces]
    times_opening: bool = False


def _nothing(opened: Opened, drawn: Sample) -> Pieces:
    del opened, drawn
    yield from ()


def _first(opened: Opened, drawn: Sample) -> Pieces:
    yield partial(opened.look_up, drawn.stream[0]), 1


def _singles(opened: Opened, drawn: Sample) -> Pieces:
    for row in drawn.rows.tolist():
        yield partial(opened.read_rows, row), 1


def _batches(n: int, opened: Opened, drawn: Sample) -> Pieces:
    for first in range(0, drawn.rows.size - n + 1, n):
        yield partial(opened.read_rows, drawn.rows[first : first + n]), n


def _pass(opened: Opened, drawn: Sample) -> Pieces:
    n = max(_BLOCK_NBYTES // max(drawn.row_nbytes, 1), 1)
    for first in range(0, drawn.n_rows, n):
        stop = min(first + n, drawn.n_rows)
        yield partial(opened.sum, slice(first, stop)), stop - first


def _stream(opened: Opened, drawn: Sample) -> Pieces:
    opened.look_up(
        drawn.stream[0]
    )  # a first look-up may build an index, which FIRST_LOOKUP measures
    for key in drawn.stream:
        yield partial(opened.look_up, key), 1


WORKLOADS = (
    Workload("open", _nothing, times_opening=True),
    Workload(FIRST_LOOKUP, _first, times_opening=True),
    Workload(RANDOM_ROWS, _singles),
    *(Workload(name, partial(_batches, n)) for n, name in BATCHES.items()),
    Workload(PASS, _pass),
    Workload("Zipf look-ups", _stream),
)
