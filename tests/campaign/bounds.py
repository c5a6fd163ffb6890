"""Bounds of memory and time: what damaged bytes may cost.

Memory is bounded by the size of the file. CPU time is bounded by the time that the same work takes
on valid files in the same process, multiplied for larger files.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Bounds"]

MEMORY = 24 << 20  # bytes for a file of any size: buffers of 4 MiB, answers of 2**20 numbers
MEMORY_PER_BYTE = 64  # more for each byte of the file
TIME_RATIO = 100  # times the CPU time that the valid files take
TIME_FLOOR = 1.0  # seconds of CPU time that no ratio is asked for
_MEASURED = 16  # one trial in so many is measured: tracing memory is slow

Result = TypeVar("Result")


class Bounds:
    """What some work on valid files takes, and the check that damaged ones do not take far more."""

    def __init__(self, nbytes: int, work_on_valid: Callable[[], object]) -> None:
        """Work on valid files of so many bytes together."""
        self.nbytes = nbytes
        work_on_valid()  # and all is loaded
        start = time.process_time()
        work_on_valid()
        self.valid_seconds = max(time.process_time() - start, 1e-3)

    def hold(self, rng: random.Random, nbytes: int, work: Callable[[], Result]) -> Result:
        """Work on damaged bytes; now and then measure it."""
        measure = rng.randrange(_MEASURED)
        if measure == 0:
            return self.in_memory(nbytes, work)
        if measure == 1:
            return self.in_time(nbytes, work)
        return work()

    def in_memory(self, nbytes: int, work: Callable[[], Result]) -> Result:
        """Check the memory that work takes against the size of the file."""
        tracemalloc.start()
        try:
            result = work()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        most = MEMORY + MEMORY_PER_BYTE * nbytes
        assert peak <= most, f"{peak:,} bytes of memory for {nbytes:,} of file"
        return result

    def in_time(self, nbytes: int, work: Callable[[], Result]) -> Result:
        """Check the CPU time of work against the time of valid files."""
        start = time.process_time()
        result = work()
        seconds = time.process_time() - start
        ratio = seconds / self.valid_seconds
        most = TIME_RATIO * max(1.0, nbytes / self.nbytes)
        assert seconds <= TIME_FLOOR or ratio <= most, (
            f"{ratio:.0f} times the CPU time of {self.nbytes:,} valid bytes, for {nbytes:,}"
        )
        return result
