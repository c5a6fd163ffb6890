"""A bounded number of threads that answer requests, and a bounded number of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from embmap.serve.problems import Problem
from embmap.serve.settings import Limits

__all__ = ["Pool"]


class Pool:
    """Threads for one event loop.

    Parameters
    ----------
    limits : Limits
        How many threads and requests, and how long one may take.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._executor = ThreadPoolExecutor(limits.threads, "embmap-serve")
        self._n_requests = 0
        self._n_abandoned = 0

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request in, for as long as it is being answered.

        Yields
        ------
        None
            Once it is admitted.

        Raises
        ------
        Problem
            429 when there are as many already as may be.
        """
        if self._n_requests + self._n_abandoned >= self._limits.requests:
            raise Problem(429, "busy", "too many requests at once", {"Retry-After": "1"})
        self._n_requests += 1
        try:
            yield
        finally:
            self._n_requests -= 1

    def deadline(self) -> float:
        """Return when an answer that is begun now has to be there.

        Returns
        -------
        float
            In seconds, as ``time.monotonic()`` counts them.
        """
        return time.monotonic() + self._limits.seconds

    async def run(self, until: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread.

        A thread cannot be stopped: one that takes too long counts as a request until it ends.

        Parameters
        ----------
        until : float
            Its :meth:`deadline`.
        function : callable
            What to call.
        *arguments : object
            With what.

        Returns
        -------
        object
            What it returned.

        Raises
        ------
        Problem
            408 when it takes too long.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, function, *arguments)
        done, _ = await asyncio.wait((future,), timeout=max(until - time.monotonic(), 0))
        if done:
            return future.result()
        self._n_abandoned += 1
        future.add_done_callback(self._forget)
        told = f"the answer took more than {self._limits.seconds:g} s; ask for less"
        raise Problem(408, "timeout", told, {"Retry-After": "5"})

    def _forget(self, future: asyncio.Future[Any]) -> None:
        self._n_abandoned -= 1
        if not future.cancelled():
            future.exception()

    def close(self) -> None:
        """Take no more work; what is running ends."""
        self._executor.shutdown(wait=False, cancel_futures=True)
