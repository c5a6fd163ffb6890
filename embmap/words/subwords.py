"""From a word to the rows of its subwords: the four indexers of finalfusion files.

An indexer breaks a word into n-grams and gives each a bucket, a row number counted from the first
row after the words. It knows nothing of vectors. N-grams run over the code points of the bracketed
word, for each start from the longest to the shortest, and repeat as often as they occur.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from embmap.codecs.ngram_hashes import (
    Text,
    bucket_hashes,
    fasttext_hashes,
    murmur3_lanes,
    ngram_bounds,
)
from embmap.errors import FormatError, UnsupportedError
from embmap.io.mapping import BytesFile
from embmap.words.index_source import IndexSource
from embmap.words.records import Records
from embmap.words.vocabulary import Vocabulary

__all__ = [
    "BucketIndexer",
    "ExplicitIndexer",
    "FastTextIndexer",
    "FloretIndexer",
    "SubwordIndexer",
]

Buckets = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
_MOST_LETTERS = 1 << 23  # of all n-grams of a word: half a million letters with the usual sizes
_BATCH_NGRAMS = 1 << 19


class SubwordIndexer(ABC):
    """Gives the n-grams of words their rows.

    Parameters
    ----------
    min_n, max_n : int
        Lengths of n-grams in code points, brackets included.

    Attributes
    ----------
    kind : str
        "bucket", "fasttext", "explicit" or "floret".
    n_buckets : int
        How many rows the subwords take.
    bow, eow : str
        What is put before and after a word.
    """

    kind: ClassVar[str]
    n_buckets: int
    bow: str = "<"
    eow: str = ">"

    def __init__(self, min_n: int, max_n: int) -> None:
        if not 1 <= min_n <= max_n < 2**32:
            raise ValueError(f"n-grams of {min_n} to {max_n} code points do not exist")
        self.min_n = min_n
        self.max_n = max_n

    def __repr__(self) -> str:
        """Name the kind and the sizes."""
        return (
            f"<{type(self).__name__} of n-grams {self.min_n}..{self.max_n}, {self.n_buckets} rows>"
        )

    def ngrams(self, word: str) -> list[str]:
        """Return the n-grams of a word.

        Parameters
        ----------
        word : str
            The word, without brackets.

        Returns
        -------
        list of str
            In the order of their rows; empty when the bracketed word is shorter than `min_n`.

        Raises
        ------
        UnsupportedError
            When they would be millions.
        """
        self._count(word)
        text = self.bow + word + self.eow
        return [
            text[start : start + n]
            for start in range(len(text))
            for n in range(min(self.max_n, len(text) - start), self.min_n - 1, -1)
        ]

    def buckets(self, words: Sequence[str]) -> Buckets:
        """Return the rows of the n-grams of words.

        Parameters
        ----------
        words : sequence of str
            The words, without brackets.

        Returns
        -------
        rows : numpy.ndarray
            Shape (counts.sum(),), int64: from 0 for the first row after the words.
        counts : numpy.ndarray
            Shape (n,), int64: how many of them belong to each word.

        Raises
        ------
        UnsupportedError
            When a word has millions of n-grams.
        """
        if len(words) == 1 and self._count(words[0]) <= _BATCH_NGRAMS:
            return self._buckets([self._bracketed(words[0])])
        parts = [self._buckets(batch) for batch in self._batches(words)]
        rows = [np.empty(0, np.int64), *(part[0] for part in parts)]
        counts = [np.empty(0, np.int64), *(part[1] for part in parts)]
        return np.concatenate(rows), np.concatenate(counts)

    @abstractmethod
    def _buckets(self, bracketed: list[str]) -> Buckets:
        """Return rows and counts for bracketed words whose n-grams fit into memory."""

    def _count(self, word: str) -> int:
        """Return how many n-grams a word has, refusing absurd numbers."""
        length = len(word) + len(self.bow) + len(self.eow)
        first, last = self.min_n, min(self.max_n, length)
        if last < first:
            return 0
        # There are length - n + 1 n-grams of n code points; these are the sums over n of their
        # number and of their code points.
        count = (last - first + 1) * (2 * length - first - last + 2) // 2
        squares = (last * (last + 1) * (2 * last + 1) - (first - 1) * first * (2 * first - 1)) // 6
        letters = (length + 1) * (last * (last + 1) - (first - 1) * first) // 2 - squares
        if letters > _MOST_LETTERS:
            raise UnsupportedError(
                f"the {count} n-grams of a word of {len(word)} code points are too many"
            )
        return count

    def _bracketed(self, word: str) -> str:
        try:
            word.encode()
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8 to hash
            word = word.encode("utf-8", "replace").decode()
        return f"{self.bow}{word}{self.eow}"

    def _batches(self, words: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        n_ngrams = 0
        for word in words:
            count = self._count(word)
            if batch and n_ngrams + count > _BATCH_NGRAMS:
                yield batch
                batch, n_ngrams = [], 0
            batch.append(self._bracketed(word))
            n_ngrams += count
        if batch:
            yield batch


class BucketIndexer(SubwordIndexer):
    """finalfusion's buckets: FNV-1a 64 over the length and code points of an n-gram.

    Parameters
    ----------
    min_n, max_n : int
        Lengths of n-grams in code points, brackets included.
    exponent : int
        There are ``2 ** exponent`` buckets.
    """

    kind = "bucket"

    def __init__(self, min_n: int = 3, max_n: int = 6, exponent: int = 21) -> None:
        super().__init__(min_n, max_n)
        if not 0 <= exponent <= 63:
            raise ValueError(f"the bucket exponent must be 0 to 63, not {exponent}")
        self.exponent = exponent
        self.n_buckets = 1 << exponent

    def _buckets(self, bracketed: list[str]) -> Buckets:
        hashes, counts = bucket_hashes(Text.of(bracketed), self.min_n, self.max_n)
        return (hashes & np.uint64(self.n_buckets - 1)).view(np.int64), counts


class FastTextIndexer(SubwordIndexer):
    """fastText's buckets: FNV-1a 32 over the sign-extended UTF-8 bytes of an n-gram.

    Parameters
    ----------
    min_n, max_n : int
        Lengths of n-grams in code points, brackets included.
    n_buckets : int
        How many buckets there are; with 0 a word has no subwords.
    """

    kind = "fasttext"

    def __init__(self, min_n: int = 3, max_n: int = 6, n_buckets: int = 2_000_000) -> None:
        super().__init__(min_n, max_n)
        if not 0 <= n_buckets < 2**32:
            raise ValueError(f"the number of buckets must fit 32 bits, not {n_buckets}")
        self.n_buckets = n_buckets

    def _buckets(self, bracketed: list[str]) -> Buckets:
        if self.n_buckets == 0:
            return np.empty(0, np.int64), np.zeros(len(bracketed), np.int64)
        hashes, counts = fasttext_hashes(Text.of(bracketed), self.min_n, self.max_n)
        return hashes.astype(np.int64) % self.n_buckets, counts


class FloretIndexer(SubwordIndexer):
    """floret's buckets: one to four lanes of MurmurHash3 x64 128 for the word and each n-gram.

    Parameters
    ----------
    min_n, max_n : int
        Lengths of n-grams in code points, brackets included.
    n_buckets : int
        How many buckets there are.
    n_hashes : int
        How many rows the word and each n-gram take: 1 to 4.
    seed : int
        Seed of the hash, 32 bits.
    bow, eow : str
        What is put before and after a word.
    """

    kind = "floret"

    def __init__(
        self,
        min_n: int,
        max_n: int,
        n_buckets: int,
        n_hashes: int = 1,
        seed: int = 2166136261,
        bow: str = "<",
        eow: str = ">",
    ) -> None:
        super().__init__(min_n, max_n)
        if not 1 <= n_hashes <= 4:
            raise ValueError(f"floret takes 1 to 4 hashes, not {n_hashes}")
        if not 1 <= n_buckets < 2**63:
            raise ValueError(f"floret needs at least one bucket, not {n_buckets}")
        if not 0 <= seed < 2**32:
            raise ValueError(f"the seed must fit 32 bits, not {seed}")
        self.n_buckets = n_buckets
        self.n_hashes = n_hashes
        self.seed = seed
        self.bow = bow
        self.eow = eow

    def _buckets(self, bracketed: list[str]) -> Buckets:
        text = Text.of(bracketed)
        starts, sizes, per_word = ngram_bounds(text, self.min_n, self.max_n)
        lengths = text.lengths()
        # The whole word stands before its n-grams.
        first = per_word.cumsum() - per_word
        starts = np.insert(starts, first, text.ends - lengths)
        sizes = np.insert(sizes, first, lengths)
        lanes = murmur3_lanes(text, starts, sizes, self.seed)[:, : self.n_hashes]
        rows = lanes.astype(np.uint64) % np.uint64(self.n_buckets)
        return rows.astype(np.int64).ravel(), (per_word + 1) * self.n_hashes


class ExplicitIndexer(SubwordIndexer):
    """Stored n-grams, each with the row that the file gives it; others have none.

    Parameters
    ----------
    min_n, max_n : int
        Lengths of n-grams in code points, brackets included.
    vocabulary : Vocabulary
        The n-grams; each record ends in its row as a little-endian u64.
    n_buckets : int
        How many rows there are.
    """

    kind = "explicit"

    def __init__(self, min_n: int, max_n: int, vocabulary: Vocabulary, n_buckets: int) -> None:
        super().__init__(min_n, max_n)
        self.vocabulary = vocabulary
        self.n_buckets = n_buckets

    @classmethod
    def of(
        cls,
        ngrams: Sequence[str],
        rows: Sequence[int] | None = None,
        *,
        min_n: int = 3,
        max_n: int = 6,
    ) -> ExplicitIndexer:
        """Return an indexer over given n-grams.

        Parameters
        ----------
        ngrams : sequence of str
            The n-grams, brackets included.
        rows : sequence of int, optional
            The row of each; several may share one. Their positions by default.
        min_n, max_n : int
            Lengths of n-grams in code points.

        Returns
        -------
        ExplicitIndexer
            An indexer over records in memory.

        Raises
        ------
        ValueError
            When the rows are not numbered from 0 without gaps, or their number is not that of
            the n-grams.
        """
        numbers = list(range(len(ngrams))) if rows is None else [int(row) for row in rows]
        if len(numbers) != len(ngrams):
            raise ValueError(f"{len(numbers)} rows were given for {len(ngrams)} n-grams")
        distinct = set(numbers)
        if distinct != set(range(len(distinct))):
            raise ValueError("the rows of n-grams must be numbered from 0 without gaps")
        encoded = [ngram.encode() for ngram in ngrams]
        data = b"".join(
            len(ngram).to_bytes(4, "little") + ngram + number.to_bytes(8, "little")
            for ngram, number in zip(encoded, numbers, strict=True)
        )
        file = BytesFile(data)
        records = Records(0, len(data), len(ngrams), "finalfusion", noun="n-gram", suffix=8)
        vocabulary = Vocabulary(file, records, IndexSource(file, "memory"))
        return cls(min_n, max_n, vocabulary, len(distinct))

    def stored_rows(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows that the file gives to n-grams.

        Parameters
        ----------
        numbers : numpy.ndarray
            Shape (n,), int64: which n-grams.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64.

        Raises
        ------
        FormatError
            When a stored row does not exist.
        """
        if self.vocabulary.records.suffix == 0:  # the v0 text numbers them by position
            return numbers
        stored = self.vocabulary.suffixes(numbers)
        for number, row in zip(numbers.tolist(), stored, strict=True):
            if row >= self.n_buckets:
                raise FormatError(
                    "an n-gram names a row that the storage does not have",
                    path=self.vocabulary.path,
                    format="finalfusion",
                    field=f"index of n-gram {number}",
                    found=row,
                    expected=f"less than {self.n_buckets}",
                )
        return np.array(stored, np.int64)

    def _buckets(self, bracketed: list[str]) -> Buckets:
        n = range(len(bracketed))
        ngrams = [self.ngrams(word[len(self.bow) : -len(self.eow)]) for word in bracketed]
        numbers = self.vocabulary.find([ngram for of_word in ngrams for ngram in of_word])
        owners = np.repeat(np.array(n, np.int64), [len(of_word) for of_word in ngrams])
        known = numbers >= 0
        counts = np.bincount(owners[known], minlength=len(bracketed)).astype(np.int64)
        return self.stored_rows(numbers[known]), counts
