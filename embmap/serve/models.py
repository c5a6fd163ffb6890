"""The files that a server serves: opened on the first request, and again when they change on disk.

Where the system allows it, each file is open several times: for threads, which may wait for a
disk; for the event loop, which may not and reads only what is in memory; and as a map, from which
the loop reads batches while a lease keeps the file from shrinking.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import embmap
from embmap.client.interface import ModelFacts
from embmap.embedding_file import EmbeddingFile
from embmap.errors import EmbmapError, UnsupportedError
from embmap.io.mapping import Backend
from embmap.serve.completion import Completion
from embmap.serve.indexes import ApproximateIndexes, IndexFolder
from embmap.serve.leased import LeasedMap, Leases
from embmap.serve.problems import Problem, unavailable
from embmap.serve.protocol import warn_once
from embmap.serve.settings import ModelSource, Settings
from embmap.serve.watched import Signature, Watched, label_of, signature_of
from embmap.words.index_source import IndexChoice

__all__ = ["Model", "Models", "Version"]

_FAILED_FOR = 0.5  # seconds before a file that could not be opened is tried again
_PATIENCE = 5.0  # seconds that a request waits until a file is open and its words are indexed
_ATTEMPTS = 5  # to open a file that is replaced while it is being opened


class Version:
    """A file as it was when it was opened: ``file`` for threads, ``cached`` for the event loop.

    There is no ``cached`` (None) if reads take long or the system cannot read only from memory.
    There is no ``mapped`` if there is no ``cached``, or if the system gives no lease.
    """

    def __init__(
        self,
        file: EmbeddingFile,
        cached: EmbeddingFile | None,
        watched: Watched,
        indexes: IndexFolder,
        mapped: LeasedMap | None = None,
    ) -> None:
        self.file = file
        self.cached = cached
        self.mapped = mapped
        self._watched = watched
        self.signature = watched.signature
        self.completion = Completion(file.vocab)
        self.approximate = ApproximateIndexes(indexes, watched.signature)

    def check_unchanged(self) -> None:
        """Refuse to answer from a file that was written to meanwhile."""
        if not self._watched.is_unchanged():
            raise unavailable("the file changed while it was being read")


class Model:
    """A served file. Only one event loop asks for its versions."""

    def __init__(
        self,
        source: ModelSource,
        backend: Backend,
        folder: str | os.PathLike[str] | None = None,
        leases: Leases | None = None,
    ) -> None:
        self.name = source.name
        self._leases = Leases() if leases is None else leases
        self._path = source.path
        self._vocab = source.vocab
        self._paths = [path for path in (source.path, source.vocab) if path is not None]
        self._backend = backend
        self._version: Version | None = None
        self._opening: Future[Version] | None = None
        self._failed: tuple[Signature, float] | None = None
        self._indexes = IndexFolder(folder, source.name)

    def open(self, index: IndexChoice = "auto", backend: Backend | None = None) -> EmbeddingFile:
        """Open the file."""
        backend = backend or self._backend
        return embmap.open(self._path, backend=backend, index=index, vocab=self._vocab)

    async def current(self) -> Version:
        """Return the file as it is on disk now; open it if it is not open.

        A request that began with an earlier version keeps it: replaced files stay readable.
        """
        until = time.monotonic() + _PATIENCE
        version: Version | None = None
        for _ in range(_ATTEMPTS):
            signature = self._signature()
            version = self._version
            if version is not None and version.signature == signature:
                return version
            # The file is opened in a thread of its own: the pool's threads serve other files.
            opening = asyncio.wrap_future(self._opened(signature))
            done, _ = await asyncio.wait((opening,), timeout=max(until - time.monotonic(), 0))
            if not done:
                raise unavailable("the words of the file are being indexed; try again")
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
        return version  # consistent, but not the newest: it is replaced faster than it is opened

    def _opened(self, signature: Signature) -> Future[Version]:
        """Return the version that is being opened; at most one is at a time."""
        opening = self._opening
        if opening is not None and not opening.done():
            return opening
        if opening is not None and self._failed is not None:
            found, when = self._failed
            if found == signature and time.monotonic() - when < _FAILED_FOR:
                return opening
        self._failed = None
        opening = self._opening = Future()
        opening.set_running_or_notify_cancel()  # a request that waits for it cannot cancel it
        opening.add_done_callback(partial(self._note, signature))
        try:
            threading.Thread(target=self._open_into, args=(opening,), daemon=True).start()
        except RuntimeError:
            opening.set_exception(unavailable("no thread is left to open the file"))
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
                    # With "auto", the first look-up may index all words: too long for the loop.
                    quick = index != "auto" or not file.vocab
                    cached = self._cached(watched, index) if quick else None
                    mapped = None if cached is None else self._mapped(watched, index)
                version = Version(file, cached, watched, self._indexes, mapped)
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
        """Return an index that only the server writes to, or "auto" if there is no such index.

        It may be removed when `until_open` closes.
        """
        opened = partial(self._open_as, watched)
        label = label_of(watched.signature)
        try:
            return until_open.enter_context(self._indexes.of_words(label, opened)) or "auto"
        except OSError as error:
            if not all(Path(path).exists() for path in self._paths):
                raise
            warn_once(f"{self.name}: each worker has an index of its own: {error.strerror}")
            return "auto"

    def _cached(self, watched: Watched, index: IndexChoice) -> EmbeddingFile | None:
        """Open the file to read only what is in memory; return None if a row takes long."""
        try:
            file = self._open_as(watched, index, "cached")
        except (UnsupportedError, BlockingIOError):
            return None
        return file if file.vectors is not None and file.vectors.random_access else None

    def _mapped(self, watched: Watched, index: IndexChoice) -> LeasedMap | None:
        """Map the file, which is read now and later only while there is a lease."""
        lease = self._leases.of(watched)
        if lease is None or not lease.begin():
            return None
        try:
            return LeasedMap(self._open_as(watched, index, "mmap"), lease)
        finally:
            lease.end()

    def _signature(self) -> Signature:
        try:
            found = [os.stat(path) for path in self._paths]  # noqa: PTH116 (counts microseconds)
        except OSError:
            raise unavailable("the file is not there") from None
        return signature_of(found)

    def facts(self) -> ModelFacts:
        """Return the file's entry in the answer of ``GET /v1/models``."""
        try:
            with self.open("memory") as file:
                return self._facts_of(file)
        except (EmbmapError, OSError, ValueError):
            return {"name": self.name, "available": False}

    def _facts_of(self, file: EmbeddingFile) -> ModelFacts:
        facts: ModelFacts = {
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
        if file.timestep_labels:
            facts["labels"] = list(file.timestep_labels)
        return facts


class Models:
    """The served files by name."""

    def __init__(self, settings: Settings) -> None:
        self.leases = Leases()
        self._models = {}
        for number, each in enumerate(settings.models):
            folder = None
            if settings.folder is not None:
                folder = Path(settings.folder) / f"index-{number}"
            self._models[each.name] = Model(each, settings.backend, folder, self.leases)

    def __getitem__(self, name: str) -> Model:
        """Return the file of a name, or refuse."""
        try:
            return self._models[name]
        except KeyError:
            raise Problem(404, "unknown_model", "no served file has this name") from None

    def facts(self) -> list[ModelFacts]:
        """Return the entry of each file in the answer of ``GET /v1/models``."""
        return [model.facts() for model in self._models.values()]


class _ReplacedError(Exception):
    """The path led to another file than the watched one: it was replaced in between."""
