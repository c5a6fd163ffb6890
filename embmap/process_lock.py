"""A lock that a forked child does not inherit in the locked state."""

from __future__ import annotations

import os
import threading
from types import TracebackType

__all__ = ["ProcessLock"]


class ProcessLock:
    """A reentrant lock of the process it is used in.

    A child forked while another thread holds an ordinary lock waits for it for ever; here it finds
    a lock of its own.
    """

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        """Take the lock."""
        if self._process != os.getpid():
            self._lock = threading.RLock()
            self._process = os.getpid()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        self._lock.release()
