"""Files that are either the old one or the whole new one, whatever happens while they are written.

Every writer in embmap writes to a temporary file beside the target, flushes it to the disk and
renames it over the target; an error or a crash leaves the old file untouched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["refuse_overwriting", "replacing", "spool_beside"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    Parameters
    ----------
    path : path-like
        The file to create or replace.

    Yields
    ------
    binary file
        Open for reading and writing, seekable.

    Raises
    ------
    OSError
        When the folder does not exist or cannot be written.
    """
    target = Path(os.fsdecode(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file to write", str(target))
    # A link is followed, so that the file it names is replaced and not the link.
    target = target.resolve()
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is not a regular file; name another to write", str(target))
    temporary = target.parent / f".embmap-{secrets.token_hex(8)}.tmp"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(temporary, flags, 0o666)  # the umask applies, as to any new file
    except OSError as error:  # about the file that was asked for, not about ours beside it
        raise type(error)(error.errno, error.strerror, str(target)) from None
    try:
        with open(descriptor, "w+b") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        if target.exists():
            with contextlib.suppress(OSError):
                temporary.chmod(target.stat().st_mode & 0o777)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def refuse_overwriting(written: Sequence[Path], read: Sequence[Path]) -> None:
    """Raise ValueError when a file that is read would be written.

    Parameters
    ----------
    written, read : sequence of pathlib.Path
        The files.

    Raises
    ------
    ValueError
        When they share one, or the first two to be written are the same.
    """
    for target in written:
        for source in read:
            if target.exists() and source.exists() and target.samefile(source):
                raise ValueError(f"{target} is read; name another file to write")
    if len(written) > 1 and written[0] == written[1]:
        raise ValueError(f"{written[0]} would be written twice; name another file")


def spool_beside(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a nameless temporary file in the folder of a file, where there is room for it.

    Parameters
    ----------
    path : path-like
        The file that is being written.

    Returns
    -------
    binary file
        Open for reading and writing; gone once it is closed.

    Raises
    ------
    OSError
        When the folder does not exist or cannot be written.
    """
    target = Path(os.fsdecode(path)).resolve()
    try:
        return cast(BinaryIO, tempfile.TemporaryFile(dir=target.parent))
    except OSError as error:  # about the file that was asked for, not about ours beside it
        raise type(error)(error.errno, error.strerror, str(target)) from None


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
