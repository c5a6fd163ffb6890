"""Which index file belongs to the words of an open file: FILE.embx, another file, or none."""

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
    """The index file of one embedding file, opened once for all of its tables.

    `choice` is "auto" for FILE.embx if it matches, "memory" for no file, "require" for FILE.embx or
    an error, or the path of an index file, which is required as well. A finder of words uses the
    same `lock`.
    """

    def __init__(self, data: ByteSource, choice: IndexChoice) -> None:
        self._data = data
        self.lock = process_lock()
        self._index_file: IndexFile | None = None
        self.required = choice not in ("auto", "memory")
        self._looked = self.required  # whether the index file was looked for
        self.path = default_index_path(data) if choice in ("auto", "require") else None
        if self.required:
            if choice != "require":
                self.path = Path(os.fsdecode(choice)).absolute()
            if self.path is None:
                raise StaleIndexError("words in memory have no index file")
            self._index_file = self._open(mapped=choice != "require")

    def _open(self, *, mapped: bool = False) -> IndexFile:
        """Open the index file with the back end of the data, or mapped if the caller named it."""
        backend = self._data.backend if self._data.backend in ("read", "cached") else "mmap"
        path = cast(Path, self.path)
        return IndexFile(path, self._data, "mmap" if mapped else cast(Backend, backend))

    def existing_path(self) -> str | None:
        """Return the path of the index file if it exists, whether or not it matches the words."""
        with contextlib.suppress(OSError):  # a name with .embx may be too long for a file
            if self.path is not None and self.path.exists():
                return str(self.path)
        return None

    def table(self, number: int, records: Records) -> WordIndex | None:
        """Return a table of the index file; None if no index file matches these words."""
        with self.lock:
            if not self._looked:
                self._looked = True
                if self.existing_path() is not None:
                    try:
                        self._index_file = self._open()
                    except StaleIndexError as error:
                        self.drop(error)
                    except BlockingIOError:  # the caller loads it into memory and asks again
                        self._looked = False
                        raise
        index_file = self._index_file
        if index_file is None:
            return None
        try:
            return index_file.table(number, records)
        except StaleIndexError as error:
            if self.required:
                raise
            self.drop(error)
            return None

    def drop(self, error: StaleIndexError) -> None:
        """Go on without the index file, with a warning."""
        self._index_file = None
        warnings.warn(f"index ignored: {error}", StaleIndexWarning, stacklevel=2)

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the required index file, of the length that its header gives."""
        from embmap.io.atomic_write import replacing

        with replacing(path) as out:
            cast(IndexFile, self._index_file).copy_to(out)

    def check_all(self) -> None:
        """Check the whole index file against its checksums and the words."""
        index_file = self._index_file
        if index_file is None and self.existing_path() is not None:
            index_file = self._open()
        if index_file is not None:
            index_file.check_all()


def default_index_path(data: ByteSource) -> Path | None:
    """Return the path of the index that belongs to a file, FILE.embx; None for words in memory."""
    return None if data.path is None else data.path.with_name(data.path.name + SUFFIX)
