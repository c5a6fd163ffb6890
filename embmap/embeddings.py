"""The common face of local and served files: words, their vectors, and search.

:class:`Embeddings` checks arguments and puts answers together. A subclass finds rows, takes vectors
and searches: :class:`~embmap.EmbeddingFile` in its own bytes, :class:`~embmap.client.RemoteFile`
by asking a server.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NoReturn, TypeVar, get_args, overload

import numpy as np
import numpy.typing as npt

from embmap.errors import UnknownWordError
from embmap.search.searchable import Searchable
from embmap.vectors.matrix import Matrix, RowIndex
from embmap.words.time_labels import TimeLabel, TimeStep, find_step

__all__ = ["Embeddings", "Key", "Missing"]

Key = str | RowIndex | tuple[Any, ...]
"""A word, a row, or several of either; a tuple may add columns to rows."""
Missing = Literal["raise", "zero", "nan"]
D = TypeVar("D")


class Embeddings(Searchable):
    """Words and their vectors, in a file that is open here or served elsewhere.

    Words are looked up as they are stored, without normalisation. The vector of a DWE file is a
    trajectory: read (T, dim) for every shape (dim,) below, and (n, T, dim) for (n, dim).
    """

    @property
    @abstractmethod
    def format(self) -> str:
        """The name of the file's format."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(rows, dim) of the vectors, or (rows, T, dim); (0, 0) in a file without vectors."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of an element of a vector."""

    @property
    @abstractmethod
    def vectors(self) -> Matrix | None:
        """The vectors by row; None in a file without vectors."""

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.shape[-1]

    @property
    def num_timesteps(self) -> int | None:
        """Number of time steps T; None in a file without time steps."""
        return None

    @property
    def timestep_labels(self) -> tuple[TimeLabel, ...]:
        """Labels of the time steps, such as years; () if they have no labels."""
        return ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of words, or of rows in a file without words."""

    def __bool__(self) -> bool:
        """Return True, even for a file without words."""
        return True

    def __contains__(self, word: object) -> bool:
        """Whether a word is in the vocabulary; words composed from subwords are not."""
        return isinstance(word, str) and bool(self.find([word])[0] >= 0)

    # What a subclass does

    @abstractmethod
    def _find_rows(self, words: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the rows of words: (n,), -1 for words that are not in the vocabulary."""

    @abstractmethod
    def _take_words(
        self, words: Sequence[str], out: npt.NDArray[Any] | None, missing: Missing
    ) -> npt.NDArray[Any]:
        """Return the vectors of words, also composed ones; :meth:`_filling` handles the others."""

    @abstractmethod
    def _stored_vectors(self) -> Matrix:
        """Return the vectors by row, or raise FormatError if the file holds none."""

    def _at_step(self, t: int) -> Embeddings:
        """Return a time step that exists; only files with time steps define this."""
        raise NotImplementedError

    # Looking up

    def at(self, t: TimeStep | None = None) -> Embeddings:
        """Return a time step as a file whose vectors have the shape (dim,).

        Parameters
        ----------
        t : int or str, optional
            The time step: its number, where negative numbers count from the end, or its label. Text
            of an integer is the integer. The last one by default.

        Returns
        -------
        Embeddings
            The time step, or this file itself if it has no time steps.

        Raises
        ------
        IndexError
            If the time step does not exist.
        ValueError
            If `t` is given and the file has no time steps, or if it is the number of one time step
            and the label of another. The message gives a number that means only the one.
        """
        steps = self.num_timesteps
        if steps is None:
            if t is not None:
                raise ValueError(f"t must be None, not {t}: {self.format} files have no time steps")
            return self
        return self._at_step(steps - 1 if t is None else find_step(t, steps, self.timestep_labels))

    def __getitem__(self, key: Key) -> npt.NDArray[Any]:
        """Return vectors, by word or by row.

        Parameters
        ----------
        key : str, sequence of str, int, slice, or array of int or bool
            A word, words, a row or rows.

        Returns
        -------
        numpy.ndarray
            Shape (dim,) for a word or a row, else (n, dim). Views of the file are read-only.

        Raises
        ------
        UnknownWordError
            If a word has no vector.
        IndexError
            If a row does not exist.
        """
        if isinstance(key, str):
            vector: npt.NDArray[Any] = self._take_words([str(key)], None, "raise")[0]
            return vector
        if key is None or isinstance(key, bytes | set | dict | frozenset):
            raise TypeError(f"look up a word, a row, or lists of them, not {type(key).__name__}")
        if hasattr(key, "__array__"):  # also a pandas Series, whose dtype is not numpy's
            key = np.asarray(key)
            if key.dtype.kind in "UTO" and key.ndim < 2:
                return self[key.item()] if key.ndim == 0 else self.batch(key.tolist())
        if isinstance(key, list | tuple) and any(isinstance(item, str) for item in key):
            return self.batch(key)
        return self._stored_vectors()[key]

    @overload
    def get(self, word: str) -> npt.NDArray[Any] | None: ...

    @overload
    def get(self, word: str, default: D) -> npt.NDArray[Any] | D: ...

    def get(self, word: str, default: Any = None) -> Any:
        """Return the vector of a word, or a default if the word has no vector.

        Parameters
        ----------
        word : str
            The word.
        default : object, optional
            The answer for an unknown word.

        Returns
        -------
        numpy.ndarray or object
            Shape (dim,), or `default`.
        """
        if not isinstance(word, str):
            raise TypeError(f"a word is a str, not {type(word).__name__}")
        try:
            return self[word]
        except UnknownWordError:
            return default

    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the rows of words.

        Parameters
        ----------
        words : iterable of str
            The words.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: rows, -1 for words that are not in the vocabulary.

        Raises
        ------
        FormatError
            If the vocabulary is damaged.
        """
        if isinstance(words, str):
            raise TypeError("find takes a list of words")
        return self._find_rows(words if isinstance(words, Sequence) else list(words))

    def batch(
        self,
        words: Iterable[str],
        *,
        out: npt.NDArray[Any] | None = None,
        missing: Missing = "raise",
    ) -> npt.NDArray[Any]:
        """Return the vectors of many words.

        Parameters
        ----------
        words : iterable of str
            The words.
        out : numpy.ndarray, optional
            The array to fill: shape (n, dim), with the dtype of the vectors.
        missing : {"raise", "zero", "nan"}
            How to handle words without a vector.

        Returns
        -------
        numpy.ndarray
            Shape (n, dim): a new array, or `out`.

        Raises
        ------
        UnknownWordError
            If a word has no vector and `missing` is "raise".
        ValueError
            If `out` does not fit, or if integers would have to be nan.
        """
        if missing not in get_args(Missing):
            raise ValueError(f"missing must be 'raise', 'zero' or 'nan', not {missing!r}")
        if isinstance(words, str):
            raise TypeError("batch takes a list of words; f[word] takes one")
        words = words if isinstance(words, Sequence) else list(words)
        return self._take_words(words, out, missing)

    def _filling(
        self,
        words: Sequence[str],
        unknown: npt.NDArray[np.int64],
        missing: Missing,
        dtype: np.dtype[Any],
    ) -> float:
        """Return the value that fills the rows of unknown words, or raise UnknownWordError."""
        if missing == "raise":
            if unknown.size:
                self._refuse(words[int(unknown[0])], unknown.size)
        elif missing == "nan":
            if dtype.kind != "f":
                raise ValueError(f"{dtype} has no nan; use missing='zero'")
            return np.nan
        return 0

    def _refuse(self, word: str, n_unknown: int = 1) -> NoReturn:
        """Raise the error for the first of some unknown words."""
        raise UnknownWordError(word, n_unknown=n_unknown)
