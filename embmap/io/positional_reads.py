"""The bytes of a file by positional reads, which survive a file that shrinks."""

from __future__ import annotations

import math
import os
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import TruncatedError
from embmap.io.mapping import Access, ByteSource
from embmap.io.residency import is_known, sample

__all__ = ["PositionalFetch", "PositionalReads", "pread"]


class PositionalReads(ByteSource):
    """A file read by position, with no shared cursor: threads may share it."""

    backend = "read"

    def __init__(self, path: Path, access: Access = "auto") -> None:
        self.path = path
        self._reader = self._open(path)
        self._descriptor = self._reader.descriptor
        self._adapts = access == "auto" and is_known()
        status = os.fstat(self._reader.descriptor)
        self.nbytes = status.st_size
        self.mtime_ns = status.st_mtime_ns
        self.changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        self.identity = status.st_dev, status.st_ino
        self.fetch = self._reader
        if access == "sequential" and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def _open(self, path: Path) -> PositionalFetch:
        return PositionalFetch(path)

    @property
    def zero_copy(self) -> bool:
        return False

    def _array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        nbytes = math.prod(shape) * dtype.itemsize
        return np.frombuffer(self.fetch[offset : offset + nbytes], dtype).reshape(shape)

    def gather(
        self, offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        if self.lacks(sample(offsets)):
            self.prefetch(offsets, nbytes)
        descriptor, sizes = self._reader.descriptor, nbytes.tolist()
        # One call for each range and nothing else: the total shows whether a read was short.
        data = b"".join(map(pread, repeat(descriptor), sizes, offsets.tolist()))
        if len(data) == sum(sizes):
            return np.frombuffer(data, np.uint8)
        return super().gather(offsets, nbytes)

    def current_nbytes(self) -> int:
        return os.fstat(self._reader.descriptor).st_size


class PositionalFetch:
    """``fetch[start:stop]`` by pread(2); owns the descriptor and closes it when it is deleted."""

    __slots__ = ("descriptor", "nbytes", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self.descriptor = os.open(path, flags)
        self.nbytes = os.fstat(self.descriptor).st_size

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def __getitem__(self, item: slice, /) -> bytes:
        start, stop = item.start, min(item.stop, self.nbytes)  # like a slice of a map
        data = pread(self.descriptor, stop - start, start) if stop > start else b""
        if len(data) >= stop - start:
            return data
        parts = [data]
        position = start + len(data)
        while position < stop:  # one call reads at most 2 GiB on Linux
            more = pread(self.descriptor, stop - position, position)
            if not more:
                raise TruncatedError(
                    f"{stop - position} bytes are missing: the file shrank while it was open; "
                    "open it again",
                    path=self.path,
                    offset=position,
                )
            parts.append(more)
            position += len(more)
        return b"".join(parts)


if hasattr(os, "pread"):
    pread = os.pread
else:  # Windows: a descriptor has one position, which one thread at a time may move
    import threading

    _position_lock = threading.Lock()

    def pread(number: int, nbytes: int, offset: int, /) -> bytes:
        """Read from a position, like os.pread."""
        with _position_lock:
            os.lseek(number, offset, os.SEEK_SET)
            return os.read(number, nbytes)
