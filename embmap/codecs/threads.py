"""Work spread over threads, for loops that let go of the interpreter while they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["in_parallel", "n_threads"]

T = TypeVar("T")


def n_threads() -> int:
    """Return how many threads may work at once.

    Returns
    -------
    int
        What the environment variable EMBMAP_THREADS says, or the processors this process may use.

    Raises
    ------
    ValueError
        When EMBMAP_THREADS is no positive number.
    """
    asked = os.environ.get("EMBMAP_THREADS")
    if asked is None:
        usable = getattr(os, "sched_getaffinity", None)  # Linux alone has it
        return len(usable(0)) if usable is not None else os.cpu_count() or 1
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"EMBMAP_THREADS must be a positive number, not {asked!r}")
    return int(asked)


def in_parallel(function: Callable[[T], None], pieces: Sequence[T]) -> None:
    """Call a function with each of some pieces of work, as many at once as there are threads.

    Parameters
    ----------
    function : callable
        What to do; its first exception is raised here.
    pieces : sequence
        What to do it with.
    """
    workers = min(n_threads(), len(pieces))
    if workers < 2:
        for piece in pieces:
            function(piece)
        return
    from concurrent.futures import ThreadPoolExecutor  # costs as much as all of embmap to import

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(function, pieces):
            pass
