"""Completion: words that begin with a prefix.

The first words of a vocabulary are sorted on the first request. Most vocabularies are in the order
of frequency, so these are the words that users type.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from embmap.words.vocabulary import Vocabulary

__all__ = ["Completion"]

_SCANNED = 200_000


class Completion:
    """The first 200,000 words of a vocabulary, sorted."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._words: list[str] | None = None
        self._rows: npt.NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def is_whole(self) -> bool:
        """Whether all words of the vocabulary are among the sorted ones."""
        return self._vocabulary is None or len(self._vocabulary) <= _SCANNED

    def starting_with(self, prefix: str, n: int) -> list[str]:
        """Return up to `n` words that begin with a prefix, in the order of their rows."""
        vocabulary = self._vocabulary
        if vocabulary is None:
            return []
        if not prefix:
            return vocabulary[: min(n, _SCANNED)]
        words = self._sorted()
        first = bisect_left(words, prefix)
        last = bisect_left(words, True, first, key=lambda word: not word.startswith(prefix))
        rows = self._rows[first:last]
        chosen = np.argpartition(rows, n)[:n] if rows.size > n else np.arange(rows.size)
        chosen = chosen[np.argsort(rows[chosen])]
        return [words[first + i] for i in chosen.tolist()]

    def _sorted(self) -> list[str]:
        with self._lock:
            if self._words is None:
                words = [] if self._vocabulary is None else self._vocabulary[:_SCANNED]
                order = sorted(range(len(words)), key=words.__getitem__)
                self._rows = np.array(order, np.int64)
                self._words = [words[row] for row in order]
            return self._words
