"""Questions to a search: its metrics, one query or several, and the neighbors that answer it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex, cast, get_args

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import is_number

__all__ = [
    "METRICS",
    "Metric",
    "Neighbor",
    "NotFiniteError",
    "OneQuery",
    "Queries",
    "SeveralQueries",
    "Words",
    "check_metric",
    "check_n",
    "parse_queries",
    "parse_words",
]

Metric = Literal["cosine", "dot", "euclidean"]
METRICS: tuple[Metric, ...] = get_args(Metric)

Vector = Sequence[float] | np.ndarray[tuple[int], np.dtype[Any]]
Words = list[str] | tuple[str, ...]  # not Sequence[str], which a single word is as well
OneQuery = str | Vector
"""A word, or a vector of shape (dim,)."""
SeveralQueries = Words | Sequence[Vector] | np.ndarray[tuple[int, int], np.dtype[Any]]
"""Words, or vectors of shape (m, dim)."""


class NotFiniteError(ValueError):
    """A vector that neighbors are searched for has values that are not finite."""


class Neighbor(NamedTuple):
    """A word in a ranking.

    Attributes
    ----------
    row : int
        Its row.
    word : str or None
        The word; None in a file without words.
    score : float
        The number that ranks it: a cosine, a dot product, minus a distance, or a change.
    """

    row: int
    word: str | None
    score: float


@dataclass(frozen=True)
class Queries:
    """One query or several, either `words` or float64 `vectors` of shape (m, dim)."""

    words: list[str] | None
    vectors: npt.NDArray[np.float64] | None
    single: bool

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(cast("Sequence[Any]", self.vectors if self.words is None else self.words))


def check_metric(metric: str) -> Metric:
    """Return the name of a metric, or raise ValueError for any other string."""
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}")
    return metric


def check_n(n: SupportsIndex) -> int:
    """Return a number of neighbors as an int, or raise ValueError for a negative one."""
    number = operator.index(n)
    if number < 0:
        raise ValueError(f"n must be at least 0, not {number}")
    return number


def parse_queries(query: object, dim: int) -> Queries:
    """Return words or vectors of `dim` finite numbers; raise TypeError for anything else."""
    if isinstance(query, str):
        return Queries([str(query)], None, True)
    if query is None or isinstance(query, bytes | set | frozenset | dict):
        raise TypeError(f"ask for a word, a vector, or lists of them, not {query!r}")
    if isinstance(query, Iterable) and not hasattr(query, "__array__"):
        query = list(query)
    if isinstance(query, list) and not query:
        return Queries(None, np.empty((0, dim)), False)
    if isinstance(query, list) and all(isinstance(each, str) for each in query):
        return Queries([str(word) for word in query], None, False)
    values = np.asarray(query)
    if values.dtype.kind in "UTO" and values.ndim == 1:
        return Queries([str(word) for word in values.tolist()], None, False)
    if not is_number(values.dtype):
        raise TypeError("ask for a word, a vector, or lists of them")
    vectors = np.atleast_2d(values).astype(np.float64)
    if values.ndim not in (1, 2) or vectors.shape[1] != dim:
        raise ValueError(
            f"a vector must have the shape ({dim},), and several (m, {dim}), not {values.shape}"
        )
    return Queries(None, check_finite(vectors), values.ndim == 1)


def parse_words(words: Sequence[str | Iterable[str]]) -> tuple[list[list[str]], bool]:
    """Return lists of equal length, and whether every one of `words` was a single word."""
    lists = [[str(each)] if isinstance(each, str) else list(each) for each in words]
    lengths = [len(each) for each in lists]
    if len(set(lengths)) > 1:
        raise ValueError(f"a, b and c must have the same length, not {lengths}")
    return lists, all(isinstance(each, str) for each in words)


def check_finite(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return vectors as float64, or raise NotFiniteError if a value is not finite."""
    if not np.isfinite(vectors).all():
        raise NotFiniteError("nothing is near to a vector with values that are not finite")
    return vectors.astype(np.float64, copy=False)
