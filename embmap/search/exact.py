"""Exact nearest rows of a matrix, found in one pass over its blocks.

Every row is scored in the matrix's own precision. If rounding leaves the rank of a row in doubt,
the row is scored again in float64. Ranks, scores and ties therefore do not depend on blocks,
threads, back end or kernels. Quantized rows are scored from their codes. Memory is bounded by the
size of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels
from embmap.codecs.products import multiply
from embmap.search.lengths import lengths_of, measure_lengths
from embmap.search.queries import Metric
from embmap.search.ranking import Count, Ranking
from embmap.threads import in_parallel, n_threads
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix
from embmap.vectors.streamed import Leading, Selected

__all__ = ["ExactSearch", "LeftOut", "find_places", "share_out"]

_BLOCK_NBYTES = 1 << 23
_GATHERED_NBYTES = 1 << 21  # size of the pieces of gathered rows, which stay in the cache
_SCATTERED = 5  # gathering a row takes as long as comparing about as many rows that lie together
_IN_PLACE = 4  # with more queries, BLAS multiplies gathered rows sooner than a loop where they lie
_SCORES = 1 << 17  # number of scores in a block, if its rows need no copy
_QUERIES = 512  # largest number of queries in one pass over the matrix
_FEW = 24  # with more queries, decoding rows costs less than adding up table entries
# Numbers above which a second thread saves time: reading them from memory takes most of a
# millisecond, and starting a thread and waiting for it a tenth of one.
_PARALLEL = 1 << 22


class ExactSearch:
    """Searches the first `n_rows` rows of a matrix. Keeps their lengths, 4 bytes a float32 row.

    With `dim`, only the first `dim` columns are compared.
    """

    def __init__(self, matrix: Matrix, n_rows: int, dim: int | None = None) -> None:
        self._matrix = matrix
        if dim is not None and isinstance(matrix, ProductMatrix):
            self._matrix = matrix.leading(dim)
        elif dim is not None:
            self._matrix = Leading(matrix, dim)
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
                places = [find_places(among, rows) for rows in excluded or ()] or None
                found = self._among(among).nearest(queries, n, metric, places)
                return [(among[local], scores) for local, scores in found]
            kept = np.zeros(self._n_rows, np.bool_)
            kept[among] = True
        answers = []
        for first in range(0, len(queries), _QUERIES):
            at_once = slice(first, first + _QUERIES)
            ranking = Ranking(self._matrix, queries[at_once], n, metric)
            left_out = LeftOut([] if excluded is None else excluded[at_once], kept)
            answers += self._answer(ranking, left_out)
        return answers

    def scored(
        self, queries: npt.NDArray[Any], n: int, rows: Sequence[npt.NDArray[np.int64]]
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Return the nearest of given rows by their cosine; `rows` has an array for each query."""
        ranking = Ranking(self._matrix, queries, n, "cosine")
        which = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
        ranking.keep(which, np.concatenate([np.empty(0, np.int64), *rows]), np.inf, -np.inf)
        return ranking.settled()

    def count_nearer(
        self, query: npt.NDArray[Any], other: npt.NDArray[Any], excluded: npt.NDArray[np.int64]
    ) -> int:
        """Return how many rows have a greater cosine with a query (dim,) than a vector has."""
        count = Count(self._matrix, query, other)
        self._answer(count, LeftOut([excluded], None))
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
        self, ranking: Ranking, left_out: LeftOut
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
        per_block = max(_BLOCK_NBYTES // max(row_nbytes, 4 * m), 64)
        if in_place:
            per_block = max(_SCORES // m, 64)
        elif isinstance(matrix, Selected):
            per_block = max(_SCORES // (4 * m), 64)
        n_numbers = n_rows * matrix.shape[1] * m
        per_block, spans = share_out(n_rows, per_block, n_numbers, cut=matrix.random_access)

        def work(span: tuple[int, int]) -> None:
            with np.errstate(all="ignore"):  # rows that overflow are scored again
                for start in range(*span, per_block):
                    stop = min(start + per_block, span[1])
                    products, measured = scan.block(start, stop, known is None)
                    if measured is not None:
                        lengths[start:stop] = measured
                    scores, slack = ranking.scores(products, lengths[start:stop])
                    left_out.blank(scores, range(start, stop))
                    ranking.consider(range(start, stop), scores, slack)

        in_parallel(work, spans)
        if n_rows == self._n_rows:
            self._lengths = lengths
        return ranking.settled()

    def _in_place(self, matrix: Matrix) -> bool:
        """Whether BLAS can multiply the rows in the map; a block then needs only its scores."""
        stored = matrix.codes if isinstance(matrix, ProductMatrix) else matrix
        array = stored.mapped()
        dtype = np.uint8 if stored is not matrix else self._dtype
        return array is not None and array.flags.aligned and array.dtype == dtype


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
        matrix = self._matrix
        if isinstance(matrix, Selected):
            return self._gather(matrix, start, stop, measure)
        # Copies the block if BLAS cannot use it as it is.
        rows = np.require(matrix[start:stop], self._units.dtype, ["A"])
        return multiply(self._units, rows), measure_lengths(rows) if measure else None

    def _gather(
        self, matrix: Selected, start: int, stop: int, measure: bool
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Do the same where scattered rows lie, if a compiled loop can."""
        m, n, dtype = len(self._units), stop - start, self._units.dtype
        mapped = matrix.mapped_rows(start, stop) if m <= _IN_PLACE else None
        if mapped is None:
            return self._copy(matrix, start, stop, measure)
        array, rows = mapped
        if not (
            array.dtype == dtype == np.float32 and array.flags.aligned and array.flags.c_contiguous
        ):
            return self._copy(matrix, start, stop, measure)
        products, squares = np.empty((m, n), dtype), np.empty(n if measure else 0, dtype)
        kernel = kernels.find("gathered_products", array, rows, self._units, products, squares)
        if kernel is None:
            return kernels.counted(self._copy)(matrix, start, stop, measure)
        kernel(array, rows, self._units, products, squares)
        return products, lengths_of(squares, lambda i: array[rows[i]]) if measure else None

    def _copy(
        self, matrix: Selected, start: int, stop: int, measure: bool
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Do the same in pieces, which are gathered into the same memory."""
        dtype = self._units.dtype
        products = np.empty((len(self._units), stop - start), dtype)
        lengths = np.empty(stop - start, dtype) if measure else None
        row_nbytes = max(matrix.shape[1] * dtype.itemsize, 1)
        n = min(max(_GATHERED_NBYTES // row_nbytes, 16), stop - start)
        buffer = np.empty((n, matrix.shape[1]), matrix.dtype)
        for first in range(start, stop, n):
            last = min(first + n, stop)
            rows = np.require(matrix.read(first, last, buffer), dtype, ["A"])
            piece = slice(first - start, last - start)
            multiply(self._units, rows, out=products[:, piece])
            if lengths is not None:
                lengths[piece] = measure_lengths(rows)
        return products, lengths


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


class LeftOut:
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

    def blank(self, scores: npt.NDArray[Any], rows: range | npt.NDArray[np.int64]) -> None:
        """Set scores to NaN where their rows, which are sorted, are left out."""
        if not len(rows):
            return
        first, last = np.searchsorted(self._rows, (rows[0], rows[-1] + 1))
        if last > first:
            which, left_out = self._which[first:last], self._rows[first:last]
            if isinstance(rows, range):
                places = left_out - rows.start
            else:
                places = np.searchsorted(rows, left_out)
                found = rows[places] == left_out
                which, places = which[found], places[found]
            scores[which, places] = np.nan
        if self._kept is not None:
            scores[:, ~self._kept[rows[0] : rows[-1] + 1]] = np.nan


def find_places(
    rows: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the places of those chosen rows that are among some sorted rows."""
    places = np.searchsorted(rows, chosen)
    places = places[places < rows.size]
    return places[np.isin(rows[places], chosen, kind="sort")]


def share_out(
    n_rows: int, most: int, n_numbers: int, *, cut: bool = True
) -> tuple[int, list[tuple[int, int]]]:
    """Return how many rows to compare at a time, and ranges of rows for threads.

    It is `most`, or fewer if each thread then has some, unless this must not `cut` chunks. There is
    one range if starting a thread takes longer than it saves.
    """
    n = n_threads() if n_numbers >= _PARALLEL else 1
    if n == 1:
        return most, [(0, n_rows)] if n_rows else []
    per_block = min(most, -(-n_rows // (2 * n))) if cut else most
    n_blocks = -(-n_rows // per_block)
    n = min(4 * n, n_blocks)
    bounds = [n_blocks * i // n * per_block for i in range(n)]
    return per_block, list(zip(bounds, [*bounds[1:], n_rows], strict=True))
