"""Word embeddings by counting: windowed co-occurrence, PPMI and a truncated SVD.

Made for the demonstration: numpy turns a few hundred thousand words into vectors within seconds.
The same documents, parameters and seed give the same vectors on the same machine. Memory holds the
co-occurrences of the corpus and a few matrices of the vectors' shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

__all__ = ["Embedding", "SparseMatrix", "cooccurrences", "sliced", "subword_rows", "train"]

_SMOOTHING = 0.75
_OVERSAMPLING = 20
_POWER_ITERATIONS = 4
# Without a ridge, n-grams that occur in few words would fit exactly these words, which spoils the
# vectors composed for others. With this value, words held back from training came nearest to their
# own vectors; more steps did not change that.
_RIDGE = 4.0
_LEAST_SQUARES_STEPS = 15
# Bounds the memory of a product: a chunk of entries copies as many rows of the dense matrix.
_CHUNK_NNZ = 1 << 16


@dataclass(frozen=True)
class Embedding:
    """A vocabulary with one vector for each word.

    Attributes
    ----------
    words : list of str
        The vocabulary by falling frequency, then in alphabetical order.
    vectors : numpy.ndarray
        Shape (n, dim), float32: rows of length 1. The row of a word that never has another word
        near it is zero.
    norms : numpy.ndarray
        Shape (n,), float32: the lengths before normalising.
    """

    words: list[str]
    vectors: NDArray[np.float32]
    norms: NDArray[np.float32]


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix that stores only the entries that are not zero, by rising row, then column.

    `rows`, `columns` and `values` have one item for each entry.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    shape: tuple[int, int]

    @classmethod
    def summed(
        cls, keys: NDArray[np.int64], weights: NDArray[np.float64], shape: tuple[int, int]
    ) -> SparseMatrix:
        """Return the matrix whose entry ``key = row * shape[1] + column`` sums its weights."""
        unique, inverse = np.unique(keys, return_inverse=True)
        values = np.bincount(inverse, weights, len(unique)).astype(np.float64)
        rows, columns = np.divmod(unique, shape[1])
        return cls(rows, columns, values, shape)

    def transposed(self) -> SparseMatrix:
        """Return the transposed matrix."""
        order = np.argsort(self.columns, kind="stable")
        shape = (self.shape[1], self.shape[0])
        return SparseMatrix(self.columns[order], self.rows[order], self.values[order], shape)

    def times(self, dense: NDArray[np.float64]) -> NDArray[np.float64]:
        """Multiply with a dense matrix."""
        product = np.zeros((self.shape[0], dense.shape[1]))
        for begin in range(0, len(self.rows), _CHUNK_NNZ):
            part = slice(begin, begin + _CHUNK_NNZ)
            rows = self.rows[part]
            terms = self.values[part, None] * dense[self.columns[part]]
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            # A row is one group of a chunk, so no index repeats. It may continue in the next chunk.
            product[rows[starts]] += np.add.reduceat(terms, starts, axis=0)
        return product


def train(
    documents: Iterable[Sequence[str]],
    *,
    dim: int = 100,
    min_count: int = 5,
    window: int = 3,
    seed: int = 0,
) -> Embedding:
    """Compute an embedding of the words of a corpus.

    Notes
    -----
    A context is a word together with its side, left or right. Words that can replace each other
    therefore come near each other. The vectors are the left singular vectors of the PPMI matrix
    times the singular values, so their cosines approximate the cosines of the rows of the matrix.
    """
    for name, value, least in (("dim", dim, 1), ("min_count", min_count, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
    kept = list(documents)
    counts = Counter(chain.from_iterable(kept))
    frequent = (word for word, count in counts.items() if count >= min_count)
    words = sorted(frequent, key=lambda word: (-counts[word], word))
    if len(words) < dim:
        raise ValueError(
            f"dim is {dim}, but only {len(words)} words occur at least {min_count} times"
        )
    index = {word: row for row, word in enumerate(words)}
    encoded = [[index[word] for word in document if word in index] for document in kept]
    vectors = _left_singular(_ppmi(cooccurrences(encoded, len(words), window)), dim, seed)
    norms = np.linalg.norm(vectors, axis=1)
    # A row without contexts holds only rounding errors, which must not be scaled to length 1.
    blank = norms <= 1e-9 * norms.max()
    norms[blank] = 0
    vectors /= np.where(blank, np.inf, norms)[:, None]
    return Embedding(words, vectors.astype(np.float32), norms.astype(np.float32))


def sliced(
    documents: Sequence[Sequence[str]], embedding: Embedding, n_slices: int, *, window: int = 3
) -> Iterator[NDArray[np.float32]]:
    """Yield the vectors of words in overlapping slices of a corpus, in the space of `embedding`."""
    if not 1 <= n_slices <= len(documents):
        raise ValueError(f"{len(documents)} documents cannot be {n_slices} slices")
    index = {word: row for row, word in enumerate(embedding.words)}
    encoded = [[index[word] for word in document if word in index] for document in documents]
    whole = embedding.vectors.astype(np.float64) * embedding.norms[:, None]
    squares = (whole**2).sum(axis=0)
    matrix = _ppmi(cooccurrences(encoded, len(index), window))
    # Rows of a PPMI matrix of any part of the corpus, times these contexts, are vectors.
    contexts = matrix.transposed().times(whole) / np.where(squares > 0, squares, 1)
    bounds = np.linspace(0, len(encoded), n_slices + 2).astype(int)
    for start, stop in zip(bounds[:-2], bounds[2:], strict=True):
        part = _ppmi(cooccurrences(encoded[start:stop], len(index), window))
        vectors = part.times(contexts)
        norms = np.linalg.norm(vectors, axis=1)
        absent = norms <= 1e-9 * max(float(norms.max()), 1e-300)
        vectors /= np.where(absent, 1, norms)[:, None]
        vectors[absent] = embedding.vectors[absent]
        yield vectors.astype(np.float32)


def cooccurrences(documents: Sequence[Sequence[int]], n_words: int, window: int) -> SparseMatrix:
    """Count how often words are near each other; the nearer they are, the more it counts."""
    if window < 1:
        raise ValueError(f"window must be at least 1, not {window}")
    shape = (n_words, 2 * n_words)
    words = np.fromiter(chain.from_iterable(documents), np.int64)
    owners = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    keys = [np.empty(0, np.int64)]
    weights = [np.empty(0)]
    for distance in range(1, min(window, len(words) - 1) + 1):
        together = owners[:-distance] == owners[distance:]
        left, right = words[:-distance][together], words[distance:][together]
        keys += [left * shape[1] + right, right * shape[1] + n_words + left]
        weights.append(np.full(2 * len(left), window + 1.0 - distance))
    return SparseMatrix.summed(np.concatenate(keys), np.concatenate(weights), shape)


def subword_rows(
    words: Sequence[str],
    vectors: NDArray[np.float32],
    rows_of: Callable[[str], Sequence[int]],
    n_rows: int,
) -> NDArray[np.float32]:
    """Compute vectors of n-grams whose sum over a word is near the vector of the word.

    Returns (n_rows, dim) float32; `rows_of` gives the rows of the n-grams of a word.
    """
    if len(words) != len(vectors):
        raise ValueError(f"{len(words)} words, but {len(vectors)} vectors")
    rows = [list(rows_of(word)) for word in words]
    columns = np.fromiter(chain.from_iterable(rows), np.int64)
    if len(columns) and not 0 <= columns.min() <= columns.max() < n_rows:
        raise ValueError(f"rows from {columns.min()} to {columns.max()}, but there are {n_rows}")
    # Only the rows in use: a table may have millions of buckets.
    used, compact = np.unique(columns, return_inverse=True)
    holders = np.repeat(np.arange(len(words)), [len(of_word) for of_word in rows])
    keys = holders * len(used) + compact
    shape = (len(words), len(used))
    holds = SparseMatrix.summed(keys, np.ones(len(keys)), shape)
    subwords = np.zeros((n_rows, vectors.shape[1]), np.float32)
    subwords[used] = _ridge_regression(holds, vectors.astype(np.float64))
    return subwords


def _ppmi(counts: SparseMatrix) -> SparseMatrix:
    """Return the positive pointwise mutual information of words and contexts."""
    of_rows = np.bincount(counts.rows, counts.values, counts.shape[0])
    # Smoothing the distribution of the contexts takes weight from rare contexts.
    of_columns = np.bincount(counts.columns, counts.values, counts.shape[1]) ** _SMOOTHING
    expected = of_rows[counts.rows] * of_columns[counts.columns] / max(of_columns.sum(), 1)
    values = np.log(counts.values / expected)
    kept = values > 0
    return SparseMatrix(counts.rows[kept], counts.columns[kept], values[kept], counts.shape)


def _left_singular(matrix: SparseMatrix, dim: int, seed: int) -> NDArray[np.float64]:
    """Return the leading left singular vectors times the singular values: (rows, dim)."""
    transposed = matrix.transposed()
    width = min(dim + _OVERSAMPLING, *matrix.shape)
    start = np.random.default_rng(seed).standard_normal((matrix.shape[1], width))
    basis, _ = np.linalg.qr(matrix.times(start))
    for _ in range(_POWER_ITERATIONS):
        # Without a decomposition in each step, all columns would turn to the first direction.
        other, _ = np.linalg.qr(transposed.times(basis))
        basis, _ = np.linalg.qr(matrix.times(other))
    _, values, left = np.linalg.svd(transposed.times(basis), full_matrices=False)
    scaled: NDArray[np.float64] = basis @ (left[:dim].T * values[:dim])
    # The sign of a singular vector is arbitrary; this makes it independent of the seed.
    largest = np.abs(scaled).argmax(axis=0)
    scaled *= np.where(scaled[largest, np.arange(dim)] < 0, -1.0, 1.0)
    return scaled


def _ridge_regression(matrix: SparseMatrix, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the X that minimises ``|matrix X - wanted|^2 + ridge |X|^2``."""
    # Conjugate gradients: each column of X is a separate problem; all share the products.
    transposed = matrix.transposed()
    solution = np.zeros((matrix.shape[1], wanted.shape[1]))
    residual = transposed.times(wanted)
    direction = residual.copy()
    length = (residual**2).sum(axis=0)
    for _ in range(_LEAST_SQUARES_STEPS):
        applied = transposed.times(matrix.times(direction)) + _RIDGE * direction
        curvature = (direction * applied).sum(axis=0)
        step = length / np.where(curvature > 0, curvature, 1)
        solution += step * direction
        residual -= step * applied
        previous, length = length, (residual**2).sum(axis=0)
        direction = residual + length / np.where(previous > 0, previous, 1) * direction
    return solution
