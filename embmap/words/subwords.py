"""From a word to the rows of its subwords: the four indexers of finalfusion files.

An indexer breaks a word into n-grams and gives each n-gram a bucket: a row, counted from the first
row after the words. N-grams are taken from the code points of the bracketed word, for each start
from the longest to the shortest. An n-gram that occurs twice counts twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels
from embmap.codecs.ngram_hashes import (
    Text,
    bucket_hashes,
    fasttext_hashes,
    murmur3_lanes,
    ngram_bounds,
)
from embmap.errors import FormatError, UnsupportedError
from embmap.io.mapping import BytesFile
from embmap.threads import in_parallel, n_threads
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
_MOST_LETTERS = 1 << 23  # in all n-grams of a word; a word of half a million letters has as many
_BATCH_NGRAMS = 1 << 19
_WORTH_A_THREAD = 100  # words that are composed in a tenth of a millisecond or more
_EXAMPLES = (*vars(Text.of(["<>"])).values(), 0, (1, 1, 0, 1), np.empty((1, 1), np.float32))


class SubwordIndexer(ABC):
    """Breaks words into n-grams and gives the n-grams their rows.

    Parameters
    ----------
    min_n, max_n : int
        Lengths of n-grams in code points, brackets included.

    Attributes
    ----------
    kind : str
        "bucket", "fasttext", "explicit" or "floret".
    n_buckets : int
        Number of rows that the n-grams take.
    bow, eow : str
        Text that is put before and after a word.
    """

    kind: ClassVar[str]
    n_buckets: int
    bow: str = "<"
    eow: str = ">"

    def __init__(self, min_n: int, max_n: int) -> None:
        if not 1 <= min_n <= max_n < 2**32:
            raise ValueError(
                f"min_n and max_n must be 1 to {2**32 - 1} and ascending, not {min_n} and {max_n}"
            )
        self.min_n = min_n
        self.max_n = max_n

    def __repr__(self) -> str:
        """Return the class, the lengths of n-grams and the number of rows."""
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
            The n-grams, with brackets; empty if the bracketed word is shorter than `min_n`.

        Raises
        ------
        UnsupportedError
            If the word has millions of n-grams.
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
            Shape (counts.sum(),), int64: the rows, 0 for the first row after the words.
        counts : numpy.ndarray
            Shape (n,), int64: the number of rows of each word.

        Raises
        ------
        UnsupportedError
            If a word has millions of n-grams.
        """
        if len(words) == 1 and self._count(words[0]) <= _BATCH_NGRAMS:
            return self._buckets([self._bracketed(words[0])])
        parts = [self._buckets(batch) for batch in self._batches(words)]
        rows = [np.empty(0, np.int64), *(part[0] for part in parts)]
        counts = [np.empty(0, np.int64), *(part[1] for part in parts)]
        return np.concatenate(rows), np.concatenate(counts)

    @abstractmethod
    def _buckets(self, bracketed: list[str]) -> Buckets:
        """Return the rows and counts of :meth:`buckets` for bracketed words with few n-grams."""

    def _count(self, word: str) -> int:
        """Return the number of n-grams of a word, or raise UnsupportedError if it is absurd."""
        length = len(word) + len(self.bow) + len(self.eow)
        first, last = self.min_n, min(self.max_n, length)
        if last < first:
            return 0
        # A word has length - n + 1 n-grams of n code points. Summed over n, this is the number of
        # n-grams, and `letters` is the number of their code points.
        count = (last - first + 1) * (2 * length - first - last + 2) // 2
        squares = (last * (last + 1) * (2 * last + 1) - (first - 1) * first * (2 * first - 1)) // 6
        letters = (length + 1) * (last * (last + 1) - (first - 1) * first) // 2 - squares
        if letters > _MOST_LETTERS:
            raise UnsupportedError(
                f"a word of {len(word)} code points has too many n-grams: {count}"
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
            raise ValueError(f"exponent must be 0 to 63, not {exponent}")
        self.exponent = exponent
        self.n_buckets = 1 << exponent

    def compose(
        self, words: Sequence[str], array: npt.NDArray[np.float32], first_row: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]] | None:
        """Return the sums of the words' rows, scaled to unit length, and which words have rows.

        Parameters
        ----------
        words : sequence of str
            The words, without brackets.
        array : numpy.ndarray
            Shape (rows, dim), float32: all rows.
        first_row : int
            The row of the first bucket; `array` has a row for every bucket.

        Returns
        -------
        vectors : numpy.ndarray
            Shape (n, dim), float32; zeros for words without rows.
        known : numpy.ndarray
            Shape (n,), bool.

        None is returned if there is no compiled loop for this at present.
        """
        of = self.min_n, self.max_n, first_row, self.n_buckets
        kernel = kernels.find("compose", *_EXAMPLES, array)
        if kernel is None:
            return None
        between = self.eow + self.bow
        longest = max(map(len, words), default=0) + len(between)
        if longest * self.max_n**2 > _MOST_LETTERS:  # perhaps too many n-grams
            self._count(max(words, key=len))
        bracketed = f"{self.bow}{between.join(words)}{self.eow}"
        # A lone surrogate has no UTF-32 to hash.
        points = np.frombuffer(bracketed.encode("utf-32-le", "replace"), "<u4")
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        lengths += len(between)
        ends = lengths.cumsum()
        vectors = np.zeros((len(words), array.shape[1]), np.float32)
        known = lengths >= self.min_n
        if len(words) <= _WORTH_A_THREAD:
            kernel(points, ends, 0, of, vectors, array)
            return vectors, known

        def work(part: slice) -> None:
            kernel(points, ends[: part.stop], part.start, of, vectors[part], array)

        share = max(-(-len(words) // n_threads()), _WORTH_A_THREAD)
        in_parallel(work, [slice(i, i + share) for i in range(0, len(words), share)])
        return vectors, known

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
        Number of buckets; with 0 no word has subwords.
    """

    kind = "fasttext"

    def __init__(self, min_n: int = 3, max_n: int = 6, n_buckets: int = 2_000_000) -> None:
        super().__init__(min_n, max_n)
        if not 0 <= n_buckets < 2**32:
            raise ValueError(f"n_buckets must be 0 to {2**32 - 1}, not {n_buckets}")
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
        Number of buckets.
    n_hashes : int
        Number of rows of the word and of each n-gram: 1 to 4.
    seed : int
        Seed of the hash, an unsigned 32-bit number.
    bow, eow : str
        Text that is put before and after a word.
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
            raise ValueError(f"n_hashes must be 1 to 4, not {n_hashes}")
        if not 1 <= n_buckets < 2**63:
            raise ValueError(f"n_buckets must be 1 to {2**63 - 1}, not {n_buckets}")
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must be 0 to {2**32 - 1}, not {seed}")
        self.n_buckets = n_buckets
        self.n_hashes = n_hashes
        self.seed = seed
        self.bow = bow
        self.eow = eow

    def _buckets(self, bracketed: list[str]) -> Buckets:
        text = Text.of(bracketed)
        starts, sizes, per_word = ngram_bounds(text, self.min_n, self.max_n)
        lengths = text.lengths()
        # The whole word comes before its n-grams.
        first = per_word.cumsum() - per_word
        starts = np.insert(starts, first, text.ends - lengths)
        sizes = np.insert(sizes, first, lengths)
        lanes = murmur3_lanes(text, starts, sizes, self.seed)[:, : self.n_hashes]
        rows = lanes.astype(np.uint64) % np.uint64(self.n_buckets)
        return rows.astype(np.int64).ravel(), (per_word + 1) * self.n_hashes


class ExplicitIndexer(SubwordIndexer):
    """N-grams that the file contains, each with its row; other n-grams have no row.

    Parameters
    ----------
    min_n, max_n : int
        Lengths of n-grams in code points, brackets included.
    vocabulary : Vocabulary
        The n-grams; each record ends in its row as a little-endian u64.
    n_buckets : int
        Number of rows.
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
            The row of each n-gram; n-grams may share a row. Their positions by default.
        min_n, max_n : int
            Lengths of n-grams in code points.

        Returns
        -------
        ExplicitIndexer
            An indexer over n-grams in memory.

        Raises
        ------
        ValueError
            If `rows` are not numbered from 0 without gaps, or are not as many as `ngrams`.
        """
        numbers = list(range(len(ngrams))) if rows is None else [int(row) for row in rows]
        if len(numbers) != len(ngrams):
            raise ValueError(
                f"rows must be one for each of {len(ngrams)} n-grams, not {len(numbers)}"
            )
        distinct = set(numbers)
        if distinct != set(range(len(distinct))):
            raise ValueError("rows must be numbered from 0 without gaps")
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
        """Return the rows of stored n-grams.

        Parameters
        ----------
        numbers : numpy.ndarray
            Shape (n,), int64: positions of n-grams in the vocabulary.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: the rows.

        Raises
        ------
        FormatError
            If a stored row does not exist.
        """
        if self.vocabulary.records.suffix == 0:  # in the v0 text format, the position is the row
            return numbers
        stored = self.vocabulary.suffixes(numbers)
        for number, row in zip(numbers.tolist(), stored, strict=True):
            if row >= self.n_buckets:
                raise FormatError(
                    "the row of an n-gram does not exist",
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
