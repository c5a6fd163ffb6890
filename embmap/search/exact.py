"""Exact nearest rows of a matrix, found in one pass over its blocks.

Every row is scored in the matrix's own precision. If rounding leaves the rank of a row in doubt,
the row is scored again in float64. Ranks, scores and ties therefore do not depend on blocks,
threads, back end or kernels. Quantized rows are scored from their codes. Memory is bounded by the
size of the blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.products import multiply, vecdot
from embmap.search.queries import Metric
from embmap.threads import in_parallel, n_threads
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix
from embmap.vectors.streamed import Leading, Selected

__all__ = ["ExactSearch", "measure_lengths", "scale_to_units"]

_BLOCK_NBYTES = 1 << 23
_GATHERED_NBYTES = 1 << 21  # size of the blocks of gathered rows, which stay in the cache
_SCATTERED = 5  # gathering a row takes as long as comparing about as many rows that lie together
_SCORES = 1 << 17  # number of scores in a block, if its rows need no copy
_QUERIES = 512  # largest number of queries in one pass over the matrix
_FEW = 24  # with more queries, decoding rows costs less than adding up table entries
_PARALLEL = 1 << 20  # number of multiplications above which a second thread saves time
_POOL = 1 << 12  # number of candidates above which the worse ones are dropped
_PAIRS = 1 << 10  # number of rows that are scored again at a time
_LOW, _HIGH = 1e-15, 1e15  # range of lengths whose squares and products fit into float32
_SMALLER = 2.0**-600  # times this, float64 numbers can be squared and added up without overflow
_ROUNDING = 2.0**-21  # times dim: an upper bound of the rounding error of a product of unit vectors


class ExactSearch:
    """Searches the first `n_rows` rows of a matrix. Keeps their lengths, 4 bytes a float32 row.

    With `dim`, only the first `dim` columns are compared.
    """

    def __init__(self, matrix: Matrix, n_rows: int, dim: int | None = None) -> None:
        self._matrix = matrix if dim is None else Leading(matrix, dim)
        self._n_rows = n_rows
        self._columns = matrix.shape[1]  # which are decoded to compare some
        self._dtype = np.result_type(matrix.dtype, np.float32)
        self._lengths: npt.NDArray[Any] | None = None

    def nearest(
        self,
        queries: npt.NDArray[Any],
        n: int,
        metric: Metric = "cosine",
        excluded: Sequence[npt.NDArray[np.int64]] | None = None,
        *,
        among: npt.NDArray[np.int64] | None = None,
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Return the int64 rows nearest to each finite query (m, dim), and their float64 scores.

        The rows are sorted by falling score, and by number if scores are equal. Rows in `excluded`
        and rows that are not finite are left out; with `among`, sorted rows, all others as well. A
        score is a cosine (0 if a length is 0), a dot product, or a distance times -1.
        """
        kept = None
        if among is not None:
            n = min(n, among.size)
            n_runs = 1 + np.count_nonzero(np.diff(among) > 1)
            if among.size + _SCATTERED * n_runs < self._n_rows:
                places = [_places(among, rows) for rows in excluded or ()] or None
                found = self._among(among).nearest(queries, n, metric, places)
                return [(among[local], scores) for local, scores in found]
            kept = np.zeros(self._n_rows, np.bool_)
            kept[among] = True
        answers = []
        for first in range(0, len(queries), _QUERIES):
            at_once = slice(first, first + _QUERIES)
            ranking = _Ranking(self._matrix, queries[at_once], n, metric)
            left_out = _LeftOut([] if excluded is None else excluded[at_once], kept)
            answers += self._answer(ranking, left_out)
        return answers

    def scored(
        self, queries: npt.NDArray[Any], n: int, rows: Sequence[npt.NDArray[np.int64]]
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Return the nearest of given rows by their cosine; `rows` has an array for each query."""
        ranking = _Ranking(self._matrix, queries, n, "cosine")
        which = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
        ranking.keep(which, np.concatenate([np.empty(0, np.int64), *rows]), np.inf, -np.inf)
        return ranking.settled()

    def count_nearer(
        self, query: npt.NDArray[Any], other: npt.NDArray[Any], excluded: npt.NDArray[np.int64]
    ) -> int:
        """Return how many rows have a greater cosine with a query (dim,) than a vector has."""
        count = _Count(self._matrix, query, other)
        self._answer(count, _LeftOut([excluded], None))
        return count.n_nearer

    def _among(self, rows: npt.NDArray[np.int64]) -> ExactSearch:
        """Return the search of some rows, which it numbers from 0."""
        matrix = self._matrix
        part = matrix.select(rows) if isinstance(matrix, ProductMatrix) else Selected(matrix, rows)
        search = ExactSearch(part, rows.size)
        search._columns = self._columns
        if self._lengths is not None:
            search._lengths = self._lengths[rows]
        return search

    def _answer(
        self, ranking: _Ranking, left_out: _LeftOut
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        matrix, m = self._matrix, len(ranking.units)
        n_rows = self._n_rows if ranking.n else 0
        units = ranking.units.astype(self._dtype)
        known = self._lengths
        lengths = np.empty(n_rows, self._dtype) if known is None else known
        in_place = self._in_place(matrix)
        scan: _Scan
        if isinstance(matrix, ProductMatrix) and m <= _FEW:
            scan, row_nbytes = _ProductScan(matrix, units), matrix.codes.shape[1]
        else:
            scan = _DenseScan(matrix, units)
            row_nbytes = max(self._columns * self._dtype.itemsize, 1)
        block_nbytes = _GATHERED_NBYTES if isinstance(matrix, Selected) else _BLOCK_NBYTES
        per_block = max(block_nbytes // max(row_nbytes, 4 * m), 64)
        if in_place:
            per_block = max(_SCORES // m, 64)

        def work(span: tuple[int, int]) -> None:
            with np.errstate(all="ignore"):  # rows that overflow are scored again
                for start in range(*span, per_block):
                    stop = min(start + per_block, span[1])
                    products, measured = scan.block(start, stop, known is None)
                    if measured is not None:
                        lengths[start:stop] = measured
                    scores, slack = ranking.scores(products, lengths[start:stop])
                    left_out.blank(scores, start)
                    ranking.consider(start, scores, slack)

        n_spans = 4 * n_threads() if n_rows * matrix.shape[1] * m >= _PARALLEL else 1
        in_parallel(work, _spans(n_rows, per_block, n_spans))
        if n_rows == self._n_rows:
            self._lengths = lengths
        return ranking.settled()

    def _in_place(self, matrix: Matrix) -> bool:
        """Whether BLAS can multiply the rows in the map; a block then needs only its scores."""
        stored = matrix.codes if isinstance(matrix, ProductMatrix) else matrix
        array = stored.mapped()
        dtype = np.uint8 if stored is not matrix else self._dtype
        return array is not None and array.flags.aligned and array.dtype == dtype


class _Ranking:
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
        self, products: npt.NDArray[Any], lengths: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return upper bounds of the scores, written over `products`, and their slack."""
        dtype = products.dtype
        slack = np.full(1, self._slack, dtype)
        if self._metric == "cosine":
            products /= np.maximum(lengths, np.finfo(dtype).tiny)
        elif self._metric == "dot":
            slack = slack * lengths
        else:
            of_query = self._lengths[:, np.newaxis].astype(dtype)
            squares = lengths * lengths
            products *= 2 * of_query
            products -= squares
            slack = slack * (squares + 2 * lengths * of_query)
        products += slack
        plain = bool(lengths.size) and lengths.min() >= _LOW and lengths.max() <= _HIGH
        if not plain or self._metric == "euclidean":
            slack = np.broadcast_to(slack, products.shape).copy()
            strange = (lengths > 0) & ~((lengths >= _LOW) & (lengths <= _HIGH))
            if self._metric == "euclidean" and self._lengths.max(initial=0) > _HIGH:
                strange = np.ones(lengths.size, np.bool_)
            products[:, strange], slack[:, strange] = np.inf, np.inf
            products[:, np.isnan(lengths)] = np.nan
        return products, slack

    def consider(self, start: int, scores: npt.NDArray[Any], slack: npt.NDArray[Any]) -> None:
        """Keep the rows of a block that may be among the best."""
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
        self.keep(which, rows + start, upper, np.where(np.isnan(lower), -np.inf, lower))

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
        which, rows, upper, lower = map(np.concatenate, zip(*self._pool, strict=True))
        order = np.lexsort((-lower, which))
        counts = np.bincount(which, minlength=len(self.units))
        nth = np.cumsum(counts) - counts + self.n - 1
        full = np.flatnonzero(counts >= self.n)
        self._floors[full] = np.maximum(self._floors[full], lower[order[nth[full]]])
        kept = np.flatnonzero(upper >= self._floors[which])
        self._pool = [(which[kept], rows[kept], upper[kept], lower[kept])]
        self._n_pool = kept.size
        if self._n_pool > self._limit // 2:  # mostly ties: exact scores decide
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
        which, rows, *_ = map(np.concatenate, zip(*pool, strict=True))
        exact, beyond = np.empty(rows.size), np.zeros(rows.size)
        for first in range(0, rows.size, _PAIRS):
            part = slice(first, first + _PAIRS)
            exact[part] = self._exact(which[part], rows[part])
            huge = first + np.flatnonzero(np.isinf(exact[part]))
            if huge.size:  # too large for float64: rank scaled scores
                beyond[huge] = self._exact(which[huge], rows[huge], _SMALLER)
        order = np.lexsort((rows, -beyond, -exact, which))
        order = order[~np.isnan(exact[order])]
        which = which[order]
        rank = np.arange(order.size) - np.searchsorted(which, which)
        order, which = order[rank < self.n], which[rank < self.n]
        return which, rows[order], exact[order], empty

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
                return _cosines(vectors, self.units[which])
            queries = self._queries[which] * factor
            finite = np.isfinite(vectors).all(axis=1)
            scores = self._score(vectors, queries)
            wrong = np.flatnonzero(finite & ~np.isfinite(scores))
            if wrong.size:
                smaller = self._score(vectors[wrong] * _SMALLER, queries[wrong] * _SMALLER)
                scores[wrong] = smaller / _SMALLER
                if self._metric == "dot":
                    scores[wrong] /= _SMALLER
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


class _Count(_Ranking):
    """The number of rows that have a greater cosine with the only query than a vector has."""

    def __init__(self, matrix: Matrix, query: npt.NDArray[Any], other: npt.NDArray[Any]) -> None:
        super().__init__(matrix, query[np.newaxis], 1, "cosine")
        self._bound = _cosines(other[np.newaxis].astype(np.float64), self.units)[0]
        self.n_nearer = 0

    def consider(self, start: int, scores: npt.NDArray[Any], slack: npt.NDArray[Any]) -> None:
        """Count the rows of a block that are nearer."""
        upper = scores[0].astype(np.float64)
        sure = upper - 2 * np.broadcast_to(slack, scores.shape)[0] > self._bound
        n_nearer = int(np.count_nonzero(sure))
        rows = np.flatnonzero((upper > self._bound) & ~sure)
        for first in range(0, rows.size, _PAIRS):
            part = rows[first : first + _PAIRS] + start
            exact = self._exact(np.zeros(part.size, np.int64), part)
            n_nearer += int(np.count_nonzero(exact > self._bound))
        with self._lock:
            self.n_nearer += n_nearer


class _Scan(Protocol):
    """Multiplies the rows of a block with the queries."""

    def block(
        self, start: int, stop: int, measure: bool
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Return products (queries, rows), and lengths (rows,) if `measure` is true."""
        ...


class _DenseScan:
    """Multiplies decoded or mapped rows, a block at a time."""

    def __init__(self, matrix: Matrix, units: npt.NDArray[Any]) -> None:
        self._matrix = matrix
        self._units = units

    def block(
        self, start: int, stop: int, measure: bool
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        rows = self._matrix[start:stop]
        # Copies the block if BLAS cannot use it as it is.
        rows = np.require(rows, self._units.dtype, ["A"])
        return multiply(self._units, rows), measure_lengths(rows) if measure else None


class _ProductScan:
    """Adds up, for each row, the products of its centroids with the queries."""

    def __init__(self, matrix: ProductMatrix, units: npt.NDArray[Any]) -> None:
        self._matrix = matrix
        self._tables = matrix.tables(units)

    def block(
        self, start: int, stop: int, measure: bool
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        products = self._matrix.products(self._tables, start, stop)
        return products, self._matrix.lengths(start, stop) if measure else None


class _LeftOut:
    """The rows to leave out, for each query, and the only rows to keep for all of them."""

    def __init__(
        self, excluded: Sequence[npt.NDArray[np.int64]], kept: npt.NDArray[np.bool_] | None
    ) -> None:
        self._kept = kept
        sizes = [len(rows) for rows in excluded]
        rows = np.concatenate([np.empty(0, np.int64), *excluded])
        order = np.argsort(rows)
        self._rows = rows[order]
        self._which = np.repeat(np.arange(len(sizes)), sizes)[order]

    def blank(self, scores: npt.NDArray[Any], start: int) -> None:
        """Set the scores of rows to leave out in a block to NaN."""
        first, last = np.searchsorted(self._rows, (start, start + scores.shape[1]))
        if last > first:
            scores[self._which[first:last], self._rows[first:last] - start] = np.nan
        if self._kept is not None:
            scores[:, ~self._kept[start : start + scores.shape[1]]] = np.nan


def measure_lengths(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the Euclidean lengths of rows: infinity on overflow, NaN for infinite rows."""
    with np.errstate(all="ignore"):
        squares = vecdot(vectors, vectors)
        lengths = np.sqrt(squares)
        # Squares of small or large numbers may vanish or overflow although the length does not.
        wrong = np.flatnonzero(~((squares > _LOW**2) & (squares < _HIGH**2)))
        if wrong.size:
            rows = vectors[wrong].astype(np.float64)
            largest = np.abs(rows).max(axis=1, initial=0)
            scaled = rows / np.where(largest > 0, largest, 1)[:, np.newaxis]
            lengths[wrong] = np.sqrt(vecdot(scaled, scaled)) * largest
    return cast("npt.NDArray[Any]", lengths)


def scale_to_units(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return rows scaled to unit length; rows of zeros stay zeros."""
    vectors, lengths = _shortened(vectors)
    units: npt.NDArray[np.float64] = vectors / np.where(lengths == 0, 1, lengths)[:, np.newaxis]
    return units


def _cosines(
    vectors: npt.NDArray[np.float64], units: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the cosines of vectors with unit vectors: 0 for vectors of length 0."""
    vectors, lengths = _shortened(vectors)
    cosines = vecdot(vectors, units) / np.where(lengths == 0, 1, lengths)
    return cast("npt.NDArray[np.float64]", np.clip(cosines, -1, 1))


def _shortened(
    vectors: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return rows and their lengths; rows whose length overflows float64 are scaled down."""
    lengths = measure_lengths(vectors)
    beyond = np.isinf(lengths)
    if beyond.any():
        vectors = np.where(beyond[:, np.newaxis], vectors * _SMALLER, vectors)
        lengths = measure_lengths(vectors)
    return vectors, lengths


def _places(rows: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the places of those chosen rows that are among some sorted rows."""
    places = np.searchsorted(rows, chosen)
    places = places[places < rows.size]
    return places[np.isin(rows[places], chosen, kind="sort")]


def _spans(n_rows: int, per_block: int, n: int) -> list[tuple[int, int]]:
    """Return up to `n` ranges of rows, each of whole blocks."""
    n_blocks = -(-n_rows // per_block)
    n = min(n, n_blocks)
    bounds = [n_blocks * i // n * per_block for i in range(n)]
    return list(zip(bounds, [*bounds[1:], n_rows], strict=True)) if n else []
