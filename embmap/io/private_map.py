"""Copy-on-write memory of a mapped file: it may be written to, while the file stays as it is.

Consumers of DLPack may ignore that an array is read-only, and a write to a read-only map kills the
process. What is handed to them is therefore a map of its own, whose changed pages are private.
"""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.io.mapping import ByteSource

__all__ = ["map_private"]

# Without it, the system refuses a map larger than its memory. Python 3.11 lacks the constant.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def map_private(
    file: ByteSource, offset: int = 0, nbytes: int | None = None
) -> npt.NDArray[np.uint8] | None:
    """Return a range of a mapped file, by default all of it, as a writable array of bytes.

    Each call makes a new map. Files that are not mapped give None. FormatError is raised if another
    file has the path by now, and TruncatedError if the file shrank.
    """
    if file.backend != "mmap" or file.path is None:
        return None
    size = file.nbytes - offset if nbytes is None else nbytes
    file.check_range(offset, size)
    file.check_whole()
    if not size:  # mmap would map the whole file
        return np.empty(0, np.uint8)
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + size - start
    try:
        descriptor = os.open(file.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise _replaced(file) from None
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != file.identity:
            raise _replaced(file)
        data = _map(descriptor, start, length)
    finally:
        os.close(descriptor)
    return np.ndarray(size, np.uint8, buffer=data, offset=offset - start)


def _map(descriptor: int, start: int, length: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=start)
    flags, prot = mmap.MAP_PRIVATE | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    if sys.version_info >= (3, 13):  # a map need not keep a descriptor open
        return mmap.mmap(descriptor, length, flags, prot, offset=start, trackfd=False)
    return mmap.mmap(descriptor, length, flags, prot, offset=start)


def _replaced(file: ByteSource) -> FormatError:
    return FormatError(
        "the file was replaced or removed while it was open; open it again, or ask for a copy",
        path=file.path,
    )
