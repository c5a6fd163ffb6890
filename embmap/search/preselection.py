"""Exact nearest rows by way of a sketch: its bounds leave few rows to compare exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels
from embmap.errors import StaleIndexError
from embmap.search.exact import ExactSearch, LeftOut, find_places, share_out
from embmap.search.queries import Metric
from embmap.search.ranking import Ranking
from embmap.search.sketch import Asked, sample_arguments
from embmap.search.sketch_file import SketchFile, SketchSource
from embmap.threads import in_parallel
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Selected

__all__ = ["SketchSearch"]

_FEWEST = 1 << 20  # numbers that a plain scan compares in less time than a sketch saves
_SHARE = 512  # with one of fewer rows in the answer, a plain scan costs less
_IN_DOUBT = 64  # with one of fewer rows in doubt, the same
_MOST_QUERIES = 4  # more share a plain scan, whose products BLAS computes together
_SHORTER = 4  # codes are compared in the time of a quarter as many numbers of float32
_BLOCK = 1 << 16  # scores of a block
_COPIED_NBYTES = 1 << 21  # codes gathered or read at a time, which stay in the cache


class Preselection(Ranking):
    """The best rows so far by bounds from a sketch; it gives up if too many rows are in doubt."""

    def __init__(self, matrix: Matrix, queries: npt.NDArray[Any], n: int, metric: Metric) -> None:
        super().__init__(matrix, queries, n, metric)
        self._limit += len(matrix) // _IN_DOUBT
        self.gave_up = False

    def find_near(
        self, bounds: npt.NDArray[Any], lengths: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        """Return the columns of bounds (m, n) of products that are high enough for any query."""
        floors = self._floors
        if np.isneginf(floors).any():
            return np.arange(lengths.size)
        # Twice the slack makes up for rounding here.
        floors, slack = floors[:, np.newaxis].astype(bounds.dtype), 2 * self._slack
        least = floors - slack * lengths
        if self._metric == "cosine":
            least = (floors - slack) * lengths
        elif self._metric == "euclidean":
            of_query = self._lengths[:, np.newaxis].astype(bounds.dtype)
            squares = lengths * lengths
            least = (floors + squares - slack * (squares + 2 * lengths * of_query)) / (2 * of_query)
        near = ~(bounds < least)
        return np.flatnonzero(near[0] if len(near) == 1 else near.any(axis=0))

    def _decide(self) -> None:
        self.gave_up = True

    def answers(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] | None:
        """Return rows and scores of the best, for each query; None if it gave up."""
        if self._pool:
            self._shrink()
        return None if self.gave_up else self.settled()

    def _compare(
        self,
        which: npt.NDArray[np.int64],
        exact: npt.NDArray[np.float64],
        upper: npt.NDArray[np.float64],
        lower: npt.NDArray[np.float64],
    ) -> None:
        """Raise StaleIndexError if the bounds of a row do not hold: the sketch is of other rows."""
        with np.errstate(all="ignore"):
            scanned = self._as_scanned(which, exact)
            rounding = np.zeros(1)
            if self._metric == "euclidean":  # a difference of squares
                rounding = 1e-9 * (self._lengths[which] ** 2 + exact**2)
            wrong = (scanned > upper + rounding) | (scanned < lower - rounding)
        if (wrong & np.isfinite(exact)).any():  # scores that overflowed are not compared
            raise StaleIndexError("the bounds in the sketch do not hold; build it again")


class SketchSearch:
    """Searches as another search does, by a sketch where that saves time."""

    def __init__(self, search: ExactSearch, matrix: Matrix, source: SketchSource) -> None:
        self._search = search
        self._matrix = matrix
        self._source = source

    def nearest(
        self,
        queries: npt.NDArray[Any],
        n: int,
        metric: Metric = "cosine",
        excluded: Sequence[npt.NDArray[np.int64]] | None = None,
        *,
        among: npt.NDArray[np.int64] | None = None,
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Return what :meth:`ExactSearch.nearest` returns."""
        size = self._source.n_rows if among is None else among.size
        few = 0 < n * _SHARE <= size and len(queries) <= _MOST_QUERIES
        n_numbers = size * self._matrix.shape[1] * len(queries)
        search = self._search.nearest
        if few and n_numbers >= _FEWEST and self._source.exists():
            kernel = kernels.find("code_bounds", *sample_arguments(self._matrix.dtype))
            if kernel is None:
                search = kernels.counted(search)
            else:
                ranking = Preselection(_selected(self._matrix, among), queries, n, metric)
                found = self._preselected(ranking, kernel, excluded, among)
                if found is not None:
                    return found
        return search(queries, n, metric, excluded, among=among)

    def _preselected(
        self,
        ranking: Preselection,
        kernel: Any,
        excluded: Sequence[npt.NDArray[np.int64]] | None,
        among: npt.NDArray[np.int64] | None,
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] | None:
        """Return the answers by the sketch; None if it is not valid or leaves many in doubt."""
        sketch = self._source.file()
        if sketch is None:
            return None
        rows: npt.NDArray[np.int64] | range = range(self._source.n_rows)
        if among is not None:
            rows, excluded = among, [find_places(among, each) for each in excluded or ()]
        try:
            _scan(ranking, (sketch, rows), LeftOut(excluded or (), None), kernel)
            found = ranking.answers()
        except StaleIndexError as error:
            self._source.drop(error)
            return None
        if among is None or found is None:
            return found
        return [(among[local], scores) for local, scores in found]


def _selected(matrix: Matrix, rows: npt.NDArray[np.int64] | None) -> Matrix:
    return matrix if rows is None else Selected(matrix, rows)


def _scan(
    ranking: Preselection,
    sketched: tuple[SketchFile, npt.NDArray[np.int64] | range],
    left_out: LeftOut,
    kernel: Any,
) -> None:
    """Let a ranking consider rows by the bounds of their scores."""
    sketch, rows = sketched
    width = sketch.width
    asked = Asked.of(ranking.units, sketch.columns, width)
    in_place = isinstance(rows, range) and sketch.zero_copy
    most = _BLOCK if in_place else max(_COPIED_NBYTES // width, 64)
    n_numbers = len(rows) * width * len(asked.numbers) // _SHORTER
    per_block, spans = share_out(len(rows), most, n_numbers)

    def work(span: tuple[int, int]) -> None:
        with np.errstate(all="ignore"):
            for start in range(*span, per_block):
                if ranking.gave_up:
                    return
                stop = min(start + per_block, span[1])
                part = sketch.rows(rows[start:stop])
                bounds = asked.bound(part, kernel)
                near = ranking.find_near(bounds, part.lengths)
                if not near.size:
                    continue
                errors, lengths = asked.errors(part, near), part.lengths[near]
                scores, slack = ranking.scores(bounds[:, near] - errors, lengths, errors)
                left_out.blank(scores, near + start)
                ranking.consider(near + start, scores, slack)

    in_parallel(work, spans)
