"""What keeps a forked child from waiting for threads that only its parent has.

A child has the thread that forked it and no other. A lock that another thread held then stays
locked in the child for ever. The locks of :func:`process_lock` are free there, and what runs inside
:func:`delaying_forks` has ended before the child begins.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from weakref import WeakSet

__all__ = ["delaying_forks", "process_lock"]

_PATIENCE = 30
"""Seconds that a fork waits at most: no mistake in a thread may keep another for ever."""

_locks: WeakSet[threading.RLock] = WeakSet()
_delays: WeakSet[threading.RLock] = WeakSet()
_delay = threading.local()
_registering = threading.RLock()
_taken: list[threading.RLock] = []


def process_lock() -> threading.RLock:
    """Return a reentrant lock that a forked child finds free unless its own thread holds it."""
    lock = threading.RLock()
    with _registering:
        _locks.add(lock)
    return lock


def delaying_forks() -> AbstractContextManager[bool]:
    """Keep other threads from forking meanwhile, where another library holds locks for a moment.

    Threads do not wait for each other here. What runs inside takes no lock of embmap's.
    """
    delay: threading.RLock | None = getattr(_delay, "lock", None)
    if delay is None:
        delay = threading.RLock()
        with _registering:
            _delays.add(delay)
        _delay.lock = delay
    return delay


def _before_fork() -> None:
    _registering.acquire()
    _taken.extend(delay for delay in list(_delays) if delay.acquire(timeout=_PATIENCE))


def _after_fork_in_parent() -> None:
    while _taken:
        _taken.pop().release()
    _registering.release()


def _after_fork_in_child() -> None:
    for delay in [delay for delay in _delays if delay not in _taken]:
        _delays.discard(delay)  # of a thread that is not here, which never ends
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
