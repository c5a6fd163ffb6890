"""A file that a server serves, and its vectors."""

from __future__ import annotations

import contextlib
import math
import operator
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embmap.client.answers import (
    NPY,
    checked_facts,
    most_nbytes,
    neighbors_of,
    rows_of,
    vectors_of,
)
from embmap.client.connections import Connections, RemoteError, encoded
from embmap.client.matrix import RemoteMatrix
from embmap.errors import UnknownWordError
from embmap.search.similarity import Metric, Neighbor

__all__ = ["RemoteFile"]

_BODY_FRAME = 1 << 10  # bytes of a body beside the words or rows
_What = Literal["words", "rows"]


class RemoteFile:
    """A file that a server serves.

    Parameters
    ----------
    connections : object
        Leads to the server.
    facts : dict
        What the server says about the file.
    limits : dict
        What a request may ask for.
    t : int, optional
        The time step that is asked for; all of them by default.

    Attributes
    ----------
    name : str
        What the server calls it.
    format : str
        Its format.
    dim : int
        Length of a vector.
    dtype : numpy.dtype
        Type of an element of the vectors that arrive.
    num_timesteps : int or None
        Time steps of a DWE file; None for one of them, and for other files.
    """

    def __init__(
        self,
        connections: Connections,
        facts: dict[str, Any],
        limits: dict[str, int],
        t: int | None = None,
    ) -> None:
        self._connections = connections
        self._limits = limits
        facts = checked_facts(facts)
        self.name: str = facts["name"]
        self.format: str = facts["format"]
        self.dim: int = facts["dim"]
        name = facts["dtype"]
        self.dtype = np.dtype(np.float32 if name == "bfloat16" else name)
        self.num_timesteps: int | None = None if t is not None else facts.get("timesteps")
        self._facts = facts
        self._t = {} if t is None else {"t": t}
        self._n = facts["count"]
        self._n_rows = facts["rows"]
        self._has_words = facts["words"]
        self._base = f"/v1/{urllib.parse.quote(self.name, safe='')}/"

    def __repr__(self) -> str:
        """Name the file and its sizes."""
        return f"<RemoteFile {self.name!r} ({self.format}): {self._n} x {self.dim} {self.dtype}>"

    def __len__(self) -> int:
        """Return the number of words, or of rows in a file without words."""
        return int(self._n)

    def __bool__(self) -> bool:
        """Return True, even for a file without words."""
        return True

    def __contains__(self, word: object) -> bool:
        """Whether a word is in the vocabulary; words composed from subwords are not."""
        if not isinstance(word, str) or not self._has_words:
            return False
        return bool(self.find([word])[0] >= 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, dim) of the vectors; (rows, T, dim) of a DWE file."""
        return (self._n_rows, *self._row_shape)

    @property
    def _row_shape(self) -> tuple[int, ...]:
        return (self.dim,) if self.num_timesteps is None else (self.num_timesteps, self.dim)

    @property
    def vectors(self) -> RemoteMatrix:
        """The vectors by row."""
        return RemoteMatrix(self.shape, self.dtype, lambda rows: self._looked_up(rows, "rows"))

    def at(self, t: int | None = None) -> RemoteFile:
        """Return the file at a time step, whose vectors have the shape (dim,).

        Parameters
        ----------
        t : int, optional
            The time step; negative ones count from the end. The last one by default.

        Returns
        -------
        RemoteFile
            This file where there are no time steps.

        Raises
        ------
        IndexError
            For a time step that does not exist.
        ValueError
            If `t` is given and the file has no time steps.
        """
        steps = self.num_timesteps
        if steps is None:
            if t is not None:
                raise ValueError(f"t must be None, not {t}: {self.format} files have no time steps")
            return self
        number = -1 if t is None else operator.index(t)
        if not -steps <= number < steps:
            raise IndexError(f"timestep {number} of {steps}")
        return RemoteFile(self._connections, self._facts, self._limits, number % steps)

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
        """
        if isinstance(words, str):
            raise TypeError("find takes a list of words")
        words = list(words)
        rows = np.full(len(words), -1, np.int64)
        places = self._askable(words)
        found: list[int] = []
        for part in self._portions([words[i] for i in places], 8):
            body = {"words": part, "missing": "null", "vectors": False}
            answer = self._connections.json(self._base + "lookup", body)
            found += rows_of(answer, len(part), self._n_rows)
        rows[places] = found
        return rows

    def _askable(self, words: Sequence[Any]) -> list[int]:
        """Return the places of words that UTF-8 can hold; no file holds the others."""
        places = []
        for i, word in enumerate(words):
            if not isinstance(word, str):
                raise TypeError(f"a word is a str, not {type(word).__name__}")
            with contextlib.suppress(UnicodeEncodeError):
                word.encode()
                places.append(i)
        return places

    def _check_askable(self, *words: str) -> None:
        """Raise UnknownWordError for a word that UTF-8 cannot hold."""
        for word in words:
            if not self._askable([word]):
                raise UnknownWordError(word)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Return vectors by word or row; of a DWE file their trajectories.

        Parameters
        ----------
        key : str, int, slice, or a list of either
            A word, words, a row or rows.

        Returns
        -------
        numpy.ndarray
            Shape (dim,) for a word or a row, else (n, dim); (T, dim) and (n, T, dim) of a DWE file.

        Raises
        ------
        UnknownWordError
            For a word that has no vector.
        IndexError
            For a row that does not exist.
        """
        if isinstance(key, str):
            vector: npt.NDArray[Any] = self._looked_up([key], "words")[0]
            return vector
        if key is None or isinstance(key, bytes | set | dict | frozenset):
            raise TypeError(f"look up a word, a row, or lists of them, not {type(key).__name__}")
        if hasattr(key, "__array__"):
            key = np.asarray(key)
            if key.dtype.kind in "UTO":
                return self[key.item()] if key.ndim == 0 else self._looked_up(key.tolist(), "words")
        if isinstance(key, list | tuple) and any(isinstance(item, str) for item in key):
            return self._looked_up(list(key), "words")
        return self.vectors[key]

    def _looked_up(
        self, asked: Sequence[Any], what: _What, fill: float | None = None
    ) -> npt.NDArray[Any]:
        """Return vectors of words or rows, as many as it takes requests for."""
        shape = self._row_shape
        at: dict[str, Any] = {"trajectories": True} if self.num_timesteps else self._t
        places = self._askable(asked) if what == "words" else range(len(asked))
        known = np.zeros(len(asked) if what == "words" else 0, np.bool_)
        parts: list[npt.NDArray[Any]] = []
        begin = 0
        nbytes_each = math.prod(shape) * max(self.dtype.itemsize, 4)
        for part in self._portions((asked[i] for i in places), nbytes_each):
            body = {what: part, "missing": "subwords", **at}
            wanted = (len(part), *shape)
            most = most_nbytes(wanted)
            reply = self._connections.ask(self._base + "lookup", body, NPY, most)
            vectors, missing = vectors_of(reply, wanted, may_miss=what == "words")
            parts.append(vectors)
            if what == "words":
                asked_now = np.array(places[begin : begin + len(part)])
                known[asked_now] = True
                known[asked_now[missing]] = False
            begin += len(part)
        unknown = np.flatnonzero(~known)
        if unknown.size and fill is None:
            raise UnknownWordError(asked[int(unknown[0])], n_unknown=unknown.size)
        vectors = np.concatenate(parts) if parts else np.empty((0, *shape), self.dtype)
        if not unknown.size:
            return vectors
        if fill is not None and np.isnan(fill) and vectors.dtype.kind != "f":
            raise ValueError(f"{vectors.dtype} has no nan; use missing='zero'")
        found = np.empty((len(asked), *shape), vectors.dtype)
        found[places] = vectors
        found[unknown] = fill
        return found

    def _portions(self, asked: Iterable[Any], nbytes_each: int) -> Iterator[list[Any]]:
        """Split what is asked for into what one request may."""
        at_once = self._limits["answer_nbytes"] // max(nbytes_each, 1)
        at_once = max(min(self._limits["words"], at_once), 1)
        room = self._limits["body_nbytes"] - _BODY_FRAME
        portion: list[Any] = []
        nbytes = 0
        for item in asked:
            size = len(encoded(item)) + 2
            if size > room:
                told = f"a word of {size - 2} bytes as JSON: the server takes at most {room - 2}"
                raise RemoteError(0, "too_large", told)
            if portion and (len(portion) == at_once or nbytes + size > room):
                yield portion
                portion, nbytes = [], 0
            portion.append(item)
            nbytes += size
        if portion:
            yield portion

    def get(self, word: str, default: Any = None) -> Any:
        """Return the vector of a word, or a default when it has none.

        Parameters
        ----------
        word : str
            The word.
        default : object, optional
            What to return for an unknown word.

        Returns
        -------
        numpy.ndarray or object
            As ``f[word]``, or `default`.
        """
        if not isinstance(word, str):
            raise TypeError(f"a word is a str, not {type(word).__name__}")
        try:
            return self[word]
        except UnknownWordError:
            return default

    def batch(
        self, words: Iterable[str], *, missing: Literal["raise", "zero", "nan"] = "raise"
    ) -> npt.NDArray[Any]:
        """Return the vectors of many words.

        Parameters
        ----------
        words : iterable of str
            The words: as many as you like, they are sent in portions.
        missing : {"raise", "zero", "nan"}
            What to do about words that have no vector.

        Returns
        -------
        numpy.ndarray
            Shape (n, dim), or (n, T, dim).

        Raises
        ------
        UnknownWordError
            For the first word without a vector, with ``missing="raise"``.
        RemoteError
            When the server cannot answer.
        """
        if missing not in ("raise", "zero", "nan"):
            raise ValueError(f"missing must be 'raise', 'zero' or 'nan', not {missing!r}")
        if isinstance(words, str):
            raise TypeError("batch takes a list of words; f[word] takes one")
        fill = {"raise": None, "zero": 0.0, "nan": float("nan")}[missing]
        return self._looked_up(list(words), "words", fill)

    def most_similar(self, query: Any, n: int = 10, metric: Metric = "cosine") -> list[Any]:
        """Return the words whose vectors are nearest to that of a word, or to a vector.

        Parameters
        ----------
        query : str, array-like, or a list of either
            A word; a vector of shape (dim,); or several, of which one after the other is asked.
        n : int
            How many.
        metric : {"cosine", "dot", "euclidean"}
            What "near" means.

        Returns
        -------
        list of Neighbor
            (row, word, score), the nearest first; a list of these lists for several queries.

        Raises
        ------
        UnknownWordError
            For a word that has no vector.
        ValueError
            When a vector does not fit, or `n` is more than the server gives.
        """
        if isinstance(query, str):
            asked: dict[str, Any] = {"word": query}
            self._check_askable(query)
        elif any(isinstance(each, str) for each in query) or np.ndim(query) == 2:
            return [self.most_similar(each, n, metric) for each in query]
        else:
            asked = {"vector": np.asarray(query).tolist()}
        body = {**asked, **self._t, "n": n or 1, "metric": metric}
        found = neighbors_of(self._connections.json(self._base + "similar", body))
        return found if n else []

    def analogy(self, a: str, b: str, c: str, n: int = 10) -> list[Neighbor]:
        """Return the words that are to `c` as `b` is to `a`.

        Parameters
        ----------
        a, b, c : str
            Three words.
        n : int
            How many.

        Returns
        -------
        list of Neighbor
            (row, word, cosine), the nearest first.

        Raises
        ------
        UnknownWordError
            For a word that has no vector.
        """
        self._check_askable(a, b, c)
        body = {"a": a, "b": b, "c": c, "n": n, **self._t}
        return neighbors_of(self._connections.json(self._base + "analogy", body))

    def most_related(self, word: str, t: int, n: int = 10) -> list[Neighbor]:
        """Return the words of a DWE file most similar to a word at a time step.

        Parameters
        ----------
        word : str
            The word.
        t : int
            The time step; negative ones count from the end.
        n : int
            How many.

        Returns
        -------
        list of Neighbor
            (row, word, dot product), the nearest first.

        Raises
        ------
        UnknownWordError
            For a word that is not in the vocabulary.
        """
        self._check_askable(word)
        query = urllib.parse.urlencode({"word": word, "t": t, "n": n})
        return neighbors_of(self._connections.json(f"{self._base}related?{query}"))
