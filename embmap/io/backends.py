"""The ways in which a file can be read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from embmap.errors import UnsupportedError
from embmap.io.cached_reads import CachedReads
from embmap.io.mapping import Access, Backend, ByteSource, MemoryMap
from embmap.io.positional_reads import PositionalReads

__all__ = ["open_mapped"]

_CLASSES: dict[Backend, Callable[[Path], ByteSource]] = {
    "mmap": MemoryMap,
    "read": PositionalReads,
    "cached": CachedReads,
}
ACCESSES = get_args(Access)


def open_mapped(
    path: str | os.PathLike[str], *, backend: Backend = "mmap", access: Access = "normal"
) -> ByteSource:
    """Open a file for views or positional reads."""
    if backend not in _CLASSES:
        raise ValueError(f"backend must be one of {', '.join(_CLASSES)}, not {backend!r}")
    if access not in ACCESSES:
        raise ValueError(f"access must be one of {', '.join(ACCESSES)}, not {access!r}")
    mode = os.stat(path).st_mode  # noqa: PTH116 (an error shows the path as it was given)
    # Relative paths mean what they mean now, wherever the process goes later.
    location = Path(os.fsdecode(path)).absolute()
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not an embedding file", str(location))
    if not stat.S_ISREG(mode):
        raise UnsupportedError("not a regular file: only files on disk can be mapped", path=path)
    file = _CLASSES[backend](location)
    if access != "normal":
        file.advise(access)
    return file
