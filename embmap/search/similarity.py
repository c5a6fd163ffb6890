"""Which words are near: rankings by cosine, dot product or distance, of all words or some.

:class:`Similarity` turns words into vectors and rows into words. :mod:`embmap.search.exact` finds
the rows; for approximate search, :mod:`embmap.search.approximate` proposes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from embmap.codecs.products import vecdot
from embmap.errors import UnknownWordError
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.search import approximate, sketch_file
from embmap.search.approximate import ApproximateSource
from embmap.search.exact import ExactSearch
from embmap.search.lengths import scale_to_units
from embmap.search.preselection import SketchSearch
from embmap.search.queries import Neighbor, Options, Queries, check_finite
from embmap.search.sketch_file import SketchSource
from embmap.vectors.matrix import Matrix
from embmap.words.vocabulary import Vocabulary

__all__ = ["Similarity", "measure_cosine"]


class Searched(Protocol):
    """The part of :class:`embmap.EmbeddingFile` that a search uses."""

    @property
    def path(self) -> Path: ...

    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]: ...

    def batch(self, words: Iterable[str]) -> npt.NDArray[Any]: ...


class Similarity:
    """Compares the words of an open file. Keeps the lengths of their vectors after the first use.

    Every call takes the file, because a reference kept here would keep the file in memory.
    """

    def __init__(
        self,
        words: Vocabulary | None,
        matrix: Matrix,
        data: ByteSource,
        beside: Callable[[str], Path],
    ) -> None:
        self._words = words
        # Further rows belong to subwords.
        self.n_rows = len(matrix) if words is None else len(words)
        self._matrix = matrix
        shape = self.n_rows, matrix.shape[1]
        self.sketch = SketchSource(beside(sketch_file.SUFFIX), data, matrix, self.n_rows)
        self._search = ExactSearch(matrix, self.n_rows)
        self._sketched = SketchSearch(self._search, matrix, self.sketch)
        self._cut: tuple[int, ExactSearch] | None = None
        self._data = data
        self.approximate = ApproximateSource(beside(approximate.SUFFIX), data, shape)

    def nearest(self, file: Searched, queries: Queries, options: Options) -> list[list[Neighbor]]:
        """Return the neighbors of each query."""
        vectors = self._vectors(file, queries, options.dim)
        excluded = self._excluded(file, queries, options.exclude)
        among = self._rows_among(file, options.among)
        n = min(options.n, self.n_rows)
        if options.approximate:
            units = scale_to_units(vectors)
            proposed = self.approximate.index().candidates(units, n, excluded, among)
            if proposed is not None:
                return self._ranked(self._search.scored(vectors, n, proposed))
        search = self._search_of(options.dim)
        return self._ranked(search.nearest(vectors, n, options.metric, excluded, among=among))

    def rank(self, file: Searched, word: str, other: str) -> int:
        """Return the rank of a word among the neighbors of another."""
        pair, rows = check_finite(file.batch([word, other])), file.find([word, other])
        return 1 + self._search.count_nearer(pair[0], pair[1], rows[rows >= 0])

    def _search_of(self, dim: int | None) -> ExactSearch | SketchSearch:
        """Return the search of the first `dim` columns; the last one is kept, with its lengths."""
        if dim is None:
            return self._sketched
        kept = self._cut
        if kept is None or kept[0] != dim:
            kept = self._cut = dim, ExactSearch(self._matrix, self.n_rows, dim)
        return kept[1]

    def build_ann(
        self, file: Searched, path: str | os.PathLike[str] | None, progress: Progress | None
    ) -> Path:
        """Write an approximate index and use it from now on."""
        target = self._target(file, path, self.approximate.path)
        self.approximate.build(target, self._matrix, progress)
        return target

    def build_sketch(
        self, file: Searched, path: str | os.PathLike[str] | None, progress: Progress | None
    ) -> Path:
        """Write a sketch and use it from now on."""
        target = self._target(file, path, self.sketch.path)
        self.sketch.build(target, progress)
        return target

    def _target(self, file: Searched, path: str | os.PathLike[str] | None, usual: Path) -> Path:
        """Return the path of an index to write, or raise ValueError."""
        target = usual if path is None else Path(os.fsdecode(path))
        if target.exists() and target.samefile(file.path):
            raise ValueError(f"{target} holds the data; name another file for the index")
        if not self.n_rows:
            raise ValueError(f"{file.path} has no words to index")
        return target

    def check_sketch(self) -> None:
        """Check FILE.sketch, if it exists, against its checksums and every row."""
        self.sketch.check_all()

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

    def _vectors(
        self, file: Searched, queries: Queries, dim: int | None
    ) -> npt.NDArray[np.float64]:
        """Return the vector of each query: (m, dim)."""
        found = check_finite(file.batch(queries.words)[:, :dim])
        if queries.weights is None:
            return np.concatenate((found, queries.vectors))
        items = np.concatenate((scale_to_units(found), queries.vectors))
        m, p = _shape(queries)
        largest = np.abs(queries.weights).max(axis=1, keepdims=True)  # whose sum may overflow
        weights = queries.weights / np.where(largest > 0, largest, 1)
        totals = np.abs(weights).sum(axis=1, keepdims=True)
        weights /= np.where(totals > 0, totals, 1)
        means: npt.NDArray[np.float64] = np.einsum(
            "mp,mpd->md", weights, items.reshape(m, p, items.shape[1])
        )
        return means

    def _excluded(
        self, file: Searched, queries: Queries, exclude: list[str | int] | None
    ) -> list[npt.NDArray[np.int64]]:
        """Return the rows that are no answer to each query; unknown words have none."""
        m, p = _shape(queries)
        if exclude is not None:
            words = [item for item in exclude if isinstance(item, str)]
            rows = [item for item in exclude if not isinstance(item, str)]
            rows += file.find(words).tolist()
            return [np.unique([row for row in rows if row >= 0]).astype(np.int64)] * m
        found = np.full(m * p, -1, np.int64)
        if queries.words:
            found[: len(queries.words)] = file.find(queries.words)
        return [np.unique(part[part >= 0]) for part in found.reshape(m, p)]

    def _rows_among(
        self, file: Searched, among: list[str] | npt.NDArray[np.int64] | dict[str, Any] | None
    ) -> npt.NDArray[np.int64] | None:
        """Return the rows to compare, sorted and each once; None for all.

        The file has replaced metadata of sections by rows.
        """
        if isinstance(among, list):
            rows = file.find(among)
            unknown = np.flatnonzero(rows < 0)
            if unknown.size:
                word = among[int(unknown[0])]
                raise UnknownWordError(
                    word, path=file.path, n_unknown=unknown.size, wordless=self._words is None
                )
            return np.unique(rows)
        return among if isinstance(among, np.ndarray) else None


def _shape(queries: Queries) -> tuple[int, int]:
    """Return the number of queries, and the number of words and vectors that each is made from."""
    if queries.weights is None:
        return len(queries.words) + len(queries.vectors), 1
    m, p = queries.weights.shape
    return m, p


def measure_cosine(pair: npt.NDArray[Any]) -> float:
    """Return the cosine of two vectors, given as an array (2, dim)."""
    first, second = scale_to_units(check_finite(pair))
    return min(max(float(vecdot(first, second)), -1.0), 1.0)
