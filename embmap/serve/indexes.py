"""Word indexes that all workers of a server map.

They lie in the server's own folder, where nobody else writes: an index beside the data might be
truncated, which kills a process that has it mapped. A valid FILE.embx is copied there; otherwise
one worker builds the index that the others wait for. The indexes end with the server, so that
nothing waits until they are on the disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from embmap.embedding_file import EmbeddingFile
from embmap.errors import StaleIndexError
from embmap.io.atomic_write import Together
from embmap.io.mapping import Backend
from embmap.words.index_file import SUFFIX
from embmap.words.index_source import IndexChoice
from embmap.words.vocabulary import Vocabulary

__all__ = ["IndexFolder"]

_LOG = logging.getLogger("embmap.serve")


class Opener(Protocol):
    """Opens one content of a file, with what :func:`embmap.open` takes."""

    def __call__(self, index: IndexChoice, backend: Backend | None = None) -> EmbeddingFile:
        """Return the open file."""


class IndexFolder:
    """Where the indexes over the words of one served file lie."""

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        self._folder = Path(folder)
        self._name = name

    def path_for(self, label: str, opened: Opener) -> Path | None:
        """Return an index over the words of the file, making it unless another worker has."""
        path = self._folder / f"{label}{SUFFIX}"
        if path.exists():
            return path
        with opened("auto") as file:
            if not file.vocab:
                return None
            beside = file.vocab.finder.source.existing_path()
        self._folder.mkdir(parents=True, exist_ok=True)
        with _locked(self._folder / "lock"):
            if not path.exists():
                earlier = list(self._folder.glob(f"*{SUFFIX}"))
                if beside is None or not self._copied(path, opened):
                    with opened("memory") as file, Together(durable=False) as files:
                        file.build_index(files.file(path))
                for each in earlier:  # a process that has it mapped keeps it
                    with contextlib.suppress(OSError):
                        each.unlink()
        return path

    def _copied(self, path: Path, opened: Opener) -> bool:
        """Copy the index beside the data if it holds; its header and sizes are looked at first."""
        copy = path.with_suffix(".copy")
        try:
            with opened("require", "read") as file:
                file.find(("",))  # raises if the index belongs to other words
                with Together(durable=False) as files:
                    cast(Vocabulary, file.vocab).finder.source.copy_to(files.file(copy))
            with opened(str(copy)) as file:
                file.check_index()
            copy.replace(path)
            return True
        except (StaleIndexError, OSError):
            with contextlib.suppress(OSError):
                copy.unlink()
        _LOG.warning("%s: its index is not valid; the server builds another", self._name)
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes out; where that cannot be done each does the work itself."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(path, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
