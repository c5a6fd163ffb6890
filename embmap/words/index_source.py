"""Where the word indexes of an open file come from: FILE.embx, another file, or nowhere."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import Literal, cast

from embmap.errors import StaleIndexError, StaleIndexWarning
from embmap.forking import process_lock
from embmap.io.mapping import Backend, ByteSource
from embmap.words.index_file import SUFFIX, IndexFile
from embmap.words.records import Records
from embmap.words.word_index import WordIndex

__all__ = ["IndexChoice", "IndexSource", "default_index_path"]

IndexChoice = Literal["auto", "memory", "require"] | str | os.PathLike[str]


class IndexSource:
    """Where the indexes over a file's words come from."""

    def __init__(self, file: ByteSource, choice: IndexChoice) -> None:
        self._file = file
        self._lock = process_lock()
        self._index_file: IndexFile | None = None
        self._automatic = choice == "auto"
        self._pending = self._automatic
        self.required = choice not in ("auto", "memory")
        self.path = default_index_path(file) if choice in ("auto", "require") else None
        if self.required:
            if choice != "require":
                self.path = Path(os.fsdecode(choice)).absolute()
            if self.path is None:
                raise StaleIndexError("words in memory have no index file")
            self._index_file = self._open(mapped=choice != "require")

    def _open(self, *, mapped: bool = False) -> IndexFile:
        """Open the index as the data is read, or mapped: one that the caller named is his."""
        backend = self._file.backend if self._file.backend in ("read", "cached") else "mmap"
        path = cast(Path, self.path)
        return IndexFile(path, self._file, "mmap" if mapped else cast(Backend, backend))

    def existing_path(self) -> str | None:
        """Return the index file there is, whether or not it has been looked into."""
        with contextlib.suppress(OSError):  # a name with .embx may be too long for a file
            if self.path is not None and self.path.exists():
                return str(self.path)
        return None

    def table(self, number: int, records: Records) -> WordIndex | None:
        """Return a table of the index file."""
        with self._lock:
            if self._pending:
                self._pending = False
                if self.existing_path() is not None:
                    try:
                        self._index_file = self._open()
                    except StaleIndexError as error:
                        self.warn(error)
        if self._index_file is None:
            return None
        try:
            return self._index_file.table(number, records)
        except StaleIndexError as error:
            if self.required:
                raise
            self.warn(error)
            return None

    def warn(self, error: StaleIndexError) -> None:
        """Go on without the index file, with a warning."""
        self._index_file = None
        warnings.warn(f"index ignored: {error}", StaleIndexWarning, stacklevel=2)

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the index file that is required, as long as its header states."""
        with open(path, "wb") as out:
            cast(IndexFile, self._index_file).copy_to(out)

    def check_all(self) -> None:
        """Check the whole index file against its checksums and the words."""
        index_file = self._index_file
        if index_file is None and self._automatic and self.existing_path() is not None:
            index_file = self._open()
        if index_file is not None:
            index_file.check_all()


def default_index_path(file: ByteSource) -> Path | None:
    """Return where the index of a file is looked for: FILE.embx beside FILE."""
    return None if file.path is None else file.path.with_name(file.path.name + SUFFIX)
