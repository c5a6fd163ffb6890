"""Locks that do not block a forked child for ever.

A child starts with a single thread, the one that forked. A lock that another thread of the parent
held is never released in the child. Locks of :func:`process_lock` are free in the child. A fork
waits for code inside :func:`delaying_forks`, then for the locks of :func:`hold_for_forks`.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Protocol
from weakref import WeakSet

__all__ = ["delaying_forks", "hold_for_forks", "process_lock"]

_PATIENCE = 30
"""Seconds that a fork waits at most, so that a stuck thread cannot keep another from forking."""

_locks: WeakSet[threading.RLock] = WeakSet()
_delays: WeakSet[threading.RLock] = WeakSet()
_delay = threading.local()
_registering = threading.RLock()
_taken: list[Lock] = []
_held: list[Lock] = []


class Lock(Protocol):
    """A lock that its thread may acquire again."""

    def acquire(self) -> object:
        """Acquire the lock."""

    def release(self) -> object:
        """Release the lock."""


def process_lock() -> threading.RLock:
    """Return a reentrant lock, free in a forked child unless the thread that forks holds it."""
    lock = threading.RLock()
    with _registering:
        _locks.add(lock)
    return lock


def delaying_forks() -> AbstractContextManager[bool]:
    """Return a context that delays forks, for calls of libraries that hold locks for a moment.

    Threads may be inside at the same time. Code inside must not take a :func:`process_lock`.
    """
    delay: threading.RLock | None = getattr(_delay, "lock", None)
    if delay is None:
        delay = threading.RLock()
        with _registering:
            _delays.add(delay)
        _delay.lock = delay
    return delay


def hold_for_forks(lock: Lock) -> None:
    """Acquire a lock of a library before each fork from now on, also before one that is delayed."""
    _held.append(lock)


def _before_fork() -> None:
    _registering.acquire()
    _taken.extend(delay for delay in list(_delays) if delay.acquire(timeout=_PATIENCE))
    for lock in _held:
        lock.acquire()
        _taken.append(lock)


def _after_fork_in_parent() -> None:
    while _taken:
        _taken.pop().release()
    _registering.release()


def _after_fork_in_child() -> None:
    for delay in [delay for delay in _delays if delay not in _taken]:
        _delays.discard(delay)  # its thread is not in the child and never releases it
    for lock in _locks:
        if lock.acquire(blocking=False):
            lock.release()
        else:
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    _after_fork_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
