"""Counts of responses, in the text format of Prometheus.

Each worker counts in a small file of its own. The worker that is asked adds up all files, also of
workers that have ended, so that no count ever decreases. A response is counted before its last byte
is sent, so that a client finds all responses that it has in the counts of every worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["Counts"]

_LOG = logging.getLogger("embmap.serve")
STATUSES = (200, 304, 400, 401, 404, 405, 406, 408, 413, 415, 421, 422, 429, 431, 500, 503, 0)
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SECONDS = len(STATUSES) + len(BOUNDS) + 1
_VECTORS = _SECONDS + 1


class Counts:
    """The counts of one worker. Only its event loop changes them."""

    def __init__(self, routes: Sequence[str], folder: str | None = None) -> None:
        self._routes = (*routes, "other")
        self._places = {route: i for i, route in enumerate(self._routes)}
        self._folder = None if folder is None else Path(folder)
        shape = (len(self._routes), _VECTORS + 1)
        if self._folder is None:
            self._own: npt.NDArray[np.float64] = np.zeros(shape)
        else:
            self._path = self._folder / f"{os.getpid()}-{time.time_ns()}.counts"
            self._own = _counts(self._path, shape)

    def count(self, route: str, status: int, seconds: float, vectors: int) -> None:
        """Count a response."""
        counts = self._own[self._places.get(route, len(self._routes) - 1)]
        counts[STATUSES.index(status) if status in STATUSES else len(STATUSES) - 1] += 1
        counts[len(STATUSES) + bisect_left(BOUNDS, seconds)] += 1
        counts[_SECONDS] += seconds
        counts[_VECTORS] += vectors

    def text(self) -> str:
        """Return the counts of all workers."""
        return "\n".join((*self._lines(self._total()), ""))

    def _total(self) -> npt.NDArray[np.float64]:
        if self._folder is None:
            return self._own
        total = np.zeros(self._own.shape)
        found = False
        for path in sorted(self._folder.glob("*.counts")):
            with contextlib.suppress(OSError):
                counts = np.fromfile(path, np.float64)
                if counts.size == total.size:
                    total += counts.reshape(total.shape)
                    found = found or path == self._path
        return total if found else total + self._own

    def _lines(self, total: npt.NDArray[np.float64]) -> Iterator[str]:
        used = [
            (route, counts)
            for route, counts in zip(self._routes, total.tolist(), strict=True)
            if any(counts)
        ]
        yield "# HELP embmap_requests_total Responses by route and status."
        yield "# TYPE embmap_requests_total counter"
        for route, counts in used:
            for status, n in zip(STATUSES, counts[: len(STATUSES)], strict=True):
                if n:
                    name = status or "other"
                    yield f'embmap_requests_total{{route="{route}",status="{name}"}} {n:.0f}'
        yield "# HELP embmap_request_seconds How long responses took."
        yield "# TYPE embmap_request_seconds histogram"
        for route, counts in used:
            below = np.cumsum(counts[len(STATUSES) : _SECONDS]).tolist()
            for bound, n in zip((*BOUNDS, "+Inf"), below, strict=True):
                yield f'embmap_request_seconds_bucket{{route="{route}",le="{bound}"}} {n:.0f}'
            yield f'embmap_request_seconds_sum{{route="{route}"}} {counts[_SECONDS]:.6f}'
            yield f'embmap_request_seconds_count{{route="{route}"}} {below[-1]:.0f}'
        yield "# HELP embmap_vectors_total Vectors sent."
        yield "# TYPE embmap_vectors_total counter"
        for route, counts in used:
            if counts[_VECTORS]:
                yield f'embmap_vectors_total{{route="{route}"}} {counts[_VECTORS]:.0f}'


def _counts(path: Path, shape: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return zeros in a new file, or in memory, unseen by other workers, if that fails."""
    try:
        # Zeros are written, not skipped: a write to a map of a full disk would kill the process.
        path.write_bytes(bytes(8 * shape[0] * shape[1]))
        # Access to an item of a np.memmap costs ten times as much as in a plain array.
        return np.memmap(path, np.float64, "r+", shape=shape).view(np.ndarray)
    except OSError as error:
        _LOG.warning("other workers do not see the counts of this one: %s", error.strerror)
        return np.zeros(shape)
