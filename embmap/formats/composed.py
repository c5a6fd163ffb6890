"""The vectors of fastText's words, composed from the rows of words and of n-grams.

fastText's own models and those that gensim saves keep the two apart. A word's vector is the mean of
its row and the rows of its n-grams; it is composed when a caller asks for it. Writers of such
models take it apart again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.vectors.matrix import Matrix
from embmap.vectors.segments import segment_sums
from embmap.vectors.streamed import Streamed
from embmap.words.subwords import FastTextIndexer
from embmap.words.table import WordTable

__all__ = ["FastTextRows", "FastTextWords"]


class FastTextWords(Streamed):
    """The vectors of words: means of their rows and of the rows of their n-grams.

    `rows` has a row for each word, `buckets` one for each bucket of the indexer.
    """

    def __init__(
        self, words: WordTable, rows: Matrix, buckets: Matrix, indexer: FastTextIndexer
    ) -> None:
        self.shape = (len(words), rows.shape[1])
        self.dtype = np.result_type(rows.dtype, buckets.dtype, np.float32)
        self._words = words
        self._rows = rows
        self._buckets = buckets
        self._indexer = indexer

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        sums, sizes = self._sum_ngrams(start, stop)
        # Infinities and NaN pass through without a warning.
        with np.errstate(invalid="ignore", over="ignore"):
            sums += self._rows[start:stop]
            sums /= sizes
        return sums

    def _sum_ngrams(self, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the sum of the rows of each word's n-grams, and the size of the mean (n, 1)."""
        words = self._words.decoded(start, stop)
        buckets, counts = self._indexer.buckets(words)
        if self._indexer.min_n == 1:
            buckets, counts = self._drop_brackets(words, buckets, counts)
        sums = segment_sums(self._buckets, buckets, counts).astype(self.dtype, copy=False)
        return sums, (counts + 1)[:, np.newaxis].astype(np.float32)

    def _drop_brackets(
        self, words: list[str], buckets: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Leave out the brackets themselves, which fastText does not count as n-grams."""
        ends = counts.cumsum()
        lengths = np.fromiter(map(len, words), np.int64, len(words)) + 2
        # The n-grams of a start are ordered from the longest to the shortest.
        openings = ends - counts + np.minimum(lengths, self._indexer.max_n) - 1
        return np.delete(buckets, np.concatenate((openings, ends - 1))), counts - 2


class FastTextRows(FastTextWords):
    """The rows of words without their n-grams, from composed vectors: the reverse of FastTextWords.

    `rows` has the composed vector of each word.
    """

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        sums, sizes = self._sum_ngrams(start, stop)
        with np.errstate(invalid="ignore", over="ignore"):
            rows: npt.NDArray[Any] = self._rows[start:stop] * sizes - sums
        return rows.astype(self.dtype, copy=False)
