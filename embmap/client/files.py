"""A file that a server serves, and its vectors."""

from __future__ import annotations

import contextlib
import math
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from embmap.client.answers import (
    NPY,
    checked_facts,
    most_nbytes,
    neighbors_of,
    rank_of,
    rows_of,
    vectors_of,
)
from embmap.client.connections import Connections, RemoteError, encoded
from embmap.client.matrix import RemoteMatrix
from embmap.embeddings import Embeddings, Missing
from embmap.errors import UnknownWordError
from embmap.search.queries import Neighbor, Options, Queries, Words
from embmap.vectors.matrix import check_out
from embmap.words.time_labels import TimeLabel, TimeStep, find_step, name_step, parse_labels

__all__ = ["RemoteFile"]

_BODY_FRAME = 1 << 10  # bytes of a request's body besides the words or rows


class RemoteFile(Embeddings):
    """A file that a server serves. Every question is one request, or a few for very many words.

    Parameters
    ----------
    connections : object
        The connections to the server.
    facts : dict
        The server's description of the file.
    limits : dict
        The most that one request may ask for.
    t : int or str, optional
        The time step to ask for; all of them by default.

    Attributes
    ----------
    name : str
        The server's name for the file.
    """

    def __init__(
        self,
        connections: Connections,
        facts: dict[str, Any],
        limits: dict[str, int],
        t: TimeLabel | None = None,
    ) -> None:
        self._connections = connections
        self._limits = limits
        self._facts = facts = checked_facts(facts)
        self.name: str = facts["name"]
        name = facts["dtype"]
        self._dtype = np.dtype(np.float32 if name == "bfloat16" else name)
        self._n_steps: int | None = None if t is not None else facts.get("timesteps")
        self._labels = () if t is not None else parse_labels(facts.get("labels", ()))
        self._t = {} if t is None else {"t": t}
        self._base = f"/v1/{urllib.parse.quote(self.name, safe='')}/"

    def __repr__(self) -> str:
        """Name the file and its sizes."""
        sizes = f"{len(self)} x {self.dim} {self.dtype}"
        return f"<RemoteFile {self.name!r} ({self.format}): {sizes}>"

    def __len__(self) -> int:
        return int(self._facts["count"])

    @property
    def format(self) -> str:  # noqa: D102  documented in Embeddings, as others below
        return cast(str, self._facts["format"])

    @property
    def shape(self) -> tuple[int, ...]:  # noqa: D102
        steps = () if self._n_steps is None else (self._n_steps,)
        return (self._facts["rows"], *steps, self._facts["dim"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element of a vector as it arrives: float32 for a file of bfloat16."""
        return self._dtype

    @property
    def num_timesteps(self) -> int | None:  # noqa: D102
        return self._n_steps

    @property
    def timestep_labels(self) -> tuple[TimeLabel, ...]:  # noqa: D102
        return self._labels

    @property
    def vectors(self) -> RemoteMatrix:
        """The vectors by row."""
        return RemoteMatrix(self.shape, self.dtype, lambda rows: self._look_up(rows, "rows")[0])

    def at(self, t: TimeStep | None = None) -> RemoteFile:  # noqa: D102
        return cast(RemoteFile, super().at(t))

    def _at_step(self, t: int) -> RemoteFile:
        asked = name_step(t, self._n_steps or 0, self._labels)
        return RemoteFile(self._connections, self._facts, self._limits, asked)

    def _stored_vectors(self) -> RemoteMatrix:
        return self.vectors

    def _find_rows(self, words: Sequence[str]) -> npt.NDArray[np.int64]:
        rows = np.full(len(words), -1, np.int64)
        places = _encodable(words)
        if not self._facts["words"]:
            return rows
        found: list[int] = []
        for n, items in self._portions(_chosen(words, places), 8):
            body = _request("words", items, {"missing": "null", "vectors": False})
            answer = self._connections.json(self._base + "lookup", body)
            found += rows_of(answer, n, self._facts["rows"])
        rows[places] = found
        return rows

    def _take_words(
        self, words: Sequence[str], out: npt.NDArray[Any] | None, missing: Missing
    ) -> npt.NDArray[Any]:
        places = _encodable(words)
        vectors, absent = self._look_up(_chosen(words, places), "words")
        known = np.zeros(len(words), np.bool_)
        known[places] = True
        known[places[absent]] = False
        unknown = np.flatnonzero(~known)
        filling = self._filling(words, unknown, missing, vectors.dtype)
        if not unknown.size and out is None:
            return vectors
        out = check_out(out, (len(words), *self.shape[1:]), vectors.dtype)
        out[places] = vectors
        out[unknown] = filling
        return out

    def _look_up(
        self, asked: Sequence[Any], kind: Literal["words", "rows"]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return the vectors of words or rows, and the places of those without a vector."""
        shape = self.shape[1:]
        options = {"trajectories": True} if self._n_steps else self._t
        parts: list[npt.NDArray[Any]] = []
        absent: list[npt.NDArray[np.int64]] = []
        begin = 0
        for n, items in self._portions(asked, math.prod(shape) * max(self.dtype.itemsize, 4)):
            body = _request(kind, items, {"missing": "subwords", **options})
            wanted = (n, *shape)
            reply = self._connections.ask(self._base + "lookup", body, NPY, most_nbytes(wanted))
            vectors, missing = vectors_of(reply, wanted, may_miss=kind == "words")
            parts.append(vectors)
            absent.append(missing + begin)
            begin += n
        if not parts:
            return np.empty((0, *shape), self.dtype), np.empty(0, np.int64)
        if len(parts) == 1:
            return parts[0], absent[0]
        return np.concatenate(parts), np.concatenate(absent)

    def _portions(self, asked: Sequence[Any], nbytes_each: int) -> Iterator[tuple[int, bytes]]:
        """Split words or rows into JSON lists for one request each; yields their lengths, too."""
        at_once = self._limits["answer_nbytes"] // max(nbytes_each, 1)
        at_once = max(min(self._limits["words"], at_once), 1)
        for begin in range(0, len(asked), at_once):
            yield from self._fitting(list(asked[begin : begin + at_once]))

    def _fitting(self, asked: list[Any]) -> Iterator[tuple[int, bytes]]:
        """Yield a list as JSON, in halves if it is too long for the body of a request."""
        room = self._limits["body_nbytes"] - _BODY_FRAME
        items = encoded(asked)
        if len(items) <= room:
            yield len(asked), items
        elif len(asked) > 1:
            yield from self._fitting(asked[: len(asked) // 2])
            yield from self._fitting(asked[len(asked) // 2 :])
        else:
            nbytes = len(items) - 2
            message = f"a word of {nbytes} bytes as JSON: the server takes at most {room - 2}"
            raise RemoteError(0, "too_large", message)

    # Searching

    def _nearest(self, queries: Queries, options: Options) -> list[list[Neighbor]]:
        for words in (queries.words, options.among):
            if isinstance(words, list):
                _check_encodable(words)
        body: dict[str, Any] = {"metric": options.metric, "approximate": options.approximate}
        among, exclude = options.among, options.exclude
        if among is not None:
            body["among"] = among.tolist() if isinstance(among, np.ndarray) else among
        if exclude is not None:  # no file contains a word that UTF-8 cannot encode
            words = [each for each in exclude if isinstance(each, str)]
            rows = [each for each in exclude if not isinstance(each, str)]
            body["exclude"] = [*rows, *_chosen(words, _encodable(words))]
        if options.dim is not None:
            body["dim"] = options.dim
        return [self._ranking({**each, **body}, options.n) for each in _asked(queries)]

    def _rank(self, word: str, other: str) -> int:
        _check_encodable([word, other])
        body = {"word": word, "other": other, **self._t}
        return rank_of(self._connections.json(self._base + "rank", body))

    def _ranking(self, body: dict[str, Any], n: int) -> list[Neighbor]:
        """Return the neighbors that one request asks for; the server refuses to send none."""
        body = {**body, **self._t, "n": max(n, 1)}
        return neighbors_of(self._connections.json(self._base + "similar", body))[:n]

    @overload
    def most_related(self, word: str, t: TimeStep, n: int = ...) -> list[Neighbor]: ...

    @overload
    def most_related(self, word: Words, t: TimeStep, n: int = ...) -> list[list[Neighbor]]: ...

    def most_related(
        self, word: str | Words, t: TimeStep, n: int = 10
    ) -> list[Neighbor] | list[list[Neighbor]]:
        """Return the words of a DWE file with the greatest dot products at a time step.

        Parameters
        ----------
        word : str, or list or tuple of str
            The word, or several, for which the server is asked one after the other.
        t : int or str
            The time step, by its number or its label as in :meth:`at`.
        n : int
            Number of results.

        Returns
        -------
        list of Neighbor, or list of lists
            (row, word, dot product), the nearest first. For several words, a list for each.

        Raises
        ------
        UnknownWordError
            If a word is not in the vocabulary.
        IndexError
            If the time step does not exist.
        ValueError
            If `t` is the number of one time step and the label of another.
        """
        words = [word] if isinstance(word, str) else word
        _check_encodable(words)
        steps = self._n_steps or 0
        asked = name_step(find_step(t, steps, self._labels), steps, self._labels)
        found = []
        for each in words:
            query = urllib.parse.urlencode({"word": each, "t": asked, "n": n})
            found.append(neighbors_of(self._connections.json(f"{self._base}related?{query}")))
        return found[0] if isinstance(word, str) else found


def _asked(queries: Queries) -> list[dict[str, Any]]:
    """Return the fields that ask one query each."""
    items: list[Any] = [*queries.words, *queries.vectors.tolist()]
    if queries.weights is None:
        return [{"word" if isinstance(item, str) else "vector": item} for item in items]
    m, p = queries.weights.shape
    weights = queries.weights.tolist()
    return [
        {"positive": list(map(list, zip(items[i * p : i * p + p], weights[i], strict=True)))}
        for i in range(m)
    ]


def _request(kind: str, items: bytes, options: dict[str, Any]) -> bytes:
    """Return the body of a look-up of items, which are JSON already."""
    return b'{"%b": %b, %b' % (kind.encode(), items, encoded(options)[1:])


def _encodable(words: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return the places of words that UTF-8 can encode; no file contains any other word."""
    try:
        "".join(words).encode()
        return np.arange(len(words))
    except (TypeError, UnicodeEncodeError):
        pass
    places = []
    for i, word in enumerate(words):
        if not isinstance(word, str):
            raise TypeError(f"a word is a str, not {type(word).__name__}")
        with contextlib.suppress(UnicodeEncodeError):
            word.encode()
            places.append(i)
    return np.array(places, np.int64)


def _chosen(words: Sequence[str], places: npt.NDArray[np.int64]) -> Sequence[str]:
    """Return the words at some places, which are in order."""
    return words if places.size == len(words) else [words[i] for i in places.tolist()]


def _check_encodable(words: Sequence[str]) -> None:
    """Raise UnknownWordError for a word that UTF-8 cannot encode."""
    unknown = sorted({*range(len(words))} - {*_encodable(words).tolist()})
    if unknown:
        raise UnknownWordError(words[unknown[0]])
