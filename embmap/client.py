"""Files that another process serves, with the face of local ones: ``embmap.connect(url)``.

Needs nothing but the standard library and numpy. Vectors travel as .npy, so what arrives are the
numbers of the file; errors are those that the local file would raise.
"""

from __future__ import annotations

import http.client
import io
import json
import operator
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from embmap.errors import EmbmapError, UnknownWordError
from embmap.similarity import Metric, Neighbor

__all__ = ["RemoteError", "RemoteFile", "Server", "connect"]

_NPY = "application/x-npy"
_JSON = "application/json"
_BODY_SHARE = 0.9  # of what a body may have: escapes and braces take some


class RemoteError(EmbmapError, OSError):
    """A server refused or could not answer, for a reason that local files do not have.

    Parameters
    ----------
    status : int
        Of the response; 0 when there was none.
    code : str
        What the server calls it.
    message : str
        And what it says.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status = status
        self.code = code
        self.message = message
        super().__init__(f"{message} ({status} {code})" if status else message)


class _Reply(NamedTuple):
    media_type: str
    missing: str
    content: bytes


class _Connections:
    """One connection for each thread, kept alive."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{url!r} is no URL of a server: write http://HOST:PORT")
        secure = parts.scheme == "https"
        self._kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._address = (parts.hostname, parts.port)
        self._timeout = timeout
        self._base = parts.path.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._local = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            host, port = self._address
            connection = self._local.connection = self._kind(host, port, timeout=self._timeout)
            self._all.append(connection)
        return connection

    def ask(self, path: str, body: Any = None, accept: str = _JSON) -> _Reply:
        headers = {**self._headers, "Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = _JSON
            data = json.dumps(body).encode()
        method = "GET" if data is None else "POST"
        for last in (False, True):
            connection = self._connection()
            fresh = connection.sock is None
            try:
                connection.request(method, self._base + path, data, headers)
                response = connection.getresponse()
                content = response.read()
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                # A server may close a connection that nothing is said on; requests only read.
                if fresh or last or isinstance(error, TimeoutError):
                    raise RemoteError(0, "unreachable", f"no answer: {error}") from error
                continue
            if response.status != 200:
                raise _error_of(response.status, content)
            kind = response.getheader("Content-Type", "").partition(";")[0]
            return _Reply(kind, response.getheader("Embmap-Missing", ""), content)
        raise AssertionError  # the loop has answered or raised

    def json(self, path: str, body: Any = None) -> Any:
        return json.loads(self.ask(path, body).content)

    def close(self) -> None:
        for connection in self._all:
            connection.close()

    def __del__(self) -> None:
        for connection in getattr(self, "_all", ()):
            connection.close()


def _error_of(status: int, content: bytes) -> Exception:
    try:
        error = json.loads(content)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, LookupError, TypeError):
        return RemoteError(status, "error", "the server answered something else than an error")
    if code == "unknown_word":
        return UnknownWordError(error.get("word", ""), n_unknown=error.get("n_unknown", 1))
    if code == "unknown_row":
        return IndexError(message)
    if status in (400, 422):
        return ValueError(message)
    return RemoteError(status, code, message)


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
        Time steps of a DWE file.
    """

    def __init__(
        self, connections: _Connections, facts: dict[str, Any], limits: dict[str, int]
    ) -> None:
        self._connections = connections
        self._limits = limits
        self.name: str = facts["name"]
        self.format: str = facts["format"]
        self.dim: int = facts["dim"]
        name = facts["dtype"]
        self.dtype = np.dtype(np.float32 if name == "bfloat16" else name)
        self.num_timesteps: int | None = facts.get("timesteps")
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
        answer = self._connections.json(self._base + "lookup", {"words": [word], "missing": "null"})
        return answer["rows"][0] is not None

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
            vector: npt.NDArray[Any] = self._looked_up([key], "words", None)[0]
            return vector
        if isinstance(key, slice):
            return self._rows(range(*key.indices(self._n_rows)))
        if (isinstance(key, np.ndarray) and key.ndim) or isinstance(key, Sequence):
            items = key.tolist() if isinstance(key, np.ndarray) else list(key)
            if any(isinstance(item, str) for item in items):
                return self._looked_up(items, "words", None)
            if items and isinstance(items[0], bool):
                return self._rows(np.flatnonzero(items).tolist())
            return self._rows(items)
        row: npt.NDArray[Any] = self._rows([key])[0]
        return row

    def _rows(self, rows: Iterable[Any]) -> npt.NDArray[Any]:
        asked = [operator.index(row) for row in rows]
        for row in asked:
            if not -self._n_rows <= row < self._n_rows:
                raise IndexError(f"row {row} of {self._n_rows}")
        return self._looked_up([row % self._n_rows for row in asked], "rows", None)

    def _looked_up(
        self,
        asked: list[Any],
        what: Literal["words", "rows"],
        fill: float | None,
        *,
        over_time: bool = True,
    ) -> npt.NDArray[Any]:
        over_time = over_time and self.num_timesteps is not None
        shape = (self.num_timesteps or 0, self.dim) if over_time else (self.dim,)
        parts: list[npt.NDArray[Any]] = []
        for part in self._portions(asked, int(np.prod(shape)) * 4):
            body: dict[str, Any] = {what: part, "missing": "subwords", "trajectories": over_time}
            reply = self._connections.ask(self._base + "lookup", body, _NPY)
            vectors = _vectors_of(reply, (len(part), *shape))
            missing = [int(i) for i in reply.missing.split(",") if i]
            if missing and fill is None:
                raise UnknownWordError(part[missing[0]], n_unknown=len(missing))
            if missing and fill is not None:
                if np.isnan(fill) and vectors.dtype.kind != "f":
                    raise ValueError(f"{vectors.dtype} has no nan; use missing='zero'")
                vectors[missing] = fill
            parts.append(vectors)
        return np.concatenate(parts) if parts else np.empty((0, *shape), self.dtype)

    def _portions(self, asked: list[Any], nbytes_each: int) -> Iterator[list[Any]]:
        """Split what is asked for into what one request may."""
        at_once = self._limits["answer_nbytes"] // max(nbytes_each, 1)
        at_once = max(min(self._limits["words"], at_once), 1)
        room = int(self._limits["body_nbytes"] * _BODY_SHARE)
        portion: list[Any] = []
        nbytes = 0
        for item in asked:
            size = len(json.dumps(item)) + 2
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
        """Return the vectors of many words; of a DWE file those of the last time step.

        Parameters
        ----------
        words : iterable of str
            The words: as many as you like, they are sent in portions.
        missing : {"raise", "zero", "nan"}
            What to do about words that have no vector.

        Returns
        -------
        numpy.ndarray
            Shape (n, dim).

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
        return self._looked_up(list(words), "words", fill, over_time=False)

    def most_similar(self, query: Any, n: int = 10, metric: Metric = "cosine") -> list[Neighbor]:
        """Return the words whose vectors are nearest to that of a word, or to a vector.

        Parameters
        ----------
        query : str or array-like
            A word, or a vector of shape (dim,).
        n : int
            How many.
        metric : {"cosine", "dot", "euclidean"}
            What "near" means.

        Returns
        -------
        list of Neighbor
            (row, word, score), the nearest first.

        Raises
        ------
        UnknownWordError
            For a word that has no vector.
        """
        asked = (
            {"word": query} if isinstance(query, str) else {"vector": np.asarray(query).tolist()}
        )
        body = {**asked, "n": n, "metric": metric}
        return _neighbors(self._connections.json(self._base + "similar", body))

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
        body = {"a": a, "b": b, "c": c, "n": n}
        return _neighbors(self._connections.json(self._base + "analogy", body))

    def trajectory(self, word: str | int) -> npt.NDArray[np.float32]:
        """Return a word of a DWE file at all time steps.

        Parameters
        ----------
        word : str or int
            The word or its row.

        Returns
        -------
        numpy.ndarray
            Shape (T, dim), float32.

        Raises
        ------
        UnknownWordError
            For a word that is not in the vocabulary.
        ValueError
            For a file of another format.
        """
        if self.num_timesteps is None:
            raise ValueError(f"{self.format} files have no time steps")
        return self[word]

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
        quoted = urllib.parse.quote(word, safe="")
        return _neighbors(self._connections.json(f"{self._base}related/{quoted}?t={t}&n={n}"))


class Server(Mapping[str, RemoteFile]):
    """The files of a server by name. Threads may share it; each has its own connection.

    Parameters
    ----------
    connections : object
        Leads to the server.
    """

    def __init__(self, connections: _Connections) -> None:
        self._connections = connections

    @property
    def models(self) -> list[dict[str, Any]]:
        """What the server says about its files now."""
        found: list[dict[str, Any]] = self._connections.json("/v1/models")["models"]
        return found

    def __getitem__(self, name: str) -> RemoteFile:
        """Return a file; nothing is fetched of it but its sizes."""
        answer = self._connections.json("/v1/models")
        for facts in answer["models"]:
            if facts["name"] == name:
                if not facts["available"]:
                    raise RemoteError(503, "model_unavailable", f"{name!r} cannot be read now")
                return RemoteFile(self._connections, facts, answer["limits"])
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter([facts["name"] for facts in self.models])

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.models)

    def close(self) -> None:
        """Close the connections; they open again when they are needed."""
        self._connections.close()

    def __enter__(self) -> Self:
        """Return the server."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self.close()


def connect(url: str, token: str | None = None, *, timeout: float = 60.0) -> Server:
    """Reach a server of ``embmap serve``.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8808``.
    token : str, optional
        What it asks for.
    timeout : float
        Seconds to wait for an answer.

    Returns
    -------
    Server
        Its files by name. Nothing is sent before something is asked.

    Raises
    ------
    ValueError
        When that is no URL of a server.
    """
    return Server(_Connections(url, token, timeout))


def _vectors_of(reply: _Reply, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if reply.media_type != _NPY:
        raise RemoteError(200, "garbled", f"the server sent {reply.media_type}, not vectors")
    try:
        vectors = np.load(io.BytesIO(reply.content), allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise RemoteError(200, "garbled", "the server sent vectors that cannot be read") from None
    if vectors.shape != shape:
        raise RemoteError(200, "garbled", f"the server sent {vectors.shape} for {shape}")
    found: npt.NDArray[Any] = vectors
    return found


def _neighbors(answer: Any) -> list[Neighbor]:
    return [
        Neighbor(
            each["row"], each["word"], float("nan") if each["score"] is None else each["score"]
        )
        for each in answer["neighbors"]
    ]
