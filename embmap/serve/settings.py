"""What a server is told at its start: which files, where it listens, and what it refuses.

Settings travel to worker processes as a JSON file. The token does not: its file's name does.
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


@dataclass(frozen=True)
class Limits:
    """What a request may ask for; more is refused.

    Attributes
    ----------
    body_nbytes : int
        Bytes of a request's body.
    words : int
        Words or rows of a request.
    neighbors : int
        The greatest `n`.
    answer_nbytes : int
        Bytes of the vectors of an answer, before they are written as JSON.
    requests : int
        Look-ups that a worker answers at once.
    threads : int
        Threads of a worker that answer those that take longer.
    searches : int
        Searches that a worker answers at once, those that wait for a processor included.
    large : int
        Bodies of more than 64 KiB that arrive and answers of more that are sent, at once.
    seconds : float
        How long an answer may take.
    body_seconds : float
        How long a request's body may take to arrive.
    connections : int
        Open connections of a worker.
    """

    body_nbytes: int = 1 << 20
    words: int = 1024
    neighbors: int = 1000
    answer_nbytes: int = 1 << 24
    requests: int = 64
    threads: int = 8
    searches: int = 64
    large: int = 64
    seconds: float = 30.0
    body_seconds: float = 10.0
    connections: int = 512

    def told(self) -> dict[str, int]:
        """Return those that a client has to know."""
        names = ("words", "body_nbytes", "answer_nbytes", "neighbors")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ModelSource:
    """A file to serve.

    Attributes
    ----------
    name : str
        What requests call it.
    path : str
        The file.
    vocab : str or None
        A text file with its words, for a file without any.
    """

    name: str
    path: str
    vocab: str | None = None


@dataclass(frozen=True)
class Settings:
    """Everything a worker needs to know.

    Attributes
    ----------
    models : tuple of ModelSource
        The files.
    host : str
        Where it listens.
    port : int
        And on which port; 0 takes a free one.
    workers : int
        How many processes answer.
    token_file : str or None
        Holds the token that requests have to bring.
    backend : {"mmap", "read"}
        How the files are read.
    folder : str or None
        The server's own, where its workers find what they share: indexes and counts.
    limits : Limits
        What is refused.
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
        """Raise ValueError when these settings would not be safe."""
        if not self.models:
            raise ValueError("name at least one file to serve")
        if not self.host:
            raise ValueError("--host needs a name or an address")
        if self.token_file is None and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached by others: --token-file has to name a file with a "
                "token that requests must bring"
            )


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
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
        raise ValueError(f"{path}: a token has at least {_SHORTEST_TOKEN} characters")
    if not all("!" <= letter <= "~" for letter in token):
        raise ValueError(f"{path}: a token is one line of ASCII letters, digits and signs")
    return token


def model_sources(files: Sequence[str], vocabs: Sequence[str] = ()) -> tuple[ModelSource, ...]:
    """Return what the command line names."""
    named: dict[str, str] = {}
    for argument in files:
        name, path = _split(argument)
        name = Path(path).stem if name is None else name
        if not name or name in (".", "..") or "/" in name or not name.isprintable():
            raise ValueError(f"{name!r} cannot name a file here; write NAME=PATH")
        if name in named:
            raise ValueError(f"two files are named {name!r}; write NAME=PATH")
        named[name] = str(Path(path).absolute())
    words: dict[str, str] = {}
    for argument in vocabs:
        name, path = _split(argument)
        if name is None:
            if len(named) != 1:
                raise ValueError(f"--vocab {path}: say for which file: --vocab NAME={path}")
            (name,) = named
        if name not in named:
            raise ValueError(f"--vocab {argument}: no file is named {name!r}")
        if name in words:
            raise ValueError(f"--vocab {argument}: {name!r} has words already")
        words[name] = str(Path(path).absolute())
    return tuple(ModelSource(name, path, words.get(name)) for name, path in named.items())


def _split(argument: str) -> tuple[str | None, str]:
    name, sign, path = argument.partition("=")
    if not sign or os.sep in name or Path(argument).exists():
        return None, argument
    return name, path
