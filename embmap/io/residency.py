"""Which bytes of a file are in memory, and asking the system for those that are not.

Linux answers the first with preadv2 and RWF_NOWAIT, which works for files of others as well, unlike
mincore. Where the system or the file system cannot say, everything counts as in memory, so that
nothing is asked for.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["ask_for", "is_known", "lacks", "sample"]

_MOST = 16  # places looked at in a batch of any size
_FEW, _SOME = 32, 1024  # in fewer places than these nothing, or one of them is looked at
_AT_ONCE = 1 << 17  # bytes in a call: Linux cuts longer ranges to the read-ahead of the device
_GAP = 2  # pages between two ranges that are read as well
_BYTE = (bytearray(1),)


def is_known() -> bool:
    """Whether the system can say what is in memory, and can be asked for the rest."""
    needed = ((os, "preadv"), (os, "RWF_NOWAIT"), (os, "posix_fadvise"), (mmap, "MADV_RANDOM"))
    return all(hasattr(module, name) for module, name in needed)


def sample(places: npt.NDArray[np.int64]) -> list[int]:
    """Return a few of many places, evenly spaced; none of a few."""
    size = places.size
    if size < _SOME:
        return [int(places[size // 2])] if size >= _FEW else []
    found: list[int] = places[:: size // min(math.isqrt(size) // 8, _MOST)].tolist()
    return found


def lacks(descriptor: int, offsets: Iterable[int]) -> bool:
    """Whether one of a few bytes of a file is not in memory."""
    try:
        for offset in offsets:
            os.preadv(descriptor, _BYTE, offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # the file system cannot say
        return False
    return False


def ask_for(
    descriptor: int,
    offsets: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64] | int,
    end: int,
) -> None:
    """Ask the system to read ranges, up to an end, in the order of the file and without waiting."""
    if not offsets.size or not hasattr(os, "posix_fadvise"):
        return
    page = mmap.PAGESIZE
    # A damaged file may name any range.
    firsts = np.clip(offsets, 0, end) // page
    lasts = np.clip(offsets + (nbytes - 1), 0, end) // page
    order = np.argsort(firsts)
    firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
    breaks = np.flatnonzero(firsts[1:] > lasts[:-1] + (1 + _GAP))
    begins = firsts[np.concatenate(([0], breaks + 1))] * page
    ends = (lasts[np.concatenate((breaks, [lasts.size - 1]))] + 1) * page
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        for start in range(begin, end, _AT_ONCE):
            size = min(_AT_ONCE, end - start)
            os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_WILLNEED)
