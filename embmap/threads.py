"""Work in several threads, for loops that release the interpreter lock."""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TypeVar
from weakref import WeakSet

from embmap.forking import process_lock

__all__ = ["away_from_signals", "in_parallel", "n_threads"]

T = TypeVar("T")


def n_threads() -> int:
    """Return how many threads may work at once: EMBMAP_THREADS, or the usable processors."""
    asked = os.environ.get("EMBMAP_THREADS")
    if asked is None:
        usable = getattr(os, "sched_getaffinity", None)  # only on Linux
        return len(usable(0)) if usable is not None else os.cpu_count() or 1
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"EMBMAP_THREADS must be a positive number, not {asked!r}")
    return int(asked)


def in_parallel(function: Callable[[T], None], pieces: Sequence[T]) -> None:
    """Call a function with each piece of work, in up to :func:`n_threads` threads.

    Concurrent callers share these threads. A caller that finds no free thread does all the work
    itself.
    """
    share = _Share()
    try:
        if share.taken(len(pieces)) < 2:
            for piece in pieces:
                function(piece)
            return
        _share_out(function, pieces, share.n)
    finally:
        share.n = 0


def _share_out(function: Callable[[T], None], pieces: Sequence[T], n: int) -> None:
    """Call a function with each piece in `n` threads, of which this is one."""
    left = deque(enumerate(pieces))
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while True:
            try:
                i, piece = left.popleft()
            except IndexError:
                return
            try:
                function(piece)
            except BaseException as error:
                errors[i] = error
                left.clear()

    def work_until(end: _thread.LockType) -> None:
        try:
            work()
        finally:
            end.release()

    ends = [_thread.allocate_lock() for _ in range(n - 1)]
    for end in ends:
        end.acquire()
    started: list[int] = []
    try:
        # threading.Thread.start() holds a lock that its thread needs. An interrupt there would
        # leave it held, and the thread would never end. No interrupt comes between these starts.
        with contextlib.suppress(RuntimeError):  # the system refuses more threads: fewer will do
            started.extend(map(_thread.start_new_thread, repeat(work_until), zip(ends)))
        work()
    finally:
        left.clear()  # when it is interrupted; else nothing is left
        for end, _ in zip(ends, started, strict=False):
            end.acquire()
    if errors:
        error = errors[min(errors)]  # the first in order: no piece before it failed
        errors.clear()
        try:
            raise error
        finally:
            del error  # else error and frame keep each other alive


def away_from_signals(function: Callable[[], T]) -> T:
    """Call a function in a thread that no signal interrupts, for code that hides interrupts.

    An interrupt is raised once the function has returned. A second one is raised at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()  # Python handles signals in its main thread
    values: list[T] = []
    errors: list[BaseException] = []
    end = _thread.allocate_lock()
    end.acquire()

    def work() -> None:
        try:
            values.append(function())
        except BaseException as error:
            errors.append(error)
        end.release()

    def wait() -> None:
        # An interrupt may arrive just after the lock was acquired, which another call cannot see.
        while not (values or errors):
            end.acquire()

    started: list[int] = []
    try:
        try:
            started.extend(map(_thread.start_new_thread, (work,), ((),)))
        except RuntimeError:  # the system refuses more threads
            return function()
        wait()
    finally:
        if started:
            wait()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # else error and frame keep each other alive
    return values[0]


class _Share:
    """The threads that one call uses."""

    __slots__ = ("__weakref__", "n")

    def __init__(self) -> None:
        self.n = 0
        with _lock:
            _shares.add(self)

    def taken(self, wanted: int) -> int:
        """Take up to `wanted` free threads, at least the caller's own; return their number."""
        n = n_threads()
        with _lock:
            busy = sum(share.n for share in _shares)
            self.n = max(min(n - busy, wanted), 1)
        return self.n


_lock = process_lock()
# Weak, because an interrupt may keep a call from returning its share.
_shares: WeakSet[_Share] = WeakSet()

if hasattr(os, "register_at_fork"):
    # Other threads, and their calls, are not in the child.
    os.register_at_fork(after_in_child=_shares.clear)
