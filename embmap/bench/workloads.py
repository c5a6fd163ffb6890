"""Ways to open a file, and what is done with it, piece by piece.

Everything random is drawn beforehand, so that choosing costs nothing while the clock runs, and
every way of opening does the same work in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import embmap

__all__ = [
    "BATCHES",
    "STRATEGIES",
    "WORKLOADS",
    "Opened",
    "Sample",
    "Settings",
    "Strategy",
    "Workload",
    "sample",
    "used",
]

BATCHES = (100, 10_000)
_PAGE = 4096
_BLOCK_NBYTES = 1 << 22


@dataclass(frozen=True)
class Settings:
    """What is measured and how long.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    seconds : float
        Roughly for each workload.
    options : dict
        How to open it: format, layout, vocab.
    column : str or None
        Which column of a CVC file of several.
    processes : int
        How many at once.
    seed : int
        Of what is drawn.
    """

    path: Path
    seconds: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    column: str | None = None
    processes: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Sample:
    """What will be asked for.

    Attributes
    ----------
    n_rows, row_nbytes : int
        Size of the matrix, and of a vector as it is handed out.
    rows : numpy.ndarray
        Shape (n,), int64: drawn evenly.
    stream : list of str or int
        Words, or rows of a file without words, drawn by Zipf's law: the first the most often.
    """

    n_rows: int
    row_nbytes: int
    rows: npt.NDArray[np.int64]
    stream: list[str] | list[int]


def sample(settings: Settings) -> Sample:
    """Draw what will be asked for."""
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
        row_nbytes = opened.matrix.shape[1] * opened.matrix.dtype.itemsize
        return Sample(n, row_nbytes, rows, stream)


@dataclass(frozen=True)
class Strategy:
    """A way to open a file.

    Attributes
    ----------
    name : str
        For tables.
    about : str
        What it does.
    options : dict
        Of :func:`embmap.open`.
    prepare : str
        "", "touch" every page, or "load" the vectors.
    """

    name: str
    about: str
    options: dict[str, Any]
    prepare: str = ""


STRATEGIES = (
    Strategy("map", "memory map", {}),
    Strategy("map, random", "memory map, no read-ahead", {"access": "random"}),
    Strategy("map, pre-faulted", "memory map, every page touched", {"access": "willneed"}, "touch"),
    Strategy("positional reads", "pread of what is asked for", {"backend": "read"}),
    Strategy("read everything", "all vectors copied into memory", {"backend": "read"}, "load"),
)


class Opened:
    """A file opened one way, until it is closed."""

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
        if strategy.prepare == "touch":
            _touch(matrix)
        elif strategy.prepare == "load":
            self.matrix = np.array(matrix)

    def __enter__(self) -> Opened:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of everything."""
        self.file.close()
        self.matrix = None

    def look_up(self, key: str | int) -> npt.NDArray[Any]:
        """Return a vector by word or by row."""
        return self.rows(int(self.file.find([key])[0]) if isinstance(key, str) else key)

    def rows(self, rows: Any) -> npt.NDArray[Any]:
        """Return rows."""
        found: npt.NDArray[Any] = used(self.matrix[rows])
        return found

    def sum(self, rows: slice) -> Any:
        """Add up whole rows, as whoever goes through all of them reads every number."""
        return self.matrix[rows].sum()


def _touch(matrix: Any) -> None:
    """Bring every page of the vectors into memory and into the map."""
    for _, block in matrix.blocks():
        used(block)


def used(vectors: Any) -> Any:
    """Read something of every page of vectors, as whoever asked for them would."""
    if vectors.size and vectors.nbytes <= _PAGE:
        vectors.item(0), vectors.item(-1)
    else:
        vectors.reshape(-1)[:: max(_PAGE // vectors.itemsize, 1)].sum()
    return vectors


Pieces = Iterator[tuple[Callable[[], Any], int]]


@dataclass(frozen=True)
class Workload:
    """What is done with an open file.

    Attributes
    ----------
    name : str
        For tables.
    pieces : callable
        Returns pieces of work to be timed one by one, and how many vectors each is about.
    times_opening : bool
        Whether opening belongs to it; then it is repeated as a whole.
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
        yield partial(opened.rows, row), 1


def _batches(n: int, opened: Opened, drawn: Sample) -> Pieces:
    for first in range(0, drawn.rows.size - n + 1, n):
        yield partial(opened.rows, drawn.rows[first : first + n]), n


def _pass(opened: Opened, drawn: Sample) -> Pieces:
    n = max(_BLOCK_NBYTES // max(drawn.row_nbytes, 1), 1)
    for first in range(0, drawn.n_rows, n):
        stop = min(first + n, drawn.n_rows)
        yield partial(opened.sum, slice(first, stop)), stop - first


def _stream(opened: Opened, drawn: Sample) -> Pieces:
    opened.look_up(drawn.stream[0])  # whatever a first look-up builds is measured elsewhere
    for key in drawn.stream:
        yield partial(opened.look_up, key), 1


WORKLOADS = (
    Workload("open", _nothing, times_opening=True),
    Workload("first look-up", _first, times_opening=True),
    Workload("random rows", _singles),
    *(Workload(f"batches of {n:,}", partial(_batches, n)) for n in BATCHES),
    Workload("sequential pass", _pass),
    Workload("Zipf look-ups", _stream),
)
