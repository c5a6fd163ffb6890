"""Indexes that all workers of a server map: over words, and for approximate searches.

They lie in the server's own folder, where nobody else writes: an index beside the data might be
truncated, which kills a process that has it mapped. Valid ones, FILE.embx and FILE.usearch, are
copied there. If there is no valid FILE.embx, one worker builds the index that the others wait for.
The indexes end with the server, so that nothing waits until they are on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, cast

from embmap.embedding_file import EmbeddingFile
from embmap.errors import StaleIndexError
from embmap.forking import process_lock
from embmap.io.atomic_write import Together
from embmap.io.mapping import Backend
from embmap.search.approximate import ApproximateIndex, ApproximateSource
from embmap.serve.problems import Problem
from embmap.serve.protocol import warn_once
from embmap.serve.watched import Signature, label_of, signature_of
from embmap.words.index_file import SUFFIX
from embmap.words.index_source import IndexChoice
from embmap.words.vocabulary import Vocabulary

__all__ = ["ApproximateIndexes", "IndexFolder"]

_REFUSED_FOR = 5.0  # seconds before an index that was refused is tried again
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Opener(Protocol):
    """Opens one content of a file, with what :func:`embmap.open` takes."""

    def __call__(self, index: IndexChoice, backend: Backend | None = None) -> EmbeddingFile:
        """Return the open file."""


class IndexFolder:
    """Where the indexes of one served file lie.

    Without a shared folder, each index has a folder of its own, which is removed as soon as the
    index is open. The map stays valid, and a process that is killed leaves nothing behind.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, name: str) -> None:
        self._folder = None if folder is None else Path(folder)
        self._name = name

    @contextlib.contextmanager
    def shared(self, label: str, suffix: str, make: Callable[[Path], None]) -> Iterator[Path]:
        """Yield the path of an index, which is made unless another worker has made it.

        Other workers wait until the block ends. The index of an earlier label is removed; it stays
        valid where it is mapped.
        """
        with contextlib.ExitStack() as stack:
            folder = self._folder or Path(
                stack.enter_context(
                    TemporaryDirectory(prefix="embmap-serve-", ignore_cleanup_errors=True)
                )
            )
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder / f"{suffix[1:]}.lock"))
            path = folder / f"{label}{suffix}"
            if not path.exists():
                earlier = _labeled(folder, suffix)
                make(path)
                _remove(earlier)
            yield path

    def forget(self, suffix: str) -> None:
        """Remove an index; processes that have it mapped keep it."""
        if self._folder is not None and self._folder.exists():
            with _locked(self._folder / f"{suffix[1:]}.lock"):
                _remove(_labeled(self._folder, suffix))

    @contextlib.contextmanager
    def of_words(self, label: str, opened: Opener) -> Iterator[Path | None]:
        """Yield the path of an index over the words of the file until it is open."""
        with opened("auto") as file:
            has_words = bool(file.vocab)
            beside = file.vocab.finder.source.existing_path() if file.vocab else None
        if not has_words:
            yield None
            return
        make = partial(self._make_of_words, opened, beside)
        with self.shared(label, SUFFIX, make) as path:
            yield path

    def _make_of_words(self, opened: Opener, beside: str | None, path: Path) -> None:
        if beside is None or not self._copied(path, opened):
            with opened("memory") as file, Together(durable=False) as files:
                file.build_index(files.file(path))

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
        # Every version of the file may have one. A pipe that nobody reads fills, and a thread that
        # writes to it then waits for ever.
        warn_once(f"{self._name}: its index is not valid; the server builds another")
        return False


@dataclass(frozen=True)
class _Known:
    """What came of an index file: a mapped copy, or a refusal that lasts some time."""

    signature: Signature
    found: ApproximateIndex | StaleIndexError | Problem
    when: float


class ApproximateIndexes:
    """The approximate indexes of a file as it was when it was opened, one for each time step."""

    def __init__(self, folder: IndexFolder, signature: Signature) -> None:
        self._folder = folder
        self._data = signature
        self._known: dict[Path, _Known] = {}
        self._lock = process_lock()  # one thread copies while others wait

    def give_to(self, file: EmbeddingFile) -> None:
        """Let searches of the file, or of one of its time steps, use copies from now on."""
        file.approximate.ask(partial(self._current, file.path.name))

    def _current(self, name: str, source: ApproximateSource) -> ApproximateIndex:
        """Return the index as it is on disk now."""
        suffix = source.path.name.removeprefix(name)
        with self._lock:
            try:
                signature = signature_of([source.path.stat()])
            except OSError:
                if self._known.pop(source.path, None) is not None:
                    self._folder.forget(suffix)
                raise StaleIndexError("there is no approximate index") from None
            known = self._known.get(source.path)
            if known is None or not _lasts(known, signature):
                found = self._opened(source, signature, suffix)
                known = _Known(signature, found, time.monotonic())
                self._known[source.path] = known
        if isinstance(known.found, ApproximateIndex):
            return known.found
        raise known.found.with_traceback(None)

    def _opened(
        self, source: ApproximateSource, signature: Signature, suffix: str
    ) -> ApproximateIndex | StaleIndexError | Problem:
        label = label_of((*self._data, *signature))
        try:
            with self._folder.shared(label, suffix, partial(_copy, source)) as path:
                return source.opened(path)
        except StaleIndexError as error:
            self._folder.forget(suffix)
            return error
        except Problem as problem:
            return problem


def _lasts(known: _Known, signature: Signature) -> bool:
    if known.signature != signature:
        return False
    is_open = isinstance(known.found, ApproximateIndex)
    return is_open or time.monotonic() - known.when < _REFUSED_FOR


def _copy(source: ApproximateSource, path: Path) -> None:
    """Copy an approximate index, or refuse if it has no room."""
    refusal = Problem(
        503,
        "no_room",
        "the server's temporary folder has no room for a copy of the approximate index",
        {"Retry-After": f"{_REFUSED_FOR:.0f}"},
    )

    def check_size(nbytes: int) -> None:
        if nbytes > shutil.disk_usage(path.parent).free:
            raise refusal

    try:
        with Together(durable=False) as files:
            source.copy_to(files.file(path), check_size)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise refusal from None
        raise


def _labeled(folder: Path, suffix: str) -> list[Path]:
    """Return the indexes of one kind; their labels have 16 letters."""
    return list(folder.glob(f"{'?' * 16}{suffix}"))


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


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
