"""The best of scanned rows for each query, and the rows that rounding leaves in doubt."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.products import vecdot
from embmap.search.lengths import (
    HIGH,
    LOW,
    SMALLER,
    cosines,
    measure_lengths,
    scale_to_units,
)
from embmap.search.queries import Metric
from embmap.vectors.matrix import Matrix

__all__ = ["Count", "Ranking"]

_POOL = 1 << 12  # number of candidates above which the worse ones are dropped
_PAIRS = 1 << 10  # number of rows that are scored again at a time
_ROUNDING = 2.0**-21  # times dim: an upper bound of the rounding error of a product of unit vectors


class Ranking:
    """The best rows so far for each query, and the rows that rounding leaves in doubt.

    During the scan, queries have unit length, and a score is a number that orders rows as the
    metric does. `slack` is an upper bound of its rounding error.
    """

    def __init__(self, matrix: Matrix, queries: npt.NDArray[Any], n: int, metric: Metric) -> None:
        self._matrix = matrix
        self._metric = metric
        self.n = n
        self._queries = queries.astype(np.float64)
        self._lengths = measure_lengths(self._queries)
        self.units = scale_to_units(self._queries)
        self._floors = np.full(len(queries), -np.inf)
        self._slack = _ROUNDING * (matrix.shape[1] + 8)
        self._pool: list[tuple[npt.NDArray[Any], ...]] = []
        self._n_pool = 0
        self._limit = _POOL + 2 * n * len(queries)
        self._lock = threading.Lock()

    def scores(
        self,
        products: npt.NDArray[Any],
        lengths: npt.NDArray[Any],
        errors: npt.NDArray[Any] | None = None,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return upper bounds of the scores, written over `products`, and their slack.

        With `errors`, which may be written over, the products differ by no more than these.
        """
        dtype = products.dtype
        slack = np.full(1, self._slack, dtype)
        if self._metric == "cosine":
            safe = np.maximum(lengths, np.finfo(dtype).tiny)
            products /= safe
            if errors is not None:
                errors /= safe
        elif self._metric == "dot":
            slack = slack * lengths
        else:
            of_query = self._lengths[:, np.newaxis].astype(dtype)
            squares = lengths * lengths
            products *= 2 * of_query
            products -= squares
            slack = slack * (squares + 2 * lengths * of_query)
            if errors is not None:
                errors *= 2 * of_query
        if errors is not None:
            errors += slack
            slack = errors
        products += slack
        plain = bool(lengths.size) and lengths.min() >= LOW and lengths.max() <= HIGH
        if not plain or self._metric == "euclidean":
            slack = np.broadcast_to(slack, products.shape).copy()
            strange = (lengths > 0) & ~((lengths >= LOW) & (lengths <= HIGH))
            if self._metric == "euclidean" and self._lengths.max(initial=0) > HIGH:
                strange = np.ones(lengths.size, np.bool_)
            products[:, strange], slack[:, strange] = np.inf, np.inf
            products[:, np.isnan(lengths)] = np.nan
        return products, slack

    def consider(
        self,
        numbers: range | npt.NDArray[np.int64],
        scores: npt.NDArray[Any],
        slack: npt.NDArray[Any],
    ) -> None:
        """Keep the rows, of these, that may be among the best."""
        m, n_rows = scores.shape
        floors = self._floors.astype(scores.dtype)[:, np.newaxis]
        hits = np.flatnonzero(scores >= floors)
        if not hits.size:
            return
        if hits.size > 4 * self.n * m and n_rows > self.n:  # this block raises the floors
            lower = scores - 2 * slack
            lower[~(lower > -np.inf)] = -np.inf  # NaN as well
            nth = np.partition(lower, n_rows - self.n, axis=1)[:, n_rows - self.n]
            hits = np.flatnonzero(scores >= np.maximum(floors, nth[:, np.newaxis]))
            with self._lock:
                np.maximum(self._floors, nth, out=self._floors)
        which, rows = np.divmod(hits, n_rows)
        upper = scores[which, rows]
        lower = upper - 2 * np.broadcast_to(slack, scores.shape)[which, rows]
        rows = rows + numbers.start if isinstance(numbers, range) else numbers[rows]
        self.keep(which, rows, upper, np.where(np.isnan(lower), -np.inf, lower))

    def keep(
        self,
        which: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        upper: npt.ArrayLike,
        lower: npt.ArrayLike,
    ) -> None:
        """Add candidates: their queries, their rows, and the bounds of their scores."""
        bounds = [np.broadcast_to(bound, rows.shape).astype(np.float64) for bound in (upper, lower)]
        with self._lock:
            self._pool.append((which, rows, *bounds))
            self._n_pool += rows.size
            if self._n_pool > self._limit:
                self._shrink()

    def _shrink(self) -> None:
        """Drop candidates that are worse than `n` others."""
        self._drop()
        if self._n_pool > self._limit // 2:
            self._decide()

    def _drop(self) -> None:
        """Drop candidates whose bounds show that they are worse than `n` others."""
        which, rows, upper, lower = map(np.concatenate, zip(*self._pool, strict=True))
        order = np.lexsort((-lower, which))
        counts = np.bincount(which, minlength=len(self.units))
        nth = np.cumsum(counts) - counts + self.n - 1
        full = np.flatnonzero(counts >= self.n)
        self._floors[full] = np.maximum(self._floors[full], lower[order[nth[full]]])
        kept = np.flatnonzero(upper >= self._floors[which])
        self._pool = [(which[kept], rows[kept], upper[kept], lower[kept])]
        self._n_pool = kept.size

    def _decide(self) -> None:
        """Let exact scores decide between candidates, which are mostly ties."""
        which, rows, exact, _ = self._best()
        bounds = self._as_scanned(which, exact)
        known = np.isfinite(bounds)  # an infinite score bounds nothing
        upper, lower = np.where(known, bounds, np.inf), np.where(known, bounds, -np.inf)
        self._pool, self._n_pool = [(which, rows, upper, lower)], rows.size
        full = np.flatnonzero(np.bincount(which, minlength=len(self.units)) >= self.n)
        last = np.searchsorted(which, full, "right") - 1
        self._floors[full] = np.maximum(self._floors[full], lower[last])

    def _best(self) -> tuple[npt.NDArray[Any], ...]:
        """Return queries, rows and exact scores of the best candidates, sorted."""
        empty = np.empty(0, np.int64)
        pool = [(empty, empty, np.empty(0), np.empty(0)), *self._pool]
        which, rows, upper, lower = map(np.concatenate, zip(*pool, strict=True))
        exact, beyond = np.empty(rows.size), np.zeros(rows.size)
        for first in range(0, rows.size, _PAIRS):
            part = slice(first, first + _PAIRS)
            exact[part] = self._exact(which[part], rows[part])
            huge = first + np.flatnonzero(np.isinf(exact[part]))
            if huge.size:  # too large for float64: rank scaled scores
                beyond[huge] = self._exact(which[huge], rows[huge], SMALLER)
        self._compare(which, exact, upper, lower)
        order = np.lexsort((rows, -beyond, -exact, which))
        order = order[~np.isnan(exact[order])]
        which = which[order]
        rank = np.arange(order.size) - np.searchsorted(which, which)
        order, which = order[rank < self.n], which[rank < self.n]
        return which, rows[order], exact[order], empty

    def _compare(
        self,
        which: npt.NDArray[np.int64],
        exact: npt.NDArray[np.float64],
        upper: npt.NDArray[np.float64],
        lower: npt.NDArray[np.float64],
    ) -> None:
        """Compare exact scores with their bounds, which hold if the products come from rows."""

    def _exact(
        self, which: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], factor: float = 1.0
    ) -> npt.NDArray[np.float64]:
        """Return the scores of pairs of a query and a row, both times a factor.

        The score is NaN if the row is not finite. If an intermediate result overflows,
        the score is computed from smaller numbers.
        """
        vectors = self._matrix.take(rows).astype(np.float64) * factor
        scores: npt.NDArray[np.float64]
        with np.errstate(all="ignore"):
            if self._metric == "cosine":
                return cosines(vectors, self.units[which])
            queries = self._queries[which] * factor
            finite = np.isfinite(vectors).all(axis=1)
            scores = self._score(vectors, queries)
            wrong = np.flatnonzero(finite & ~np.isfinite(scores))
            if wrong.size:
                smaller = self._score(vectors[wrong] * SMALLER, queries[wrong] * SMALLER)
                scores[wrong] = smaller / SMALLER
                if self._metric == "dot":
                    scores[wrong] /= SMALLER
            scores[~finite] = np.nan
            return scores

    def _score(
        self, vectors: npt.NDArray[np.float64], queries: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return the distances of pairs times -1, or their dot products."""
        if self._metric == "euclidean":
            return -measure_lengths(vectors - queries)
        return cast("npt.NDArray[np.float64]", vecdot(vectors, queries))

    def _as_scanned(
        self, which: npt.NDArray[np.int64], exact: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return exact scores converted to the scores of the scan."""
        lengths = self._lengths[which]
        if self._metric == "cosine":
            return exact
        if self._metric == "dot":
            exact = exact / np.where(lengths > 0, lengths, 1)
        else:
            exact = lengths * lengths - exact * exact
        return exact

    def settled(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Return rows and scores of the best, for each query."""
        if self._pool:
            self._shrink()
        which, rows, scores, _ = self._best()
        bounds = np.searchsorted(which, np.arange(1, len(self.units)))
        return list(zip(np.split(rows, bounds), np.split(scores, bounds), strict=True))


class Count(Ranking):
    """The number of rows that have a greater cosine with the only query than a vector has."""

    def __init__(self, matrix: Matrix, query: npt.NDArray[Any], other: npt.NDArray[Any]) -> None:
        super().__init__(matrix, query[np.newaxis], 1, "cosine")
        self._bound = cosines(other[np.newaxis].astype(np.float64), self.units)[0]
        self.n_nearer = 0

    def consider(
        self,
        numbers: range | npt.NDArray[np.int64],
        scores: npt.NDArray[Any],
        slack: npt.NDArray[Any],
    ) -> None:
        """Count the rows, of these, that are nearer."""
        upper = scores[0].astype(np.float64)
        sure = upper - 2 * np.broadcast_to(slack, scores.shape)[0] > self._bound
        n_nearer = int(np.count_nonzero(sure))
        rows = np.flatnonzero((upper > self._bound) & ~sure)
        for first in range(0, rows.size, _PAIRS):
            part = np.asarray(numbers)[rows[first : first + _PAIRS]]
            exact = self._exact(np.zeros(part.size, np.int64), part)
            n_nearer += int(np.count_nonzero(exact > self._bound))
        with self._lock:
            self.n_nearer += n_nearer
