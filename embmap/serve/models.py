"""The files a server serves: opened when first asked for, and again when they change on disk."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import embmap
from embmap.embedding_file import EmbeddingFile
from embmap.errors import EmbmapError
from embmap.mapping import Backend
from embmap.serve.completion import Completion
from embmap.serve.problems import Problem, unavailable
from embmap.serve.settings import ModelSource, Settings

__all__ = ["Model", "Models", "Version"]

Signature = tuple[tuple[int, int, int, int], ...]
_FAILED_FOR = 0.5  # seconds until a file that could not be opened is tried again


class Version:
    """A file as it was when it was opened.

    Parameters
    ----------
    file : EmbeddingFile
        The open file.
    signature : tuple
        Inode, size and time of it and of its words, as they were.

    Attributes
    ----------
    file : EmbeddingFile
        The open file.
    completion : Completion
        Its words by their beginnings.
    """

    def __init__(self, file: EmbeddingFile, signature: Signature) -> None:
        self.file = file
        self.signature = signature
        self.completion = Completion(file.vocab)


class Model:
    """A file under a name. Threads may share it.

    Parameters
    ----------
    source : ModelSource
        Which file.
    backend : {"mmap", "read"}
        How it is read.
    """

    def __init__(self, source: ModelSource, backend: Backend) -> None:
        self.name = source.name
        self._path = source.path
        self._vocab = source.vocab
        self._paths = [path for path in (source.path, source.vocab) if path is not None]
        self._backend = backend
        self._lock = threading.Lock()
        self._version: Version | None = None
        self._failed: tuple[Signature, float, str] | None = None

    def open(self) -> EmbeddingFile:
        """Open the file.

        Returns
        -------
        EmbeddingFile
            Nothing of it has been read.

        Raises
        ------
        EmbmapError, OSError, ValueError
            When it cannot be.
        """
        return embmap.open(self._path, backend=self._backend, vocab=self._vocab)

    def current(self) -> Version:
        """Return the file as it is on disk now.

        A request that began with an earlier version keeps it: replaced files live on until then.

        Returns
        -------
        Version
            The open file.

        Raises
        ------
        Problem
            503 when it cannot be opened.
        """
        signature = self._signature()
        version = self._version
        if version is not None and version.signature == signature:
            return version
        with self._lock:
            version = self._version
            if version is not None and version.signature == signature:
                return version
            self._version = None
            failed = self._failed
            if failed and failed[0] == signature and time.monotonic() - failed[1] < _FAILED_FOR:
                raise unavailable(failed[2])
            try:
                version = Version(self.open(), signature)
            except (EmbmapError, OSError, ValueError) as error:
                reason = getattr(error, "message", None) or type(error).__name__
                told = f"the file cannot be opened: {reason}"
                self._failed = (signature, time.monotonic(), told)
                raise unavailable(told) from None
            if self._signature() != signature:
                raise unavailable("the file is being written")
            self._version = version
            return version

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
        self._models = {each.name: Model(each, settings.backend) for each in settings.models}

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
