"""Files that are replaced as a whole, or not at all.

Every writer in embmap writes to a temporary file beside the target, flushes it to the disk and
renames it over the target. An error or a crash leaves the old file as it was. :class:`Together`
replaces several files: all of them are complete before the first is renamed.

On Linux a temporary file has no name until it is complete, so that a process that is killed leaves
none behind. Elsewhere, and on file systems that cannot do so, it is called ``.embmap-*.tmp``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

__all__ = ["Part", "Together", "refuse_overwriting", "replacing", "spool_beside"]


class Part(os.PathLike[str]):
    """A file that :class:`Together` creates or replaces; writers accept it instead of a path."""

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        self._path = os.fsdecode(path)
        self._target = _target(self._path)
        self._durable = durable
        self._named: _Temporary | None = None  # where the temporary file has a name
        self._nameless: int | None = None  # the descriptor of one that has none
        self._complete = False

    def __fspath__(self) -> str:
        """Return the path of the file that is created or replaced."""
        return self._path

    @property
    def written(self) -> Path:
        """A path to what has been written, until it takes its place."""
        if self._nameless is not None:
            return _descriptor_path(self._nameless)
        return cast(_Temporary, self._named).path

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the temporary file; it is complete when the block ends without an error."""
        mode = None
        with contextlib.suppress(OSError):
            mode = self._target.stat().st_mode & 0o777
        # What replaces a file that others may not read is never readable by them. The umask
        # applies to a new file.
        permissions = 0o666 if mode is None else 0o600
        try:
            descriptor = self._create(permissions)
        except OSError as error:  # about the file that was asked for, not about ours beside it
            raise type(error)(error.errno, error.strerror, str(self._target)) from None
        # Other libraries may open the file by this name, which is ASCII on Linux.
        name = _descriptor_path(descriptor)
        if not name.exists():
            name = self.written
        with open(name, "w+b", opener=lambda *_: descriptor) as handle:
            yield handle
            handle.flush()
            if mode is not None:
                with contextlib.suppress(OSError):
                    self.written.chmod(mode)
            if self._durable:
                os.fsync(handle.fileno())
        self._complete = True

    def _create(self, permissions: int) -> int:
        folder = self._target.parent
        if _names_later(folder):
            descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE, permissions)
            self._nameless = os.dup(descriptor)
            return descriptor
        self._named = _Temporary(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(self._named.path, flags, permissions)

    def take_name(self) -> None:
        """Name the temporary file, if it has no name yet and is complete."""
        if self._complete and self._nameless is not None and self._named is None:
            self._named = _Temporary(self._target.parent)
            _link(self._nameless, self._named.path)

    def take_place(self) -> None:
        """Rename the temporary file, which has a name, over the target."""
        if not self._complete:
            return
        cast(_Temporary, self._named).path.replace(self._target)
        self._named = None
        if self._durable:
            _sync_folder(self._target.parent)

    def discard(self) -> None:
        """Remove the temporary file, unless it has taken its place."""
        if self._nameless is not None:
            os.close(self._nameless)
            self._nameless = None
        if self._named is not None:
            self._named.remove()
            self._named = None


class _Temporary:
    """The name of a temporary file, which is removed when this object goes, if not before.

    An interrupt can keep any line from being run, also one that cleans up.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f".embmap-{secrets.token_hex(8)}.tmp"
        self._removal = weakref.finalize(self, _remove_own, self.path, os.getpid())

    def remove(self) -> None:
        """Remove the file, if it still has this name."""
        _remove_own(self.path, os.getpid())
        self._removal.detach()


class Together:
    """Files that are replaced and removed together, if the block ends without an error.

    All temporary files are complete, on the disk, and have names before the first of them is
    renamed. Files take their places, and are removed, in the order in which they were named here.
    Files that nobody needs after a power failure are not `durable`: nothing waits for the disk.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self._durable = durable
        self._steps: list[Part | Path] = []

    def file(self, path: str | os.PathLike[str]) -> Part:
        """Return a file to create or replace; it stays as it is if the part is never opened."""
        part = Part(path, durable=self._durable)
        self._steps.append(part)
        return part

    def remove(self, path: Path) -> None:
        """Name a file to remove if it exists."""
        self._steps.append(path)

    def __enter__(self) -> Together:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Replace and remove the files, unless an error ended the block."""
        try:
            # A new name may need room, which a rename over a file does not.
            for step in self._steps if kind is None else ():
                if isinstance(step, Part):
                    step.take_name()
            for step in self._steps if kind is None else ():
                if isinstance(step, Part):
                    step.take_place()
                else:
                    step.unlink(missing_ok=True)
                    _sync_folder(step.parent)
        finally:
            for step in self._steps:
                if isinstance(step, Part):
                    step.discard()


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` if the block ends without an error."""
    with contextlib.ExitStack() as stack:
        part = path if isinstance(path, Part) else stack.enter_context(Together()).file(path)
        yield stack.enter_context(part.open())


def refuse_overwriting(written: Sequence[Path], read: Sequence[Path]) -> None:
    """Raise ValueError if a file would be both read and written, or written twice."""
    for target in written:
        for source in read:
            if target.exists() and source.exists() and target.samefile(source):
                raise ValueError(f"{target} is read; name another file to write")
    if len(written) > 1 and written[0] == written[1]:
        raise ValueError(f"{written[0]} would be written twice; name another file")


def spool_beside(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a nameless temporary file in the folder of a file, where there is room for it."""
    target = _target(path)
    try:
        return cast(BinaryIO, tempfile.TemporaryFile(dir=target.parent))
    except OSError as error:  # about the file that was asked for, not about ours beside it
        raise type(error)(error.errno, error.strerror, str(target)) from None


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the file to replace: the target of a link, not the link."""
    asked = Path(os.fsdecode(path))
    if asked.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file to write", str(asked))
    target = Path(os.path.realpath(asked))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(asked))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is not a regular file; name another to write", str(target))
    return target


def _remove_own(path: Path, process: int) -> None:
    """Remove a temporary file, unless this process is a forked child of the one that writes it."""
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            path.unlink()


def _descriptor_path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def _names_later(folder: Path) -> bool:
    """Whether a file can be created in a folder without a name and be given one afterwards."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    # Some file systems and sandboxes allow the first and not the second: an empty file tries it.
    named = _Temporary(folder)
    try:
        descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
        try:
            _link(descriptor, named.path)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    finally:
        named.remove()
    return True


def _link(descriptor: int, named: Path) -> None:
    """Give a nameless file a name."""
    # With a src_dir_fd, which is not used, os.link follows the link in /proc.
    os.link(_descriptor_path(descriptor), named, src_dir_fd=descriptor, follow_symlinks=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
