"""Bounded numbers of requests, and of threads that answer them.

Look-ups and searches have slots and threads of their own, so that searches that take seconds leave
room for look-ups that take microseconds. A request takes its slot once its body is there: a client
that sends slowly keeps nobody out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from embmap.serve.problems import Problem
from embmap.serve.settings import Limits
from embmap.threads import n_threads

__all__ = ["Pool", "Pools", "Slots"]


class Slots:
    """A bounded number of things at once."""

    def __init__(self, n: int, what: str) -> None:
        self._n = n
        self._n_taken = 0
        self._what = what

    def __enter__(self) -> None:
        """Take a slot until the block ends."""
        if self._n_taken >= self._n:
            told = f"too many {self._what} at once"
            raise Problem(429, "busy", told, {"Retry-After": "1"})
        self.keep()

    def __exit__(self, *_: object) -> None:
        """Give the slot back."""
        self.give_back()

    def keep(self) -> None:
        """Take one more slot, even if none is left."""
        self._n_taken += 1

    def give_back(self) -> None:
        """Give a slot back."""
        self._n_taken -= 1


class Pool:
    """Threads and slots of one kind of requests, for one event loop."""

    def __init__(self, slots: Slots, threads: int, seconds: float) -> None:
        self.slots = slots
        self._seconds = seconds
        self._executor = ThreadPoolExecutor(threads, "embmap-serve")

    def deadline(self) -> float:
        """Return when an answer that is begun now has to be there."""
        return time.monotonic() + self._seconds

    async def run(self, until: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread.

        A thread cannot be stopped: one that takes too long keeps a slot until it ends.
        """
        work = self._executor.submit(function, *arguments)
        future = asyncio.wrap_future(work)
        done, _ = await asyncio.wait((future,), timeout=max(until - time.monotonic(), 0))
        if done:
            return future.result()
        if not work.cancel():  # a thread is at it
            self.slots.keep()
            future.add_done_callback(self._forget)
        told = f"there was no answer within {self._seconds:g} s; ask for less, or later"
        raise Problem(408, "timeout", told, {"Retry-After": "5"})

    def _forget(self, future: asyncio.Future[Any]) -> None:
        self.slots.give_back()
        if not future.cancelled():
            future.exception()

    def close(self) -> None:
        """Take no more work; what is running ends."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Pools(NamedTuple):
    """What the requests to a worker share.

    Attributes
    ----------
    lookups : Pool
        For look-ups: most are answered on the event loop, some wait for a disk.
    searches : Pool
        For searches: one processor is left to look-ups, and what finds no other waits.
    large : Slots
        For large bodies that arrive and large answers that are sent: they take memory for as long
        as a slow client likes.
    """

    lookups: Pool
    searches: Pool
    large: Slots

    @classmethod
    def of(cls, limits: Limits) -> Pools:
        """Return what some limits allow."""
        n_search_threads = max(n_threads() - 1, 1)
        return cls(
            Pool(Slots(limits.requests, "look-ups"), limits.threads, limits.seconds),
            Pool(Slots(limits.searches, "searches"), n_search_threads, limits.seconds),
            Slots(limits.large, "large bodies and answers"),
        )

    def close(self) -> None:
        """Take no more work; what is running ends."""
        self.lookups.close()
        self.searches.close()
