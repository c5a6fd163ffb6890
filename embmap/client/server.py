"""The files of a server, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, cast

from embmap.client.answers import checked_limits, models_of
from embmap.client.connections import Connections, RemoteError
from embmap.client.files import RemoteFile
from embmap.client.interface import MODELS, ModelFacts

__all__ = ["Server", "connect"]


class Server(Mapping[str, RemoteFile]):
    """The files of a server by name. Threads may share it; each has its own connection.

    Parameters
    ----------
    connections : Connections
        The connections to the server; :func:`connect` makes them.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @property
    def models(self) -> list[ModelFacts]:
        """The server's current list of its files, as ``GET /v1/models`` answers it."""
        return models_of(self._connections.json(MODELS))

    def __getitem__(self, name: str) -> RemoteFile:
        """Return a file. Only its entry in the server's list is fetched."""
        answer = self._connections.json(MODELS)
        for facts in models_of(answer):
            if facts["name"] == name:
                if not facts["available"]:
                    raise RemoteError(503, "model_unavailable", f"{name!r} cannot be read now")
                limits = checked_limits(answer)
                return RemoteFile(self._connections, cast(dict[str, Any], facts), limits)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter([facts["name"] for facts in self.models])

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.models)

    def close(self) -> None:
        """Close the connections. They open again for the next request."""
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
    """Open the files that ``embmap serve`` serves at a URL.

    Parameters
    ----------
    url : str
        The URL that the server prints, such as ``http://127.0.0.1:8808``.
    token : str, optional
        The server's token, if it has one.
    timeout : float
        Seconds to wait for an answer.

    Returns
    -------
    Server
        The files by name. The first request is sent when a file or the list of files is used.

    Raises
    ------
    ValueError
        If `url` is not the URL of a server.
    """
    return Server(Connections(url, token, timeout))
