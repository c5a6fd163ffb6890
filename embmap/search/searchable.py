"""What can be asked about nearness, of local and served files alike.

:class:`Searchable` checks arguments and puts answers together; a subclass searches.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from embmap.codecs.products import vecdot
from embmap.search.lengths import scale_to_units
from embmap.search.queries import (
    Among,
    Metric,
    Neighbor,
    OneQuery,
    Options,
    Queries,
    QueryError,
    SeveralQueries,
    Terms,
    Words,
    check_finite,
    check_metric,
    check_n,
    parse_among,
    parse_analogies,
    parse_dim,
    parse_exclude,
    parse_queries,
    parse_sum,
)
from embmap.vectors.matrix import Matrix

if TYPE_CHECKING:
    from embmap.search.word_pairs import Correlation

__all__ = ["Searchable"]

_PAIRS = 512  # word pairs compared at a time


class Searchable(ABC):
    """Words whose vectors can be compared."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of words, or of rows in a file without words."""

    @abstractmethod
    def at(self, t: int | None = None) -> Searchable: ...  # noqa: D102  documented in Embeddings

    @abstractmethod
    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]: ...  # noqa: D102  as above

    @abstractmethod
    def batch(self, words: Iterable[str]) -> npt.NDArray[Any]: ...  # noqa: D102  as above

    @abstractmethod
    def _stored_vectors(self) -> Matrix:
        """Return the vectors by row, or raise FormatError if the file holds none."""

    @abstractmethod
    def _nearest(self, queries: Queries, options: Options) -> list[list[Neighbor]]:
        """Return the neighbors of each query, in a file without time steps."""

    @abstractmethod
    def _rank(self, word: str, other: str) -> int:
        """Return the rank of a word among the neighbors of another, in such a file."""

    @overload
    def most_similar(
        self,
        query: OneQuery | None = ...,
        n: int = ...,
        metric: Metric = ...,
        *,
        positive: Terms | None = ...,
        negative: Terms | None = ...,
        among: Among | None = ...,
        dim: int | None = ...,
        exclude: Iterable[str | int] | None = ...,
        approximate: bool = ...,
    ) -> list[Neighbor]: ...

    @overload
    def most_similar(
        self,
        query: SeveralQueries,
        n: int = ...,
        metric: Metric = ...,
        *,
        among: Among | None = ...,
        dim: int | None = ...,
        exclude: Iterable[str | int] | None = ...,
        approximate: bool = ...,
    ) -> list[list[Neighbor]]: ...

    def most_similar(
        self,
        query: OneQuery | SeveralQueries | None = None,
        n: int = 10,
        metric: Metric = "cosine",
        *,
        positive: Terms | None = None,
        negative: Terms | None = None,
        among: Among | None = None,
        dim: int | None = None,
        exclude: Iterable[str | int] | None = None,
        approximate: bool = False,
    ) -> list[Neighbor] | list[list[Neighbor]]:
        """Return the words whose vectors are nearest to a word, to a vector, or to a mean of both.

        The search compares every word's row, in bounded memory; rows of subwords are left out. A
        DWE file is searched at its last time step.

        Parameters
        ----------
        query : str, array-like, or a list of either, optional
            A word, which may be composed from subwords, or a vector of shape (dim,). A list of
            words, or vectors of shape (m, dim), are several queries. In a local file, asking them
            together costs less than asking one by one; a server gets one request for each.
        n : int
            Number of results; fewer if fewer words are compared.
        metric : {"cosine", "dot", "euclidean"}
            The measure of nearness.
        positive, negative : str, numpy.ndarray, or list of str, array-like or pair, optional
            In place of `query`: words and vectors whose weighted mean is the query. Weights are 1
            in `positive` and -1 in `negative`. A pair ``(word, weight)`` or ``(vector, weight)``
            has its own weight, which keeps its sign in both. Words' vectors are first scaled to
            unit length, other vectors are not.
        among : list of str, array-like, or dict, optional
            Compare only these: words of the vocabulary, rows (integers; negative ones count from
            the end), a mask (a boolean for each row of a word), or the sections of a CVC file whose
            metadata match, as in ``{"source": "wiki"}``. All rows by default.
        dim : int, optional
            Compare only the first `dim` numbers of each vector, with the lengths that these have. A
            vector in the query may be whole or have `dim` numbers. All numbers by default.
        exclude : iterable of str or int, optional
            Words and rows to leave out of the results; by default the words of the query.
        approximate : bool
            Compare only the rows that the index of ``build_ann`` proposes. Their scores are exact.
            The first such search opens the index: mapped, or in memory if the file is not mapped.
            With `among`, all of its rows are compared if they are few, or if the index proposes too
            few of them.

        Returns
        -------
        list of Neighbor
            (row, word, score), by falling score, then rising row; for several queries, a list of
            such lists. The score is the cosine (0 for a vector of length 0), the dot product, or
            minus the distance. Rows with values that are not finite are left out.

        Raises
        ------
        UnknownWordError
            If a word has no vector, or if a word in `among` is not in the vocabulary.
        IndexError
            If a row in `among` or `exclude` does not exist.
        FormatError
            If a row cannot be decoded.
        StaleIndexError
            If there is no approximate index, if it is damaged, or if it belongs to other data.
        ValueError
            If there is no query or more than one form of it; if a vector does not fit or is not
            finite; if `n` is negative; if `dim` is not a number of leading columns; if `among` is
            empty, a mask of another length, or metadata of no section; if `approximate` is combined
            with `dim` or another metric than the cosine.
        """
        file = self.at()
        whole = file._stored_vectors().shape[-1]
        width = parse_dim(dim, whole)
        if positive is None and negative is None:
            queries = parse_queries(query, whole, width)
        elif query is None:
            queries = parse_sum(positive, negative, whole, width)
        else:
            raise QueryError("query must be None if positive or negative is given")
        options = Options(
            n=check_n(n),
            metric=check_metric(metric),
            dim=width,
            among=parse_among(among, len(file)),
            exclude=parse_exclude(exclude, len(file)),
            approximate=approximate,
        )
        found = file._nearest(queries, options)
        return found[0] if queries.single else found

    @overload
    def analogy(self, a: str, b: str, c: str, n: int = ...) -> list[Neighbor]: ...

    @overload
    def analogy(self, a: Words, b: Words, c: Words, n: int = ...) -> list[list[Neighbor]]: ...

    def analogy(
        self, a: str | Words, b: str | Words, c: str | Words, n: int = 10
    ) -> list[Neighbor] | list[list[Neighbor]]:
        """Return the words that are to `c` as `b` is to `a`: the nearest to b - a + c.

        One question is ``most_similar(positive=[b, c], negative=[a])``.

        Parameters
        ----------
        a, b, c : str, or list of str
            Three words, or three lists of the same length for several questions at once.
        n : int
            Number of results; fewer if the file has fewer words.

        Returns
        -------
        list of Neighbor
            (row, word, cosine), as from :meth:`most_similar`; for several questions, a list of such
            lists.

        Raises
        ------
        UnknownWordError
            If a word has no vector.
        FormatError
            If a row cannot be decoded.
        ValueError
            If the lists differ in length, or if `n` is negative.
        """
        file = self.at()
        queries = parse_analogies([a, b, c], file._stored_vectors().shape[-1])
        found = file._nearest(queries, Options(n=check_n(n)))
        return found[0] if queries.single else found

    def similarity(self, word1: str, word2: str, *, dim: int | None = None) -> float:
        """Return the cosine of two words' vectors; of a DWE file, at the last time step.

        Parameters
        ----------
        word1, word2 : str
            The words, which may be composed from subwords.
        dim : int, optional
            Compare only the first `dim` numbers of the vectors; all by default.

        Returns
        -------
        float
            Between -1 and 1; 0 if a vector has length 0.

        Raises
        ------
        UnknownWordError
            If a word has no vector.
        ValueError
            If a vector is not finite, or if `dim` is not a number of leading columns.
        """
        pair = self.at().batch([word1, word2])
        from embmap.search.similarity import measure_cosine

        return measure_cosine(pair[:, : parse_dim(dim, pair.shape[1])])

    def doesnt_match(self, words: Iterable[str]) -> str:
        """Return the word that goes least with the others.

        Parameters
        ----------
        words : iterable of str
            The words, which may be composed from subwords.

        Returns
        -------
        str
            The word whose vector has the smallest cosine with the mean of all of them, scaled to
            unit length; of a DWE file, at the last time step. Of equal cosines, the word that comes
            first in the alphabet.

        Raises
        ------
        UnknownWordError
            If a word has no vector.
        ValueError
            If there are no words, or if a vector is not finite.
        """
        if isinstance(words, str):
            raise TypeError("doesnt_match takes a list of words")
        asked = list(words)
        if not asked:
            raise QueryError("words must not be empty")
        units = scale_to_units(check_finite(self.at().batch(asked)))
        mean = scale_to_units(units.mean(axis=0)[np.newaxis])
        return min(zip(vecdot(units, mean).tolist(), asked, strict=True))[1]

    def rank(self, word: str, other: str) -> int:
        """Return the rank of a word among the neighbors of another.

        Parameters
        ----------
        word : str
            The word that all words are compared with.
        other : str
            The word to rank. Both may be composed from subwords.

        Returns
        -------
        int
            1 plus the number of other words that have a greater cosine with `word` than `other`
            has; of a DWE file, at the last time step.

        Raises
        ------
        UnknownWordError
            If a word has no vector.
        FormatError
            If a row cannot be decoded.
        ValueError
            If a vector is not finite.
        """
        return self.at()._rank(word, other)

    def evaluate_word_pairs(
        self,
        pairs: str | os.PathLike[str] | Iterable[tuple[str, str, float]],
        *,
        dim: int | None = None,
        lowercase: bool = False,
    ) -> Correlation:
        """Return how the cosines of word pairs agree with given similarities.

        Parameters
        ----------
        pairs : path-like, or iterable of (str, str, float)
            Two words and their similarity, each; or a UTF-8 text file with these on each line,
            separated by tabs or commas, like wordsim353. Its first line may be a heading, and lines
            that begin with "#" are skipped.
        dim : int, optional
            Compare only the first `dim` numbers of the vectors; all by default.
        lowercase : bool
            Convert the words to lower case first.

        Returns
        -------
        Correlation
            Pearson's and Spearman's coefficients and the share of pairs that were skipped because a
            word is not in the vocabulary; of a DWE file, at the last time step.

        Raises
        ------
        FormatError
            If a row cannot be decoded.
        ValueError
            If a line is not two words and a number, if no pair is in the vocabulary, or if a vector
            is not finite.
        OSError
            If the file of pairs cannot be read.
        """
        file = self.at()
        width = parse_dim(dim, file._stored_vectors().shape[-1])
        from embmap.search.word_pairs import Correlation, correlate, read_word_pairs

        listed = read_word_pairs(pairs) if isinstance(pairs, str | os.PathLike) else pairs
        words: list[str] = []
        expected: list[float] = []
        for first, second, score in listed:
            words += [each.lower() if lowercase else each for each in (first, second)]
            expected.append(float(score))
        rows = file.find(words).reshape(-1, 2)
        known = (rows >= 0).all(axis=1)
        if not known.any():
            raise QueryError(f"none of the {len(rows)} pairs has both words in the vocabulary")
        vectors, cosines = file._stored_vectors(), []
        for pair in np.split(rows[known], range(_PAIRS, int(known.sum()), _PAIRS)):
            taken = check_finite(vectors.take(pair.reshape(-1))[:, :width])
            units = scale_to_units(taken).reshape(-1, 2, taken.shape[1])
            cosines.append(vecdot(units[:, 0], units[:, 1]))
        coefficients = correlate(np.array(expected)[known], np.concatenate(cosines))
        return Correlation(*coefficients, float(1 - known.mean()), int(known.sum()))
