"""Bounded numbers of requests, and of threads that answer them.

Look-ups and searches have separate slots and threads, so that searches that take seconds leave room
for look-ups that take microseconds. A request takes its slot only after its body has arrived, so
that a client that sends slowly keeps no other out.
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
    """A bounded number of things at once: each takes a slot for the length of a ``with`` block."""

    def __init__(self, n: int, what: str) -> None:
        self._n = n
        self._n_taken = 0
        self._what = what

    def __enter__(self) -> None:
        """Take a slot until the block ends."""
        if self._n_taken >= self._n:
            message = f"the server takes at most {self._n} {self._what} at once"
            raise Problem(429, "busy", message, {"Retry-After": "1"})
        self.keep()

    def __exit__(self, *_: object) -> None:
        """Give the slot back."""
        self.give_back()

    def keep(self) -> None:
        """Take one more slot, even if no slot is free."""
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
        """Return the time by which an answer that begins now must be finished."""
        return time.monotonic() + self._seconds

    async def run(self, until: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread, or refuse after `until`.

        A thread cannot be stopped: a function that takes too long keeps its slot until it ends.
        """
        work = self._executor.submit(function, *arguments)
        future = asyncio.wrap_future(work)
        done, _ = await asyncio.wait((future,), timeout=max(until - time.monotonic(), 0))
        if done:
            return future.result()
        if not work.cancel():  # it is running
            self.slots.keep()
            future.add_done_callback(self._forget)
        message = f"the answer took more than {self._seconds:g} s: ask for less, or later"
        raise Problem(408, "timeout", message, {"Retry-After": "5"})

    def _forget(self, future: asyncio.Future[Any]) -> None:
        self.slots.give_back()
        if not future.cancelled():
            future.exception()

    def close(self) -> None:
        """Take no more work; running work ends."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Pools(NamedTuple):
    """The pools and slots that the requests to a worker share.

    Attributes
    ----------
    lookups : Pool
        For look-ups. Most are answered on the event loop; some wait for a disk.
    searches : Pool
        For searches. They leave one processor to look-ups; searches without a thread wait.
    large : Slots
        For large bodies and answers, which take memory as long as a slow client sends or reads.
    """

    lookups: Pool
    searches: Pool
    large: Slots

    @classmethod
    def of(cls, limits: Limits) -> Pools:
        """Return pools of the sizes that the limits give."""
        n_search_threads = max(n_threads() - 1, 1)
        return cls(
            Pool(Slots(limits.requests, "look-ups"), limits.threads, limits.seconds),
            Pool(Slots(limits.searches, "searches"), n_search_threads, limits.seconds),
            Slots(limits.large, "large bodies and answers"),
        )

    def close(self) -> None:
        """Take no more work; running work ends."""
        self.lookups.close()
        self.searches.close()
