"""What a server serves: a mapping of names to files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from embmap.client.answers import checked_limits, models_of
from embmap.client.connections import Connections, RemoteError
from embmap.client.files import RemoteFile

__all__ = ["Server", "connect"]


class Server(Mapping[str, RemoteFile]):
    """The files of a server by name. Threads may share it; each has its own connection.

    Parameters
    ----------
    connections : object
        Leads to the server.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @property
    def models(self) -> list[dict[str, Any]]:
        """What the server says about its files now."""
        return models_of(self._connections.json("/v1/models"))

    def __getitem__(self, name: str) -> RemoteFile:
        """Return a file; nothing is fetched of it but its sizes."""
        answer = self._connections.json("/v1/models")
        for facts in models_of(answer):
            if facts["name"] == name:
                if not facts["available"]:
                    raise RemoteError(503, "model_unavailable", f"{name!r} cannot be read now")
                return RemoteFile(self._connections, facts, checked_limits(answer))
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
    return Server(Connections(url, token, timeout))
