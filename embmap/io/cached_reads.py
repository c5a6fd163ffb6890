"""Positional reads that do not wait for a disk, for event loops.

On Linux, preadv2 with RWF_NOWAIT reads only bytes that the system has in memory. If
the disk was quick in the last seconds, a few missing ranges are read at once, because handing them
to a thread takes longer.
"""

from __future__ import annotations

import errno
import math
import os
import time
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embmap.errors import UnsupportedError
from embmap.io.mapping import Access, ByteSource
from embmap.io.positional_reads import PositionalFetch, PositionalReads, pread

__all__ = ["CachedReads", "NotInMemoryError"]

_LOADED = 1 << 20  # bytes that are read at a time to load them
_PATIENCE = 0.002  # longest time to wait for the disk, in seconds
_REMEMBERED = 5.0  # seconds for which a measured latency is used
_SMALL = 1 << 16  # bytes of the largest range that is read without a thread

Ranges = list[tuple[int, int]]


class NotInMemoryError(BlockingIOError):
    """Parts of a file opened with ``backend="cached"`` are not in memory."""

    def __init__(self, reader: CachedFetch, ranges: Ranges) -> None:
        super().__init__(errno.EAGAIN, "not in memory", os.fspath(reader.path))
        self._reader = reader
        self._ranges = ranges

    def load(self) -> None:
        """Load the missing parts. Call it in a thread, and then repeat the call that failed."""
        self._reader.load(self._ranges)


class CachedFetch(PositionalFetch):
    """``fetch[start:stop]`` returns bytes in memory; NotInMemoryError is raised for others."""

    __slots__ = ("_latency", "_measured")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._latency = 0.0  # seconds for a range, when ranges were last read from the disk
        self._measured = -math.inf  # when the latency was measured

    def __getitem__(self, item: slice, /) -> bytes:
        """Return the bytes of a range."""
        start, stop = item.start, min(item.stop, self.nbytes)
        if stop <= start:
            return b""
        data = bytearray(stop - start)
        try:
            found = os.preadv(self.descriptor, (data,), start, os.RWF_NOWAIT)
        except BlockingIOError:
            found = 0
        if found < len(data):
            if start + found < os.fstat(self.descriptor).st_size:
                self.wait_for([(start, stop - start)])
            return super().__getitem__(item)  # raises TruncatedError if the file shrank
        return bytes(data)

    def wait_for(self, ranges: Ranges) -> None:
        """Load a few ranges if the disk is quick; raise NotInMemoryError otherwise."""
        # The failed read made the system start to load them. A quick disk may have finished.
        absent = [each for each in ranges if not self._has(each)]
        known = time.monotonic() - self._measured < _REMEMBERED
        small = all(nbytes <= _SMALL for _, nbytes in absent)
        if absent and not (known and small and len(absent) * self._latency <= _PATIENCE):
            raise NotInMemoryError(self, absent)
        self.load(absent)

    def load(self, ranges: Ranges) -> None:
        """Load ranges into memory, however long it takes."""
        # Another thread may have loaded some of them.
        absent = [each for each in ranges if not self._has(each)]
        # The disk chooses the order of several ranges.
        for start, nbytes in absent if len(absent) > 1 else ():
            os.posix_fadvise(self.descriptor, start, nbytes, os.POSIX_FADV_WILLNEED)
        begun = time.perf_counter()
        for start, nbytes in absent:
            for begin in range(start, start + nbytes, _LOADED):
                pread(self.descriptor, min(_LOADED, start + nbytes - begin), begin)
        if absent:
            self._latency = (time.perf_counter() - begun) / len(absent)
            self._measured = time.monotonic()

    def _has(self, place: tuple[int, int]) -> bool:
        """Whether the start and the end of a range are in memory."""
        start, nbytes = place
        try:
            for offset in (start, start + nbytes - 1):
                os.preadv(self.descriptor, (bytearray(1),), offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        return True


class CachedReads(PositionalReads):
    """A file read by position, without waiting for the disk.

    A range that is not in memory raises NotInMemoryError. An event loop has a thread load the range
    and repeats the call.
    """

    backend = "cached"
    _reader: CachedFetch

    def __init__(self, path: Path, access: Access = "auto") -> None:
        super().__init__(path, access)
        self._adapts = False  # what is not in memory is an error
        try:
            self.fetch[0 : min(self.nbytes, 1)]
        except NotInMemoryError:
            pass  # the file system supports RWF_NOWAIT
        except OSError as error:
            raise UnsupportedError(
                f'this file system does not support backend="cached": {error.strerror}', path=path
            ) from None

    def _open(self, path: Path) -> CachedFetch:
        if not hasattr(os, "RWF_NOWAIT"):
            raise UnsupportedError('only Linux supports backend="cached"', path=path)
        return CachedFetch(path)

    def gather(
        self, offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        ends = nbytes.cumsum().tolist()
        data = bytearray(ends[-1] if ends else 0)
        view, descriptor = memoryview(data), self._reader.descriptor
        parts = [(view[begin:end],) for begin, end in zip([0, *ends], ends, strict=False)]
        places = offsets.tolist()
        reads = map(os.preadv, repeat(descriptor), parts, places, repeat(os.RWF_NOWAIT))
        found: list[int] = []
        absent: list[int] = []
        while len(found) < len(parts):
            try:
                found.extend(reads)  # keeps the reads before an error
            except BlockingIOError:
                absent.append(len(found))
                found.append(0)
        if absent:
            self._reader.wait_for([(places[i], len(parts[i][0])) for i in absent])
            for i in absent:
                found[i] = os.preadv(descriptor, parts[i], places[i])
        if sum(found) == len(data):
            return np.frombuffer(data, np.uint8)
        return ByteSource.gather(self, offsets, nbytes)
