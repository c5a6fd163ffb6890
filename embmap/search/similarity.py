"""Which words are near: rankings by cosine, dot product or distance, analogies.

:class:`Similarity` turns words into vectors and rows into words; :mod:`embmap.search.exact` finds
the rows, and :mod:`embmap.approximate` proposes them where that is enough.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from embmap.codecs.products import vecdot
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.search import approximate
from embmap.search.approximate import ApproximateIndex
from embmap.search.exact import ExactSearch, Metric, checked_metric, units_of
from embmap.vectors.matrix import Matrix
from embmap.words.vocabulary import Vocabulary

__all__ = ["Metric", "Neighbor", "NotFiniteError", "Similarity"]


class NotFiniteError(ValueError):
    """A vector that neighbors are searched for has values that are not finite."""


class Neighbor(NamedTuple):
    """A word in a ranking.

    Attributes
    ----------
    row : int
        Its number.
    word : str or None
        The word; None in a file without words.
    score : float
        What it is ranked by: a cosine, a dot product, minus a distance, or how much one changed.
    """

    row: int
    word: str | None
    score: float


class Searched(Protocol):
    """What a search asks of the file that it goes through: as :class:`embmap.EmbeddingFile`."""

    @property
    def path(self) -> Path: ...

    @property
    def mapped_files(self) -> tuple[ByteSource, ...]: ...

    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]: ...

    def batch(self, words: Iterable[str]) -> npt.NDArray[Any]: ...


class Similarity:
    """The words of an open file, compared. Keeps the lengths of their vectors once it needs them.

    The file is handed to each call: kept here, it would keep itself alive.
    """

    def __init__(self, words: Vocabulary | None, matrix: Matrix, beside: Path) -> None:
        self._beside = beside
        self._words = words
        self._dim = matrix.shape[1]
        # Rows behind those of the words belong to subwords.
        self.n_rows = len(matrix) if self._words is None else len(self._words)
        self._matrix = matrix
        self._search = ExactSearch(matrix, self.n_rows)
        self._approximate: ApproximateIndex | None = None

    def most_similar(
        self,
        file: Searched,
        query: Any,
        n: int,
        metric: str,
        exclude: Iterable[str | int] | None,
        proposed: bool,
    ) -> list[Any]:
        """Answer :meth:`embmap.EmbeddingFile.most_similar`."""
        words, vectors, alone = self._queries(file, query)
        own = [None] * len(vectors) if words is None else [int(row) for row in file.find(words)]
        if exclude is None:
            excluded = [np.array([] if row is None or row < 0 else [row], np.int64) for row in own]
        else:
            excluded = [self._rows(file, exclude)] * len(vectors)
        propose = self._proposing(file, metric) if proposed else None
        found = self._nearest(vectors, n, metric, excluded, propose)
        return found[0] if alone else found

    def build_approximate(
        self, file: Searched, path: str | os.PathLike[str] | None, progress: Progress | None
    ) -> Path:
        """Write an approximate index and use it from now on."""
        target = self._beside if path is None else Path(os.fsdecode(path))
        if target.exists() and target.samefile(file.path):
            raise ValueError(f"{target} holds the data; name another file for the index")
        if not self.n_rows:
            raise ValueError(f"{file.path} has no words to index")
        data = file.mapped_files[0]
        approximate.build(target, data, self._matrix, self.n_rows, progress)
        self._approximate = ApproximateIndex(target, data, (self.n_rows, self._dim))
        return target

    def _proposing(self, file: Searched, metric: str) -> ApproximateIndex:
        if checked_metric(metric) != "cosine":
            raise ValueError(f"approximate search knows the cosine, not {metric}")
        if self._approximate is None:
            shape = self.n_rows, self._dim
            self._approximate = ApproximateIndex(self._beside, file.mapped_files[0], shape)
        return self._approximate

    def analogy(self, file: Searched, a: Any, b: Any, c: Any, n: int) -> list[Any]:
        """Answer :meth:`embmap.EmbeddingFile.analogy`."""
        alone = all(isinstance(words, str) for words in (a, b, c))
        asked = [[words] if isinstance(words, str) else list(words) for words in (a, b, c)]
        m = len(asked[0])
        if len(asked[1]) != m or len(asked[2]) != m:
            raise ValueError(f"{m}, {len(asked[1])} and {len(asked[2])} words are no questions")
        together = [word for words in asked for word in words]
        units = units_of(self._vectors(file, together))
        rows = file.find(together).reshape(3, m)
        excluded = [np.unique(part[part >= 0]) for part in rows.T]
        targets = units[m : 2 * m] - units[:m] + units[2 * m :]
        found = self._nearest(targets, n, "cosine", excluded)
        return found[0] if alone else found

    def similarity(self, file: Searched, word1: str, word2: str) -> float:
        """Return the cosine of two words' vectors."""
        first, second = units_of(self._vectors(file, [word1, word2]))
        return min(max(float(vecdot(first, second)), -1.0), 1.0)

    def _nearest(
        self,
        vectors: npt.NDArray[np.float64],
        n: int,
        metric: str,
        excluded: list[npt.NDArray[np.int64]],
        propose: ApproximateIndex | None = None,
    ) -> list[list[Neighbor]]:
        n = min(operator.index(n), self.n_rows)
        if n < 0:
            raise ValueError(f"there are no {n} words")
        if propose is None:
            found = self._search.nearest(vectors, n, checked_metric(metric), excluded)
        else:
            rows = propose.candidates(units_of(vectors), n, excluded)
            found = self._search.scored(vectors, n, rows)
        return [self._named(rows, scores) for rows, scores in found]

    def _named(
        self, rows: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]
    ) -> list[Neighbor]:
        words = self._words
        return [
            Neighbor(row, None if words is None else words[row], score)
            for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def _queries(
        self, file: Searched, query: Any
    ) -> tuple[list[str] | None, npt.NDArray[np.float64], bool]:
        """Return the words asked for, if they are words, their vectors, and whether it is one."""
        if isinstance(query, str):
            return [str(query)], self._vectors(file, [str(query)]), True
        if query is None or isinstance(query, bytes | set | frozenset | dict):
            raise TypeError(f"ask for a word, a vector, or lists of them, not {query!r}")
        if isinstance(query, Iterable) and not isinstance(query, np.ndarray):
            query = query if hasattr(query, "__array__") else list(query)
            if len(query) and all(isinstance(item, str) for item in query):
                return list(query), self._vectors(file, list(query)), False
        if isinstance(query, list) and not query:
            return None, np.empty((0, self._dim)), False
        values = np.asarray(query)
        if values.dtype.kind in "UTO" and values.ndim == 1:
            words = [str(word) for word in values.tolist()]
            return words, self._vectors(file, words), False
        if values.dtype.kind not in "iuf" and values.dtype.name != "bfloat16":
            raise TypeError("ask for a word, a vector, or lists of them")
        vectors = np.atleast_2d(values).astype(np.float64)
        if values.ndim not in (1, 2) or vectors.shape[1] != self._dim:
            raise ValueError(
                f"a vector must have the shape ({self._dim},), and several (m, {self._dim}), "
                f"not {values.shape}"
            )
        return None, self._finite(vectors), values.ndim == 1

    def _vectors(self, file: Searched, words: Sequence[str]) -> npt.NDArray[np.float64]:
        return self._finite(file.batch(words).astype(np.float64))

    def _finite(self, vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if not np.isfinite(vectors).all():
            raise NotFiniteError("nothing is near to a vector with values that are not finite")
        return vectors

    def _rows(self, file: Searched, exclude: Iterable[str | int]) -> npt.NDArray[np.int64]:
        """Return the rows that words and row numbers mean; words that are not there mean none."""
        if isinstance(exclude, str):
            raise TypeError("exclude takes a list of words or rows")
        asked = list(exclude)
        words = [item for item in asked if isinstance(item, str)]
        rows = [operator.index(item) for item in asked if not isinstance(item, str)]
        wrong = [row for row in rows if not -self.n_rows <= row < self.n_rows]
        if wrong:
            raise IndexError(f"row {wrong[0]} of {self.n_rows}")
        found = np.array([row % self.n_rows for row in rows], np.int64)
        named = file.find(words) if words else np.empty(0, np.int64)
        return np.unique(np.concatenate((found, named[named >= 0])))
