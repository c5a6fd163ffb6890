"""The bytes of one file, as typed read-only arrays over its parts.

Offsets and sizes are checked as Python ints before numpy sees them, so that no product can wrap
and no view can leave the file. This module defines the interface, :class:`ByteSource`, and the back
end that gives zero-copy views of one memory map; :mod:`embmap.io.positional_reads` and
:mod:`embmap.io.cached_reads` define the back ends that read. A map
or a descriptor is closed when the last object that uses it is gone, so that every view stays valid.
"""

from __future__ import annotations

import math
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
import numpy.typing as npt

from embmap.errors import TruncatedError

__all__ = [
    "Access",
    "Backend",
    "ByteSource",
    "BytesFile",
    "Fetch",
    "MemoryMap",
    "expand_ranges",
]

Backend = Literal["mmap", "read", "cached"]
Access = Literal["normal", "random", "sequential", "willneed"]


class Fetch(Protocol):
    """``fetch[start:stop]`` returns bytes: the cheapest way to a few bytes of a file."""

    def __getitem__(self, item: slice, /) -> bytes:
        """Return the bytes of a range."""
        ...


class ByteSource(ABC):
    """The bytes of one file, bounds-checked.

    Attributes
    ----------
    path : pathlib.Path or None
        The path of the file; None for bytes in memory.
    nbytes : int
        Size of the file when it was opened, in bytes.
    mtime_ns : int
        Modification time of the file when it was opened, in nanoseconds since the epoch.
    changed_ns : int
        The later of mtime and ctime when the file was opened. mtime can be reset; ctime cannot.
    identity : tuple of int or None
        Device and inode of the opened file; another file may have this path by now. None for bytes
        in memory.
    backend : str
        "mmap", "read", "cached" or "bytes".
    fetch : Fetch
        ``fetch[start:stop]`` returns bytes without checks, where nanoseconds count.
    ends : bool
        Whether `nbytes` is the size of the file. It is only a lower bound for a stream whose end
        has not been reached.
    """

    ends = True

    path: Path | None
    nbytes: int
    mtime_ns: int
    changed_ns: int
    identity: tuple[int, int] | None
    backend: str
    fetch: Fetch

    def __reduce__(self) -> tuple[Any, ...]:
        """Raise TypeError: a copy would share a descriptor or contain the whole file."""
        raise TypeError(
            "views of a file cannot be pickled; pickle the file that embmap.open returned"
        )

    @property
    @abstractmethod
    def zero_copy(self) -> bool:
        """Whether :meth:`array` returns views of the file, not copies."""

    @abstractmethod
    def _array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return a read-only array over a range that lies inside the file."""

    @abstractmethod
    def current_nbytes(self) -> int:
        """Return the size of the file now."""

    @abstractmethod
    def advise(self, access: Access, offset: int = 0, nbytes: int | None = None) -> None:
        """Advise the operating system how a range will be read; this may have no effect."""

    def check_range(self, offset: int, nbytes: int) -> None:
        """Raise TruncatedError unless a range lies inside the file."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise TruncatedError(
                f"{nbytes} bytes are needed here, but the file has {self.nbytes}",
                path=self.path,
                offset=offset,
            )

    def check_whole(self) -> None:
        """Raise TruncatedError if the file shrank since it was opened.

        Reading a page of a map beyond the end of its file kills the process. Code that touches many
        pages therefore calls this first.
        """
        now = self.current_nbytes()
        if now < self.nbytes:
            raise TruncatedError(
                "the file shrank while it was open; open it again",
                path=self.path,
                found=f"{now} bytes",
                expected=f"{self.nbytes} bytes",
            )

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a copy of a range."""
        self.check_range(offset, nbytes)
        return self.fetch[offset : offset + nbytes]

    def read_at_most(self, offset: int, nbytes: int) -> bytes:
        """Return a copy of a range, which the end of the file may cut short."""
        return self.read(offset, max(min(nbytes, self.nbytes - offset), 0))

    def gather(
        self, offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of many small ranges, end to end: (nbytes.sum(),) uint8."""
        ends = (offsets + nbytes).tolist()
        parts = map(self.fetch.__getitem__, map(slice, offsets.tolist(), ends))
        return np.frombuffer(b"".join(parts), np.uint8)

    def array(
        self, offset: int, dtype: npt.DTypeLike, shape: int | Sequence[int]
    ) -> npt.NDArray[Any]:
        """Return a range as a read-only array."""
        dtype = np.dtype(dtype)
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        self.check_range(offset, math.prod(dims) * dtype.itemsize)
        return self._array(offset, dtype, dims)


class MemoryMap(ByteSource):
    """A file mapped read-only by one ``numpy.memmap``."""

    backend = "mmap"

    def __init__(self, path: Path, spool: BinaryIO | None = None) -> None:
        """Map a file, or what was copied into a temporary file; errors name `path`."""
        self.path = path
        with _open(path) if spool is None else nullcontext(spool) as handle:
            status = os.fstat(handle.fileno())
            self.nbytes = status.st_size
            self.mtime_ns = status.st_mtime_ns
            self.changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
            self.identity = status.st_dev, status.st_ino
            if self.nbytes:
                mapped = np.memmap(handle, dtype=np.uint8, mode="r", shape=(self.nbytes,))
                self._map: mmap.mmap | None = _mmap_of(mapped)
                # A row of an np.memmap costs ten times as much as a row of a plain array.
                self._bytes = mapped.view(np.ndarray)
            else:  # mmap refuses to map an empty file
                self._map = None
                self._bytes = np.empty(0, np.uint8)
                self._bytes.flags.writeable = False
        self.fetch = b"" if self._map is None else self._map

    @property
    def zero_copy(self) -> bool:
        return True

    def _array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return np.ndarray(shape, dtype, buffer=self._bytes, offset=offset)

    def gather(
        self, offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        return self._bytes[expand_ranges(offsets, nbytes)]

    def current_nbytes(self) -> int:
        return 0 if self._map is None else self._map.size()

    def advise(self, access: Access, offset: int = 0, nbytes: int | None = None) -> None:
        advice = getattr(mmap, f"MADV_{access.upper()}", None)
        if self._map is None or advice is None:  # Windows has no madvise
            return
        start = offset - offset % mmap.PAGESIZE
        end = self.nbytes if nbytes is None else min(offset + nbytes, self.nbytes)
        if end > start:
            self._map.madvise(advice, start, end - start)


class BytesFile(ByteSource):
    """Bytes in memory as a source: words from a caller, or parts that are not yet in a file.

    If they were made from a file, they have its path, identity and times.
    """

    backend = "bytes"

    def __init__(self, data: bytes, made_from: ByteSource | None = None) -> None:
        self.path = None if made_from is None else made_from.path
        self.nbytes = len(data)
        self.mtime_ns = 0 if made_from is None else made_from.mtime_ns
        self.changed_ns = 0 if made_from is None else made_from.changed_ns
        self.identity = None if made_from is None else made_from.identity
        self.fetch = data
        self._data = data

    @property
    def zero_copy(self) -> bool:
        return True

    def _array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return np.ndarray(shape, dtype, buffer=self._data, offset=offset)

    def current_nbytes(self) -> int:
        return self.nbytes

    def advise(self, access: Access, offset: int = 0, nbytes: int | None = None) -> None:
        pass


def expand_ranges(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the integers of many ranges, end to end: (lengths.sum(),) int64."""
    firsts = lengths.cumsum() - lengths
    return np.repeat(starts - firsts, lengths) + np.arange(int(lengths.sum()))


def _open(path: Path) -> BinaryIO:
    # By its descriptor: np.memmap takes microseconds to keep the path of a file.
    return open(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)), "rb", buffering=0)


def _mmap_of(mapped: npt.NDArray[np.uint8]) -> mmap.mmap:
    base = mapped.base
    if not isinstance(base, mmap.mmap):
        raise TypeError(f"numpy.memmap must be based on mmap.mmap, not {type(base).__name__}")
    return base
