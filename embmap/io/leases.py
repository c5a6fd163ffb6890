"""Read leases: while a process holds one, nobody can shrink the file.

A process that reads a page of a map beyond the end of its file is killed. On Linux, the holder of a
read lease (fcntl(2), F_SETLEASE) gets a signal when another process is about to truncate the file
or to open it for writing. The other process waits until the lease is given back, for at most
/proc/sys/fs/lease-break-time seconds. The system gives leases to the owner of a file and to
processes with CAP_LEASE, as long as no process has the file open for writing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import signal
import time
from collections.abc import Callable, Sequence

from embmap.errors import UnsupportedError
from embmap.forking import process_lock

__all__ = ["SIGNAL", "Lease"]

SIGNAL: int = getattr(signal, "SIGURG", 0)
"""The signal that a holder gets; a process that does not handle it goes on. 0 on Windows."""

_REFUSED_FOR = 1.0  # seconds before a lease that was refused is asked for again
# Local file systems by f_type of statfs(2): others may shrink a file without asking the holder.
_LOCAL = {
    0xEF53,  # ext2, ext3, ext4
    0x58465342,  # XFS
    0x9123683E,  # Btrfs
    0x01021994,  # tmpfs
    0xF2F52010,  # F2FS
    0x794C7630,  # overlayfs, whose lower files do not change
}


class Lease:
    """A read lease on open files, taken again and again as long as they have not changed.

    Between :meth:`begin` and :meth:`end` no file shrinks. When :data:`SIGNAL` arrives, the process
    calls :meth:`give_back`. Threads may share a lease; a child that is forked must not use it.
    `is_unchanged` says whether the files are as they were when they were mapped.
    """

    def __init__(self, descriptors: Sequence[int], is_unchanged: Callable[[], bool]) -> None:
        """Raise UnsupportedError if the system or a file system has no leases."""
        if not SIGNAL or not all(map(_is_local, descriptors)):
            raise UnsupportedError("there are no leases here")
        self._descriptors = descriptors
        self._is_unchanged = is_unchanged
        self._lock = process_lock()
        self._held = False
        self._is_over = False
        self._n_users = 0
        self._next_try = 0.0

    def begin(self) -> bool:
        """Return whether the files can be read through a map until :meth:`end` is called."""
        with self._lock:
            if self._is_over or (self._held and self._is_asked_back()):
                self._give_back()
                return False
            if not self._held and time.monotonic() >= self._next_try:
                self._take()
            self._n_users += self._held
            return self._held

    def end(self) -> None:
        """End what :meth:`begin` began."""
        with self._lock:
            self._n_users -= 1
            if self._is_over or self._is_asked_back():
                self._give_back()

    def give_back(self) -> None:
        """Give the lease back if somebody waits for it; the last reader does it if there is one."""
        with self._lock:
            if self._held and self._is_asked_back():
                self._give_back()

    def close(self) -> None:
        """Give the lease back and never take it again."""
        with self._lock:
            self._is_over = True
            self._give_back()

    def _is_asked_back(self) -> bool:
        import fcntl

        # While somebody waits, the type is the one that the lease must be turned into.
        return any(
            fcntl.fcntl(each, fcntl.F_GETLEASE) != fcntl.F_RDLCK for each in self._descriptors
        )

    def _take(self) -> None:
        import fcntl

        self._next_try = time.monotonic() + _REFUSED_FOR
        self._held = True
        try:
            for each in self._descriptors:
                fcntl.fcntl(each, fcntl.F_SETSIG, SIGNAL)
                fcntl.fcntl(each, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                # Otherwise the signal is for this thread, which may have ended by then.
                fcntl.fcntl(each, fcntl.F_SETOWN, os.getpid())
        except OSError as error:
            self._give_back()
            if error.errno != errno.EAGAIN:  # not the owner, or a file system without leases
                self._next_try = math.inf
            return
        if not self._is_unchanged():
            self._give_back()
            self._next_try = math.inf

    def _give_back(self) -> None:
        import fcntl

        if self._n_users or not self._held:
            return
        self._held = False
        for each in self._descriptors:
            with contextlib.suppress(OSError):  # the system has taken it away
                fcntl.fcntl(each, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _is_local(descriptor: int) -> bool:
    """Return whether a file is on a file system whose files change only through this system."""
    facts = ctypes.create_string_buffer(256)  # struct statfs begins with f_type, a long
    try:
        if ctypes.CDLL(None).fstatfs(descriptor, facts):
            return False
    except (AttributeError, OSError, TypeError):  # TypeError on Windows
        return False
    kind = int.from_bytes(facts.raw[: ctypes.sizeof(ctypes.c_long)], "little")
    return kind & 0xFFFFFFFF in _LOCAL
