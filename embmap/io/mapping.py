"""The bytes of one file, as typed read-only arrays over its parts.

Offsets and sizes are checked as Python ints before numpy sees them, so that no product can wrap
and no view can leave the file. This module defines the interface, :class:`ByteSource`, and the back
end that gives zero-copy views of memory maps; :mod:`embmap.io.positional_reads` and
:mod:`embmap.io.cached_reads` define the back ends that read. A map
or a descriptor is closed when the last object that uses it is gone, so that every view stays valid.
"""

from __future__ import annotations

import math
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
import numpy.typing as npt

from embmap.errors import TruncatedError
from embmap.io.residency import ask_for, is_known, lacks, sample

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
Access = Literal["auto", "normal", "sequential"]

_SMALL = 1 << 16  # bytes of a file that the system may read ahead as a whole
_FEW = 1 << 14  # bytes that are read page by page
_WINDOW = 1 << 20  # bytes that are asked for at once, before the system reads ahead


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
    _descriptor = -1  # of a file; otherwise nothing can be asked for
    _adapts = False  # whether to ask for what is not in memory

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

    def lacks(self, offsets: Iterable[int]) -> bool:
        """Whether one of a few bytes is not in memory, so that a caller asks for all it will read.

        False if the system cannot say, or if the caller of :func:`embmap.open` chose the access.
        """
        return self._adapts and lacks(self._descriptor, offsets)

    def prefetch(self, offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64] | int) -> None:
        """Ask the operating system to read ranges, all at once; this may have no effect."""
        if self._descriptor >= 0:
            ask_for(self._descriptor, offsets, nbytes, self.nbytes)

    def reads_ahead(self, offset: int, nbytes: int) -> bool:
        """Whether :meth:`array` of a range differs from :meth:`scattered`: the system reads ahead.

        A short range that does not follow the last one is asked for here.
        """
        del offset, nbytes
        return False

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
        """Return a range as a read-only array, which will be read from its start to its end."""
        return self._array(offset, *self._checked(offset, dtype, shape))

    def scattered(
        self, offset: int, dtype: npt.DTypeLike, shape: int | Sequence[int]
    ) -> npt.NDArray[Any]:
        """Return a range as a read-only array, of which parts will be read in any order."""
        return self.array(offset, dtype, shape)

    def _checked(
        self, offset: int, dtype: npt.DTypeLike, shape: int | Sequence[int]
    ) -> tuple[np.dtype[Any], tuple[int, ...]]:
        dtype = np.dtype(dtype)
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        self.check_range(offset, math.prod(dims) * dtype.itemsize)
        return dtype, dims


class MemoryMap(ByteSource):
    """A file mapped read-only.

    With ``access="auto"``, a large file is mapped twice. The system reads single pages for the
    first map, which is for parts in any order, and reads ahead for the second one, which is for
    ranges that are read from start to end.
    """

    backend = "mmap"

    def __init__(
        self, path: Path, access: Access = "auto", *, spool: BinaryIO | None = None
    ) -> None:
        """Map a file, or what was copied into a temporary file; errors name `path`."""
        self.path = path
        if spool is None:
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        else:
            self._descriptor = os.dup(spool.fileno())
        status = os.fstat(self._descriptor)
        self.nbytes = status.st_size
        self.mtime_ns = status.st_mtime_ns
        self.changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        self.identity = status.st_dev, status.st_ino
        self._adapts = access == "auto" and self.nbytes > _SMALL and is_known()
        self._ordered: npt.NDArray[np.uint8] | None = None
        self._expected = -1  # where a range begins that follows the last one
        if self.nbytes:
            self._map: mmap.mmap | None = self._map_whole()
            self._bytes = np.frombuffer(self._map, np.uint8)
            self.fetch: Fetch = self._map
            advice = "RANDOM" if self._adapts else access.upper()
            if hasattr(mmap, f"MADV_{advice}"):  # Windows has no madvise
                self._map.madvise(getattr(mmap, f"MADV_{advice}"))
        else:  # mmap refuses to map an empty file
            self._map = None
            self._bytes = np.frombuffer(b"", np.uint8)
            self.fetch = b""

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _map_whole(self) -> mmap.mmap:
        return mmap.mmap(self._descriptor, self.nbytes, access=mmap.ACCESS_READ)

    @property
    def zero_copy(self) -> bool:
        return True

    def _array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        ahead = self.reads_ahead(offset, math.prod(shape) * dtype.itemsize)
        whole = self._map_ordered() if ahead else self._bytes
        return np.ndarray(shape, dtype, buffer=whole, offset=offset)

    def scattered(
        self, offset: int, dtype: npt.DTypeLike, shape: int | Sequence[int]
    ) -> npt.NDArray[Any]:
        dtype, dims = self._checked(offset, dtype, shape)
        return np.ndarray(dims, dtype, buffer=self._bytes, offset=offset)

    def reads_ahead(self, offset: int, nbytes: int) -> bool:
        if not self._adapts:
            return False
        follows = 0 <= offset - self._expected < mmap.PAGESIZE
        self._expected = offset + nbytes
        if not follows and _FEW < nbytes <= _WINDOW and self.lacks((offset,)):
            self.prefetch(np.array([offset]), nbytes)
        return follows or nbytes > _FEW

    def _map_ordered(self) -> npt.NDArray[np.uint8]:
        """Return the map that the system reads ahead."""
        if self._ordered is None:
            try:
                self._ordered = np.frombuffer(self._map_whole(), np.uint8)
            except (OSError, ValueError):  # no address space, or the file shrank
                return self._bytes
        return self._ordered

    def read(self, offset: int, nbytes: int) -> bytes:
        if nbytes <= _FEW:
            return super().read(offset, nbytes)
        return self.array(offset, np.uint8, nbytes).tobytes()

    def gather(
        self, offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        if self.lacks(sample(offsets)):
            self.prefetch(offsets, nbytes)
        return self._bytes[expand_ranges(offsets, nbytes)]

    def current_nbytes(self) -> int:
        return 0 if self._map is None else self._map.size()


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


def expand_ranges(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the integers of many ranges, end to end: (lengths.sum(),) int64."""
    firsts = lengths.cumsum() - lengths
    return np.repeat(starts - firsts, lengths) + np.arange(int(lengths.sum()))
