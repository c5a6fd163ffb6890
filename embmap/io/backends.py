"""Opening a file with one of the back ends that read it."""

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

_CLASSES: dict[Backend, Callable[[Path, Access], ByteSource]] = {
    "mmap": MemoryMap,
    "read": PositionalReads,
    "cached": CachedReads,
}
ACCESSES = get_args(Access)


def open_mapped(
    path: str | os.PathLike[str], *, backend: Backend = "mmap", access: Access = "auto"
) -> ByteSource:
    """Open a regular file as a ByteSource, which will be read as `access` says."""
    if backend not in _CLASSES:
        raise ValueError(f"backend must be one of {', '.join(_CLASSES)}, not {backend!r}")
    if access not in ACCESSES:
        raise ValueError(f"access must be one of {', '.join(ACCESSES)}, not {access!r}")
    mode = os.stat(path).st_mode  # noqa: PTH116 (an error shows the path as it was given)
    # A relative path must lead to the same file when the process has changed its folder.
    location = Path(os.fsdecode(path)).absolute()
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not an embedding file", str(location))
    if not stat.S_ISREG(mode):
        raise UnsupportedError("not a regular file, so that it cannot be mapped", path=path)
    return _CLASSES[backend](location, access)
