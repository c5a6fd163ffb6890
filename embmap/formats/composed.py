"""The vectors of fastText's words, composed from the rows of words and of n-grams.

fastText's own models and those that gensim saves keep the two apart. A word's vector is the mean of
its row and the rows of its n-grams; it is composed when a caller asks for it. The vector of an
unknown word is the mean of the rows of its n-grams. Writers of such models take vectors apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from embmap.formats.exchange import Output
from embmap.vectors.matrix import Matrix
from embmap.vectors.segments import segment_sums
from embmap.vectors.streamed import Selected, Streamed
from embmap.words.subwords import FastTextIndexer
from embmap.words.table import WordTable

__all__ = ["FastTextRows", "FastTextWords", "take_apart"]

_BATCH = 1 << 12  # words that are composed at a time


class FastTextWords(Streamed):
    """The vectors of words: means of their rows and of the rows of their n-grams.

    `decode` returns a range of words. `find_rows` returns a matrix with a row for each word and one
    with a row for each bucket of the indexer; it is called when the first row is asked for. Without
    an indexer, the rows of words are their vectors.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: npt.DTypeLike,
        *,
        decode: Callable[[int, int], list[str]],
        find_rows: Callable[[], tuple[Matrix, Matrix]],
        indexer: FastTextIndexer | None,
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._decode = decode
        self._find_rows = find_rows
        self._indexer = indexer
        self._found: tuple[Matrix, Matrix] | None = None

    @property
    def random_access(self) -> bool:
        """Always True: a vector is composed of its own rows."""
        return True

    @property
    def stored(self) -> tuple[Matrix, Matrix]:
        """The rows of words, and the rows of buckets."""
        if self._found is None:
            self._found = self._find_rows()
        return self._found

    def compose(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the means of the rows of n-grams, and which words have n-grams."""
        sums, counts = self._sum_ngrams(words)
        return self._divide(sums, counts), counts > 0

    def row(self, i: int) -> npt.NDArray[Any]:
        """Return one row: a view of a mapped file if nothing is composed."""
        if self._indexer is None and self.dtype == self.stored[0].dtype:
            return self.stored[0].row(i)
        return super().row(i)

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        rows = self.stored[0][start:stop]
        if self._indexer is None:
            return rows.astype(self.dtype, copy=False)
        return self._mean(self._decode(start, stop), rows)

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        for start in range(0, rows.size, _BATCH):
            part = rows[start : start + _BATCH]
            values = self.stored[0].take(part)
            if self._indexer is not None:
                words = [self._decode(row, row + 1)[0] for row in part.tolist()]
                values = self._mean(words, values)
            out[start : start + _BATCH] = values

    def _mean(self, words: Sequence[str], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the means of the rows of words and of their n-grams."""
        sums, counts = self._sum_ngrams(words)
        with np.errstate(invalid="ignore", over="ignore"):  # of infinities and NaN
            sums += rows
        return self._divide(sums, counts + 1)

    def _divide(self, sums: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        with np.errstate(invalid="ignore", over="ignore"):
            sums /= np.maximum(counts, 1)[:, np.newaxis].astype(np.float32)
        return sums

    def _sum_ngrams(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return the sums of the rows of the n-grams of words, and how many n-grams they have."""
        indexer = self._indexer
        if indexer is None:
            return np.zeros((len(words), self.shape[1]), self.dtype), np.zeros(len(words), np.int64)
        buckets, counts = indexer.buckets(words)
        if indexer.min_n == 1:
            buckets, counts = _drop_brackets(indexer, words, buckets, counts)
        sums = segment_sums(self.stored[1], buckets, counts)
        return sums.astype(self.dtype, copy=False), counts


class FastTextRows(FastTextWords):
    """The rows of words without their n-grams: the reverse of FastTextWords.

    The first matrix of `find_rows` has the composed vector of each word.
    """

    @classmethod
    def of(
        cls, words: WordTable, vectors: Matrix, buckets: Matrix, indexer: FastTextIndexer
    ) -> Self:
        """Take the composed vectors of words apart."""
        return cls(
            (len(vectors), vectors.shape[1]),
            np.result_type(vectors.dtype, buckets.dtype, np.float32),
            decode=words.decoded,
            find_rows=lambda: (vectors, buckets),
            indexer=indexer,
        )

    def _mean(self, words: Sequence[str], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sums, counts = self._sum_ngrams(words)
        sizes = (counts + 1)[:, np.newaxis].astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            own: npt.NDArray[Any] = rows * sizes - sums
        return own.astype(self.dtype, copy=False)


def take_apart(output: Output) -> Matrix:
    """Return the rows of the words of an output: as its input stores them, or made of vectors."""
    original, words, indexer = output.original, output.words, output.subwords
    if original is not None and not (original.changed or original.words_changed):
        source = original.source
        if isinstance(source.vectors, FastTextWords) and indexer is source.subwords:
            rows = source.vectors.stored[0]
            return rows if original.rows is None else Selected(rows, original.rows)
    return FastTextRows.of(
        cast(WordTable, words),
        output.vectors,
        cast(Matrix, output.buckets),
        cast(FastTextIndexer, indexer),
    )


def _drop_brackets(
    indexer: FastTextIndexer,
    words: Sequence[str],
    buckets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Leave out the brackets themselves, which fastText does not count as n-grams."""
    ends = counts.cumsum()
    lengths = np.fromiter(map(len, words), np.int64, len(words)) + 2
    # The n-grams of a start are ordered from the longest to the shortest.
    openings = ends - counts + np.minimum(lengths, indexer.max_n) - 1
    return np.delete(buckets, np.concatenate((openings, ends - 1))), counts - 2
