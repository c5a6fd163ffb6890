"""The settings of a server: its files, the address where it listens, and its limits.

Worker processes get the settings as JSON, with the path of the token's file instead of the token.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from embmap.io.mapping import Backend

__all__ = ["Limits", "ModelSource", "Settings", "is_loopback", "model_sources", "read_token"]

_SHORTEST_TOKEN = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of requests and answers; a request beyond one is refused.

    Attributes
    ----------
    body_nbytes : int
        Bytes of a request's body.
    words : int
        Words or rows in a request.
    among : int
        Words or rows that a search is restricted to.
    neighbors : int
        The greatest `n`.
    answer_nbytes : int
        Bytes of the vectors in an answer, before they are written as JSON.
    requests : int
        Look-ups that a worker answers at once.
    threads : int
        Threads of a worker for look-ups that the event loop does not answer.
    searches : int
        Searches that a worker takes at once, including those that wait for a processor.
    large : int
        Bodies and answers of more than 64 KiB that are received and sent at once.
    seconds : float
        Time for an answer.
    body_seconds : float
        Time for a request's body to arrive.
    connections : int
        Open connections of a worker.
    """

    body_nbytes: int = 1 << 20
    words: int = 1024
    among: int = 1 << 17
    neighbors: int = 1000
    answer_nbytes: int = 1 << 24
    requests: int = 64
    threads: int = 8
    searches: int = 64
    large: int = 64
    seconds: float = 30.0
    body_seconds: float = 10.0
    connections: int = 512

    def public(self) -> dict[str, int]:
        """Return the limits that a client has to know."""
        names = ("words", "among", "body_nbytes", "answer_nbytes", "neighbors")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ModelSource:
    """A file to serve: its name in requests, its path, and a text file of words if it has none."""

    name: str
    path: str
    vocab: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that a worker needs to know.

    Attributes
    ----------
    port : int
        0 takes a free port.
    workers : int
        Number of processes that answer.
    token_file : str or None
        A file with the token that requests must send.
    folder : str or None
        The server's own folder, in which its workers share indexes and counts.
    """

    models: tuple[ModelSource, ...]
    host: str = "127.0.0.1"
    port: int = 8808
    workers: int = 1
    token_file: str | None = None
    backend: Backend = "read"
    folder: str | None = None
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> str:
        """Return the settings for a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return settings that were written by :meth:`to_json`."""
        facts = json.loads(text)
        facts["models"] = tuple(ModelSource(**each) for each in facts["models"])
        facts["limits"] = Limits(**facts["limits"])
        return cls(**facts)

    def check(self) -> None:
        """Raise ValueError if a server with these settings would not be safe."""
        if not self.models:
            raise ValueError("name at least one file to serve")
        if not self.host:
            raise ValueError("--host must be a name or an address, not empty")
        if self.token_file is None and not is_loopback(self.host):
            raise ValueError(
                f"other machines can reach {self.host}: --token-file must name a file with a "
                "token that requests have to send"
            )


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file."""
    token = Path(path).read_bytes().strip().decode("ascii", "replace")
    if len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"{path}: a token must have at least {_SHORTEST_TOKEN} characters")
    if not all("!" <= letter <= "~" for letter in token):
        raise ValueError(f"{path}: a token must be one line of visible ASCII characters")
    return token


def model_sources(files: Sequence[str], vocabs: Sequence[str] = ()) -> tuple[ModelSource, ...]:
    """Return the files that the command line names."""
    named: dict[str, str] = {}
    for argument in files:
        name, path = _split(argument)
        name = Path(path).stem if name is None else name
        if not name or name in (".", "..") or "/" in name or not name.isprintable():
            raise ValueError(f"{name!r} cannot be the name of a served file: write NAME=PATH")
        if name in named:
            raise ValueError(f"two files have the name {name!r}: write NAME=PATH")
        named[name] = str(Path(path).absolute())
    words: dict[str, str] = {}
    for argument in vocabs:
        name, path = _split(argument)
        if name is None:
            if len(named) != 1:
                raise ValueError(f"--vocab {path}: name one of the files: --vocab NAME={path}")
            (name,) = named
        if name not in named:
            raise ValueError(f"--vocab {argument}: no file has the name {name!r}")
        if name in words:
            raise ValueError(f"--vocab {argument}: {name!r} has words already")
        words[name] = str(Path(path).absolute())
    return tuple(ModelSource(name, path, words.get(name)) for name, path in named.items())


def _split(argument: str) -> tuple[str | None, str]:
    name, sign, path = argument.partition("=")
    if not sign or os.sep in name or Path(argument).exists():
        return None, argument
    return name, path
