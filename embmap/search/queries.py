"""Questions to a search: words, vectors, sums of them, and what they are compared with."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import is_number
from embmap.vectors.matrix import out_of_range

__all__ = [
    "METRICS",
    "Among",
    "Metric",
    "Neighbor",
    "NotFiniteError",
    "OneQuery",
    "Options",
    "Queries",
    "QueryError",
    "SeveralQueries",
    "Terms",
    "UnknownSectionError",
    "Words",
    "check_finite",
    "check_metric",
    "check_n",
    "parse_among",
    "parse_analogies",
    "parse_dim",
    "parse_exclude",
    "parse_queries",
    "parse_sum",
]

Metric = Literal["cosine", "dot", "euclidean"]
METRICS: tuple[Metric, ...] = get_args(Metric)

Vector = Sequence[float] | np.ndarray[tuple[int], np.dtype[Any]]
Words = list[str] | tuple[str, ...]  # not Sequence[str], which a single word is as well
OneQuery = str | Vector
"""A word, or a vector of shape (dim,)."""
SeveralQueries = Words | Sequence[Vector] | np.ndarray[tuple[int, int], np.dtype[Any]]
"""Words, or vectors of shape (m, dim)."""


Among = Words | npt.ArrayLike | Mapping[str, Any]
"""Words, rows, a mask of all rows, or the metadata of sections."""
Terms = (
    str
    | np.ndarray[tuple[int], np.dtype[Any]]
    | Sequence[str | Vector | tuple[str | Vector, float]]
)
"""A word or an array, or a list of words and vectors, each by itself or paired with its weight."""


class QueryError(ValueError):
    """A question that no file can answer."""


class NotFiniteError(QueryError):
    """A vector that neighbors are searched for has values that are not finite."""


class UnknownSectionError(QueryError):
    """A search is restricted to sections that the file does not have."""


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
    """One query or several: words or vectors, or weighted means of them.

    `words` are followed by float64 `vectors` (v, dim). Each is a query, unless there are `weights`
    (m, p): then each query is the mean of the next p, with words scaled to unit length.
    """

    words: list[str]
    vectors: npt.NDArray[np.float64]
    single: bool
    weights: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """What queries are compared with, and how many neighbors are listed.

    `among` has words, sorted rows, or metadata of sections. Whole vectors of all rows are compared
    where nothing else is given, and the words of the query are left out.
    """

    n: int
    metric: Metric = "cosine"
    dim: int | None = None
    among: list[str] | npt.NDArray[np.int64] | dict[str, Any] | None = None
    exclude: list[str | int] | None = None
    approximate: bool = False

    def __post_init__(self) -> None:
        """Refuse an approximate search that no index can answer."""
        if self.approximate and self.metric != "cosine":
            raise QueryError(
                f"metric must be 'cosine' for an approximate search, not {self.metric!r}"
            )
        if self.approximate and self.dim is not None:
            raise QueryError(f"dim must be None for an approximate search, not {self.dim}")


def check_metric(metric: str) -> Metric:
    """Return the name of a metric, or raise ValueError for any other string."""
    if metric not in METRICS:
        raise QueryError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}")
    return metric


def check_n(n: SupportsIndex) -> int:
    """Return a number of neighbors as an int, or raise ValueError for a negative one."""
    number = operator.index(n)
    if number < 0:
        raise QueryError(f"n must be at least 0, not {number}")
    return number


def parse_dim(dim: SupportsIndex | None, whole: int) -> int | None:
    """Return how many leading numbers of vectors to compare; None for all of them."""
    if dim is None:
        return None
    number = operator.index(dim)
    if not 1 <= number <= whole:
        raise QueryError(f"dim must be from 1 to {whole}, not {number}")
    return None if number == whole else number


def parse_queries(query: object, whole: int, dim: int | None = None) -> Queries:
    """Return words or vectors of finite numbers; raise TypeError for anything else.

    Vectors have `whole` numbers, of which the first `dim` are kept, or only these.
    """
    nothing = np.empty((0, dim or whole))
    if isinstance(query, str):
        return Queries([str(query)], nothing, True)
    if query is None or isinstance(query, bytes | set | frozenset | dict):
        raise TypeError(f"ask for a word, a vector, or lists of them, not {query!r}")
    if isinstance(query, Iterable) and not hasattr(query, "__array__"):
        query = list(query)
    if isinstance(query, list) and all(isinstance(each, str) for each in query):
        return Queries([str(word) for word in query], nothing, False)
    values = np.asarray(query)
    if values.dtype.kind in "UTO" and values.ndim == 1:
        return Queries([str(word) for word in values.tolist()], nothing, False)
    if not is_number(values.dtype):
        raise TypeError("ask for a word, a vector, or lists of them")
    vectors = np.atleast_2d(values).astype(np.float64)
    if values.ndim not in (1, 2) or vectors.shape[1] not in (whole, dim):
        raise QueryError(
            f"a vector must have the shape ({whole},), and several (m, {whole}), not {values.shape}"
        )
    return Queries([], check_finite(vectors[:, :dim]), values.ndim == 1)


def parse_sum(
    positive: Terms | None, negative: Terms | None, whole: int, dim: int | None = None
) -> Queries:
    """Return the mean of words and vectors, which count 1 or -1 or have a weight of their own."""
    words: list[str] = []
    vectors = [np.empty((0, dim or whole))]
    weights: tuple[list[float], list[float]] = [], []  # of words and of vectors
    for name, terms, usual in (("positive", positive, 1.0), ("negative", negative, -1.0)):
        for term in _listed(terms):
            what, weight = term if _is_pair(term) else (term, usual)
            if not np.isfinite(weight):
                raise QueryError(f"a weight in {name} must be a finite number, not {weight!r}")
            item = parse_queries(what, whole, dim)
            if not item.single:
                raise TypeError(f"{name} must list words and vectors, not {what!r}")
            words += item.words
            vectors.append(item.vectors)
            weights[not item.words].append(float(weight))
    if not (weights[0] or weights[1]):
        raise QueryError("positive and negative must have a word or a vector")
    return Queries(words, np.concatenate(vectors), True, np.array([weights[0] + weights[1]]))


def _listed(terms: Any) -> list[Any]:
    """Return terms as a list; a word and a vector may come without one."""
    if terms is None:
        return []
    if isinstance(terms, str) or (isinstance(terms, np.ndarray) and terms.ndim == 1):
        return [terms]
    if not isinstance(terms, Iterable) or isinstance(terms, bytes | Mapping):
        raise TypeError(f"list words and vectors, not {terms!r}")
    return list(terms)


def _is_pair(term: Any) -> bool:
    """Whether a term is a word or a vector with a weight; a vector of two numbers is not."""
    if not isinstance(term, tuple | list) or len(term) != 2 or isinstance(term[1], str):
        return False
    return (isinstance(term[0], str) or np.ndim(term[0]) == 1) and np.ndim(term[1]) == 0


def parse_analogies(words: Sequence[str | Iterable[str]], dim: int) -> Queries:
    """Return the means b - a + c; `words` are a, b and c, or equally long lists of each."""
    lists = [[str(each)] if isinstance(each, str) else list(each) for each in words]
    lengths = [len(each) for each in lists]
    if len(set(lengths)) > 1:
        raise QueryError(f"a, b and c must have the same length, not {lengths}")
    asked = [word for question in zip(*lists, strict=True) for word in question]
    single = all(isinstance(each, str) for each in words)
    weights = np.tile([-1.0, 1.0, 1.0], (lengths[0], 1))
    return Queries(asked, np.empty((0, dim)), single, weights)


def parse_among(
    among: Among | None, n_rows: int
) -> list[str] | npt.NDArray[np.int64] | dict[str, Any] | None:
    """Return words, rows sorted and each once, or the metadata of sections."""
    if among is None:
        return None
    if isinstance(among, str | bytes) or not isinstance(among, Iterable):
        raise TypeError(f"among takes words, rows, a mask, or metadata of sections, not {among!r}")
    if isinstance(among, Mapping):
        return {str(key): value for key, value in among.items()}
    listed = _read_among(among, n_rows)
    values = np.asarray(listed)
    if isinstance(listed, list) and {True, False} <= {isinstance(each, str) for each in listed}:
        raise TypeError("among takes either words or rows")
    if values.ndim != 1:
        raise QueryError(f"among must have one dimension, not {values.ndim}")
    if values.dtype.kind in "UTO" and all(isinstance(word, str) for word in values.tolist()):
        return [str(word) for word in values.tolist()]
    if values.dtype == np.bool_:
        if values.size != n_rows:
            raise QueryError(f"among must be a mask of {n_rows} rows, not of {values.size}")
        values = np.flatnonzero(values)
    if not values.size:
        raise QueryError("among must not be empty")
    if values.dtype.kind not in "iu":
        raise TypeError(f"among takes words, rows, a mask, or metadata of sections, not {among!r}")
    for row in (int(values.min()), int(values.max())):
        if not -n_rows <= row < n_rows:
            raise out_of_range("a row in among", row, n_rows)
    rows = values.astype(np.int64)
    rows[rows < 0] += n_rows
    return rows if (np.diff(rows) > 0).all() else np.unique(rows)


def _read_among(among: Iterable[Any], n_rows: int) -> Any:
    """Return words or rows as a list or an array; a range of rows costs no loop over them."""
    if isinstance(among, range) and among:
        first, last = sorted((among[0], among[-1]))
        if -n_rows <= first and last < n_rows:
            return np.arange(among.start, among.stop, among.step, dtype=np.int64)
        raise out_of_range("a row in among", first if first < -n_rows else last, n_rows)
    return among if hasattr(among, "__array__") else list(among)


def parse_exclude(
    exclude: Iterable[str | SupportsIndex] | None, n_rows: int
) -> list[str | int] | None:
    """Return words and rows to leave out as a list, without negative rows."""
    if exclude is None:
        return None
    if isinstance(exclude, str):
        raise TypeError("exclude takes a list of words or rows")
    parsed: list[str | int] = []
    for each in exclude:
        row = None if isinstance(each, str) else operator.index(each)
        if row is not None and not -n_rows <= row < n_rows:
            raise out_of_range("a row in exclude", row, n_rows)
        parsed.append(str(each) if row is None else row % n_rows)
    return parsed


def check_finite(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return vectors as float64, or raise NotFiniteError if a value is not finite."""
    if not np.isfinite(vectors).all():
        raise NotFiniteError("nothing is near to a vector with values that are not finite")
    return vectors.astype(np.float64, copy=False)
