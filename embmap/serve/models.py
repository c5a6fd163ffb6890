"""The files a server serves: opened when first asked for, and again when they change on disk.

Each is open twice where the system allows it: as it is served to threads, which may wait for a
disk, and to be read only from memory, for the event loop, which must not.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import embmap
from embmap.embedding_file import EmbeddingFile
from embmap.errors import EmbmapError, UnsupportedError
from embmap.index_source import IndexChoice
from embmap.mapping import Backend
from embmap.serve.completion import Completion
from embmap.serve.indexes import IndexFolder
from embmap.serve.problems import Problem, unavailable
from embmap.serve.settings import ModelSource, Settings

__all__ = ["Model", "Models", "Version"]

Signature = tuple[tuple[int, int, int, int], ...]
_FAILED_FOR = 0.5  # seconds until a file that could not be opened is tried again
_PATIENCE = 5.0  # seconds that a request waits for a file to be opened and its words indexed


class Version:
    """A file as it was when it was opened.

    Parameters
    ----------
    file : EmbeddingFile
        The open file.
    cached : EmbeddingFile or None
        The same file, opened to be read only as far as it is in memory.
    signature : tuple
        Inode, size and time of it and of its words, as they were.

    Attributes
    ----------
    file, cached : EmbeddingFile
        As given.
    completion : Completion
        Its words by their beginnings.
    """

    def __init__(
        self, file: EmbeddingFile, cached: EmbeddingFile | None, signature: Signature
    ) -> None:
        self.file = file
        self.cached = cached
        self.signature = signature
        self.completion = Completion(file.vocab)


class _Opening:
    """A version that a thread is opening."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.done = threading.Event()
        self.version: Version | None = None
        self.problem: Problem | None = None
        self.ended = 0.0

    def is_of(self, signature: Signature) -> bool:
        """Whether it still says how a file with this signature is to be opened."""
        failed = self.problem is not None and time.monotonic() - self.ended > _FAILED_FOR
        return self.signature == signature and not failed


class Model:
    """A file under a name. Threads may share it.

    Parameters
    ----------
    source : ModelSource
        Which file.
    backend : {"mmap", "read"}
        How it is read.
    folder : path-like, optional
        Where its index is kept for all workers; without it each has its own.
    """

    def __init__(
        self,
        source: ModelSource,
        backend: Backend,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.name = source.name
        self._path = source.path
        self._vocab = source.vocab
        self._paths = [path for path in (source.path, source.vocab) if path is not None]
        self._backend = backend
        self._lock = threading.Lock()
        self._opening: _Opening | None = None
        self._indexes = None if folder is None else IndexFolder(folder, self.name, self.open)

    def open(self, index: IndexChoice = "auto", backend: Backend | None = None) -> EmbeddingFile:
        """Open the file.

        Parameters
        ----------
        index : str or path-like
            Where its index comes from, as for :func:`embmap.open`.
        backend : str, optional
            How it is read, if not as all are.

        Returns
        -------
        EmbeddingFile
            Nothing of it has been read.

        Raises
        ------
        EmbmapError, OSError, ValueError
            When it cannot be.
        """
        backend = backend or self._backend
        return embmap.open(self._path, backend=backend, index=index, vocab=self._vocab)

    def ready(self) -> Version | None:
        """Return the file as it is on disk now if that has been opened.

        Returns
        -------
        Version or None
            Never waits for anything.

        Raises
        ------
        Problem
            503 when the file is not there.
        """
        opening = self._opening
        version = None if opening is None else opening.version
        return version if version is not None and version.signature == self._signature() else None

    def current(self) -> Version:
        """Return the file as it is on disk now, opening it if need be.

        A request that began with an earlier version keeps it: replaced files live on until then.

        Returns
        -------
        Version
            The open file.

        Raises
        ------
        Problem
            503 when it cannot be opened, or its index takes long to build.
        """
        signature = self._signature()
        with self._lock:
            opening = self._opening
            if opening is None or not opening.is_of(signature):
                opening = self._opening = _Opening(signature)
                # A thread of its own: those of the pool are for other files meanwhile.
                threading.Thread(target=self._open_version, args=(opening,), daemon=True).start()
        if not opening.done.wait(_PATIENCE):
            raise unavailable("its words are being indexed; ask again")
        if opening.version is None:
            raise opening.problem or unavailable("the file cannot be opened")
        return opening.version

    def _open_version(self, opening: _Opening) -> None:
        signature = opening.signature
        try:
            index: IndexChoice = "auto"
            if self._indexes is not None:
                index = self._indexes.path_for(_label(signature)) or index
            file = self.open(index)
            # Without an index of the server's words would be indexed while others wait.
            quick = index != "auto" or not file.vocab
            version = Version(file, self._cached(index) if quick else None, signature)
            if self._signature() != signature:
                raise unavailable("the file is being written")
            opening.version = version
        except Problem as problem:
            opening.problem = problem
        except (EmbmapError, OSError, ValueError) as error:
            reason = getattr(error, "message", None) or type(error).__name__
            opening.problem = unavailable(f"the file cannot be opened: {reason}")
        finally:
            opening.ended = time.monotonic()
            opening.done.set()

    def _cached(self, index: IndexChoice) -> EmbeddingFile | None:
        """Open the file to be read only from memory, if a row costs microseconds then."""
        try:
            file = self.open(index, "cached")
        except (UnsupportedError, BlockingIOError):
            return None
        return file if file.vectors is not None and file.vectors.random_access else None

    def check_unchanged(self, version: Version) -> None:
        """Raise unless what was read from a version can be trusted.

        Replaced files are fine, as what was opened is still there; a file that was written in place
        may have given half of each.

        Parameters
        ----------
        version : Version
            What was read from.

        Raises
        ------
        Problem
            503 when the file was changed in place.
        """
        try:
            now = self._signature()
        except Problem:  # it was removed; what was opened is whole
            return
        for before, after in zip(version.signature, now, strict=True):
            if before[:2] == after[:2] and before != after:
                raise unavailable("the file changed while it was read")

    def _signature(self) -> Signature:
        try:
            found = [os.stat(path) for path in self._paths]  # noqa: PTH116 (counts microseconds)
        except OSError:
            raise unavailable("the file is not there") from None
        return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in found)

    def facts(self) -> dict[str, Any]:
        """Return what ``GET /v1/models`` says about it.

        Returns
        -------
        dict
            Name, whether it is available, and its sizes if so.
        """
        try:
            file = self.current().file
        except Problem:
            return {"name": self.name, "available": False}
        facts: dict[str, Any] = {
            "name": self.name,
            "available": True,
            "format": file.format,
            "dim": file.dim,
            "dtype": str(file.dtype),
            "count": len(file),
            "rows": file.shape[-2],
            "words": file.vocab is not None,
            "vectors": file.vectors is not None,
        }
        if isinstance(file, embmap.dwe.DweFile):
            facts["timesteps"] = file.num_timesteps
        return facts


class Models:
    """All files of a server, by name.

    Parameters
    ----------
    settings : Settings
        Which files.
    """

    def __init__(self, settings: Settings) -> None:
        self._models = {}
        for number, each in enumerate(settings.models):
            folder = None
            if settings.folder is not None:
                folder = Path(settings.folder) / f"index-{number}"
            self._models[each.name] = Model(each, settings.backend, folder)

    def __getitem__(self, name: str) -> Model:
        """Return a model, or raise the problem of a name that nothing has."""
        try:
            return self._models[name]
        except KeyError:
            raise Problem(404, "unknown_model", "no model has this name") from None

    def facts(self) -> list[dict[str, Any]]:
        """Return what is known about each.

        Returns
        -------
        list of dict
            In the order they were given.
        """
        return [model.facts() for model in self._models.values()]


def _label(signature: Signature) -> str:
    """Return a name for a signature that can be part of a file's name."""
    return hashlib.sha256(repr(signature).encode()).hexdigest()[:16]
