"""Which words are near: rankings by cosine, dot product or distance, analogies.

:class:`Similarity` turns words into vectors and rows into words. :mod:`embmap.search.exact` finds
the rows; for approximate search, :mod:`embmap.search.approximate` proposes them.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from embmap.codecs.products import vecdot
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.search.approximate import ApproximateIndex, build_index
from embmap.search.exact import ExactSearch, scale_to_units
from embmap.search.queries import Metric, Neighbor, Queries, check_finite
from embmap.vectors.matrix import Matrix, out_of_range
from embmap.words.vocabulary import Vocabulary

__all__ = ["Similarity", "measure_cosine"]


class Searched(Protocol):
    """The part of :class:`embmap.EmbeddingFile` that a search uses."""

    @property
    def path(self) -> Path: ...

    @property
    def mapped_files(self) -> tuple[ByteSource, ...]: ...

    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]: ...

    def batch(self, words: Iterable[str]) -> npt.NDArray[Any]: ...


class Similarity:
    """Compares the words of an open file. Keeps the lengths of their vectors after the first use.

    Every call takes the file, because a reference kept here would keep the file in memory.
    """

    def __init__(self, words: Vocabulary | None, matrix: Matrix, beside: Path) -> None:
        self._beside = beside
        self._words = words
        self._dim = matrix.shape[1]
        # Further rows belong to subwords.
        self.n_rows = len(matrix) if words is None else len(words)
        self._matrix = matrix
        self._search = ExactSearch(matrix, self.n_rows)
        self._approximate: ApproximateIndex | None = None

    def nearest(
        self,
        file: Searched,
        queries: Queries,
        n: int,
        *,
        metric: Metric,
        exclude: Iterable[str | int] | None,
        approximate: bool,
    ) -> list[list[Neighbor]]:
        """Return the neighbors of each query."""
        words, vectors = queries.words, queries.vectors
        if vectors is None:
            vectors = self._vectors(file, words or [])
        if exclude is not None:
            excluded = [self._rows(file, exclude)] * len(vectors)
        elif words is not None:
            excluded = [row[row >= 0] for row in file.find(words)[:, np.newaxis]]
        else:
            excluded = [np.empty(0, np.int64)] * len(vectors)
        n = min(n, self.n_rows)
        if not approximate:
            return self._ranked(self._search.nearest(vectors, n, metric, excluded))
        index = self._index(file, metric)
        rows = index.candidates(scale_to_units(vectors), n, excluded)
        return self._ranked(self._search.scored(vectors, n, rows))

    def build_index(
        self, file: Searched, path: str | os.PathLike[str] | None, progress: Progress | None
    ) -> Path:
        """Write an approximate index and use it from now on."""
        target = self._beside if path is None else Path(os.fsdecode(path))
        if target.exists() and target.samefile(file.path):
            raise ValueError(f"{target} holds the data; name another file for the index")
        if not self.n_rows:
            raise ValueError(f"{file.path} has no words to index")
        data = file.mapped_files[0]
        build_index(target, data, self._matrix, self.n_rows, progress=progress)
        self._approximate = ApproximateIndex(target, data, (self.n_rows, self._dim))
        return target

    def _index(self, file: Searched, metric: Metric) -> ApproximateIndex:
        if metric != "cosine":
            raise ValueError(f"metric must be 'cosine' for an approximate search, not {metric!r}")
        if self._approximate is None:
            shape = self.n_rows, self._dim
            self._approximate = ApproximateIndex(self._beside, file.mapped_files[0], shape)
        return self._approximate

    def complete(
        self, file: Searched, questions: Sequence[Sequence[str]], n: int
    ) -> list[list[Neighbor]]:
        """Return the answers to analogies, given as all their a, all their b and all their c."""
        m = len(questions[0])
        words = [word for part in questions for word in part]
        units = scale_to_units(self._vectors(file, words))
        rows = file.find(words).reshape(3, m)
        excluded = [np.unique(part[part >= 0]) for part in rows.T]
        targets = units[m : 2 * m] - units[:m] + units[2 * m :]
        found = self._search.nearest(targets, min(n, self.n_rows), "cosine", excluded)
        return self._ranked(found)

    def _ranked(
        self, found: Iterable[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]
    ) -> list[list[Neighbor]]:
        words = self._words
        return [
            [
                Neighbor(row, None if words is None else words[row], score)
                for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
            ]
            for rows, scores in found
        ]

    def _vectors(self, file: Searched, words: Sequence[str]) -> npt.NDArray[np.float64]:
        return check_finite(file.batch(words))

    def _rows(self, file: Searched, exclude: Iterable[str | int]) -> npt.NDArray[np.int64]:
        """Return the rows of words and row numbers, each once; unknown words are left out."""
        if isinstance(exclude, str):
            raise TypeError("exclude takes a list of words or rows")
        asked = list(exclude)
        words = [item for item in asked if isinstance(item, str)]
        rows = [operator.index(item) for item in asked if not isinstance(item, str)]
        wrong = [row for row in rows if not -self.n_rows <= row < self.n_rows]
        if wrong:
            raise out_of_range("row", wrong[0], self.n_rows)
        numbers = np.array([row % self.n_rows for row in rows], np.int64)
        of_words = file.find(words) if words else np.empty(0, np.int64)
        return np.unique(np.concatenate((numbers, of_words[of_words >= 0])))


def measure_cosine(pair: npt.NDArray[Any]) -> float:
    """Return the cosine of two vectors, given as an array (2, dim)."""
    first, second = scale_to_units(check_finite(pair))
    return min(max(float(vecdot(first, second)), -1.0), 1.0)
