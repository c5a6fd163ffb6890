"""Words that repeat an earlier one, found by their hashes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["find_repeats"]

_AT_ONCE = 1 << 20  # suspects whose words are in memory at a time


def find_repeats(
    hashes: npt.NDArray[np.uint64],
    encoded: Callable[[npt.NDArray[np.int64]], Iterable[bytes]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows of words that equal an earlier one, ascending, and the first row of each.

    `hashes` are the xxh3_64 of all words in order. Equal hashes only make words suspect:
    `encoded(rows)` is called for the bytes of the suspects, in the order of their rows.
    """
    ordered = np.sort(hashes)
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    suspects = np.flatnonzero(np.isin(hashes, twice)) if twice.size else np.empty(0, np.int64)
    rows, firsts = array("q"), array("q")
    # Equal words have equal hashes and are therefore in the same part.
    n_parts = np.uint64(suspects.size // _AT_ONCE + 1)
    parts = hashes[suspects] % n_parts
    for part in np.unique(parts):
        asked = suspects[parts == part]
        seen: dict[bytes, int] = {}
        for row, word in zip(asked.tolist(), encoded(asked), strict=True):
            first = seen.setdefault(word, row)
            if first != row:
                rows.append(row)
                firsts.append(first)
    found = np.array(rows, np.int64)
    order = found.argsort()
    return found[order], np.array(firsts, np.int64)[order]
