"""The files a server serves: opened when first asked for, and again when they change on disk.

Each is open twice where the system allows it: as it is served to threads, which may wait for a
disk, and to be read only from memory, for the event loop, which must not.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import embmap
from embmap.embedding_file import EmbeddingFile
from embmap.errors import EmbmapError, UnsupportedError
from embmap.io.mapping import Backend
from embmap.serve.completion import Completion
from embmap.serve.indexes import IndexFolder
from embmap.serve.problems import Problem, unavailable
from embmap.serve.settings import ModelSource, Settings
from embmap.words.index_source import IndexChoice

__all__ = ["Model", "Models", "Version"]

Signature = tuple[tuple[int, int, int, int, int], ...]
_FAILED_FOR = 0.5  # seconds until a file that could not be opened is tried again
_PATIENCE = 5.0  # seconds that a request waits for a file to be opened and its words indexed
_ATTEMPTS = 5  # at a file that is replaced again while it is being opened
_LOG = logging.getLogger("embmap.serve")


class Watched:
    """Files held open to see whether they change, wherever their paths lead later.

    Attributes
    ----------
    signature : tuple
        Device, inode, size and times of each, as they are now.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._descriptors: list[int] = []
        for path in paths:
            flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
            self._descriptors.append(os.open(path, flags))
        self._found = [os.fstat(each) for each in self._descriptors]
        self.signature = _signature_of(self._found)

    def __del__(self) -> None:
        """Let them go."""
        for each in self._descriptors:
            os.close(each)

    def is_unchanged(self) -> bool:
        """Return whether nobody has written to them."""
        for descriptor, before in zip(self._descriptors, self._found, strict=True):
            now = os.fstat(descriptor)
            if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                return False
            # Whoever puts the time of the last change back cannot put that of this change back.
            if now.st_ctime_ns != before.st_ctime_ns and now.st_nlink == before.st_nlink:
                return False
        return True

    def is_of(self, file: EmbeddingFile) -> bool:
        """Return whether these are the files that an open file reads."""
        found = [(each.st_dev, each.st_ino) for each in self._found]
        return found == [each.identity for each in file.mapped_files]


class Version:
    """A file as it was when it was opened.

    Attributes
    ----------
    file, cached : EmbeddingFile
        As given.
    signature : tuple
        Device, inode, size and times of the file and of its words.
    completion : Completion
        Its words by their beginnings.
    """

    def __init__(self, file: EmbeddingFile, cached: EmbeddingFile | None, watched: Watched) -> None:
        self.file = file
        self.cached = cached
        self._watched = watched
        self.signature = watched.signature
        self.completion = Completion(file.vocab)

    def check_unchanged(self) -> None:
        """Raise unless what was read can be trusted."""
        if not self._watched.is_unchanged():
            raise unavailable("the file changed while it was read")


class Model:
    """A file under a name, for one event loop."""

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
        self._version: Version | None = None
        self._opening: Future[Version] | None = None
        self._failed: tuple[Signature, float] | None = None
        self._folder = folder

    def open(self, index: IndexChoice = "auto", backend: Backend | None = None) -> EmbeddingFile:
        """Open the file."""
        backend = backend or self._backend
        return embmap.open(self._path, backend=backend, index=index, vocab=self._vocab)

    async def current(self) -> Version:
        """Return the file as it is on disk now, opening it if need be.

        A request that began with an earlier version keeps it: replaced files live on until then.
        """
        until = time.monotonic() + _PATIENCE
        version: Version | None = None
        for _ in range(_ATTEMPTS):
            signature = self._signature()
            version = self._version
            if version is not None and version.signature == signature:
                return version
            # A thread of its own, so that those of the pool are for other files meanwhile.
            opening = asyncio.wrap_future(self._opened(signature))
            done, _ = await asyncio.wait((opening,), timeout=max(until - time.monotonic(), 0))
            if not done:
                raise unavailable("its words are being indexed; ask again")
            try:
                version = opening.result()
            except Problem:
                if self._signature() == signature:
                    raise
            else:
                if version.signature == self._signature():
                    return version
        if version is None:
            raise unavailable("the file is being written")
        return version  # whole, if not the newest: it is replaced faster than it is opened

    def _opened(self, signature: Signature) -> Future[Version]:
        """Return the file that is being opened; one at a time."""
        opening = self._opening
        if opening is not None and not opening.done():
            return opening
        if opening is not None and self._failed is not None:
            found, when = self._failed
            if found == signature and time.monotonic() - when < _FAILED_FOR:
                return opening
        self._failed = None
        opening = self._opening = Future()
        opening.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        opening.add_done_callback(partial(self._note, signature))
        try:
            threading.Thread(target=self._open_into, args=(opening,), daemon=True).start()
        except RuntimeError:
            opening.set_exception(unavailable("there is no thread left to open it"))
        return opening

    def _note(self, signature: Signature, opening: Future[Version]) -> None:
        if opening.exception() is None:
            self._version = opening.result()
        else:
            self._version = None
            self._failed = signature, time.monotonic()

    def _open_into(self, opening: Future[Version]) -> None:
        try:
            opening.set_result(self._open_version())
        except Problem as problem:
            opening.set_exception(problem)
        except Exception as error:
            reason = getattr(error, "message", None) or type(error).__name__
            opening.set_exception(unavailable(f"the file cannot be opened: {reason}"))

    def _open_version(self) -> Version:
        for _ in range(_ATTEMPTS):
            watched = Watched(self._paths)
            try:
                with ExitStack() as until_open:
                    index = self._index(watched, until_open)
                    file = self._open_as(watched, index)
                    # Without an index of the server's words would be indexed while others wait.
                    quick = index != "auto" or not file.vocab
                    cached = self._cached(watched, index) if quick else None
                version = Version(file, cached, watched)
            except _ReplacedError:
                continue
            if watched.is_unchanged():
                return version
        raise unavailable("the file is being written")

    def _open_as(
        self, watched: Watched, index: IndexChoice, backend: Backend | None = None
    ) -> EmbeddingFile:
        file = self.open(index, backend)
        if not watched.is_of(file):
            file.close()
            raise _ReplacedError
        return file

    def _index(self, watched: Watched, until_open: ExitStack) -> IndexChoice:
        """Return an index that nobody else writes to; "auto" where there is none.

        Without a folder its name goes when the stack is closed, and what was mapped stays: then a
        process that is killed leaves nothing behind.
        """
        try:
            folder = self._folder or until_open.enter_context(
                TemporaryDirectory(prefix="embmap-serve-", ignore_cleanup_errors=True)
            )
            opened = partial(self._open_as, watched)
            indexes = IndexFolder(folder, self.name)
            return indexes.path_for(_label(watched.signature), opened) or "auto"
        except OSError as error:
            if not all(Path(path).exists() for path in self._paths):
                raise
            _LOG.warning("%s: each worker has an index of its own: %s", self.name, error.strerror)
            return "auto"

    def _cached(self, watched: Watched, index: IndexChoice) -> EmbeddingFile | None:
        """Open the file to be read only from memory, if a row costs microseconds then."""
        try:
            file = self._open_as(watched, index, "cached")
        except (UnsupportedError, BlockingIOError):
            return None
        return file if file.vectors is not None and file.vectors.random_access else None

    def _signature(self) -> Signature:
        try:
            found = [os.stat(path) for path in self._paths]  # noqa: PTH116 (counts microseconds)
        except OSError:
            raise unavailable("the file is not there") from None
        return _signature_of(found)

    def facts(self) -> dict[str, Any]:
        """Return what ``GET /v1/models`` says about it."""
        try:
            with self.open("memory") as file:
                return self._facts_of(file)
        except (EmbmapError, OSError, ValueError):
            return {"name": self.name, "available": False}

    def _facts_of(self, file: EmbeddingFile) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "name": self.name,
            "available": True,
            "format": file.format,
            "dim": file.dim,
            "dtype": str(file.dtype),
            "count": len(file),
            "rows": file.shape[0],
            "words": file.vocab is not None,
            "vectors": file.vectors is not None,
        }
        if file.num_timesteps is not None:
            facts["timesteps"] = file.num_timesteps
        return facts


class Models:
    """All files of a server, by name."""

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
        """Return what is known about each."""
        return [model.facts() for model in self._models.values()]


class _ReplacedError(Exception):
    """Another file was opened than the one that is watched."""


def _signature_of(found: Sequence[os.stat_result]) -> Signature:
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in found)


def _label(signature: Signature) -> str:
    """Return a name for a signature that can be part of a file's name."""
    return hashlib.sha256(repr(signature).encode()).hexdigest()[:16]
