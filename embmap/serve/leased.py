"""Maps of served files, which the event loop reads while leases keep the files from shrinking.

A map gives a batch in a fraction of the time that positional reads take. But a page that is not in
memory makes all requests wait for the disk. A map is therefore read only after many vectors in
succession were in memory, and until one is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.errors import UnsupportedError
from embmap.io.leases import SIGNAL, Lease
from embmap.serve.watched import Watched

__all__ = ["LeasedMap", "Leases"]

_TRUSTED = 1000  # vectors in succession that were in memory: the next ones probably are, too
_SAMPLED = 8  # rows of a batch that are read before the others
_MANY = 32  # vectors of a batch that is sampled


class Leases:
    """The leases of a worker. Its event loop gives back those that another process waits for."""

    def __init__(self) -> None:
        self._leases: WeakSet[Lease] = WeakSet()
        self._can_take = False

    def start(self) -> None:
        """Take leases from now on, if this event loop can be told when they have to end."""
        try:
            asyncio.get_running_loop().add_signal_handler(SIGNAL, self._give_back)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            return  # not on Linux, or not in the main thread
        self._can_take = True

    def close(self) -> None:
        """Give all leases back, and take none any longer."""
        self._can_take = False
        for lease in list(self._leases):
            lease.close()

    def of(self, watched: Watched) -> Lease | None:
        """Return a lease on files, to be taken when it is needed; None if that is not possible."""
        if not self._can_take:
            return None
        try:
            lease = Lease(watched.descriptors, watched.is_unchanged)
        except UnsupportedError:
            return None
        self._leases.add(lease)
        return lease

    def _give_back(self) -> None:
        for lease in list(self._leases):
            lease.give_back()


class LeasedMap:
    """A mapped file that is read between :meth:`begin` and :meth:`end`, on the event loop."""

    def __init__(self, file: EmbeddingFile, lease: Lease) -> None:
        self.file = file
        self._lease = lease
        self._n_found = 0  # vectors that were in memory since the last one that was not
        self._n_waits = 0

    def note_found(self, n: int) -> None:
        """Note that `n` more vectors were in memory."""
        self._n_found += n

    def note_absent(self) -> None:
        """Note that a vector was not in memory."""
        self._n_found = 0

    def begin(self) -> bool:
        """Return whether the map can be read until :meth:`end`, which is called only then."""
        if self._n_found < _TRUSTED or not self._lease.begin():
            return False
        self._n_waits = _count_waits()
        return True

    def end(self) -> None:
        """End what :meth:`begin` began."""
        self._lease.end()
        if _count_waits() != self._n_waits:
            self.note_absent()

    def check_words(self, words: Sequence[str]) -> None:
        """Raise BlockingIOError if some of a batch's words are not in memory."""
        vocabulary = self.file.vocab
        if vocabulary is not None and len(words) >= _MANY:
            for word in words[:: len(words) // _SAMPLED]:
                vocabulary.find_row(word)
            self._check()

    def check_rows(self, rows: npt.NDArray[np.int64]) -> None:
        """Raise BlockingIOError if some rows of a batch, which all exist, are not in memory."""
        vectors = self.file.vectors
        if vectors is not None and rows.size >= _MANY:
            for row in rows[:: rows.size // _SAMPLED].tolist():
                vectors.row(row).flat[0]  # a view is read only here
            self._check()

    def _check(self) -> None:
        if _count_waits() != self._n_waits:
            raise BlockingIOError


def _count_waits() -> int:
    """Return how often this thread has waited for a disk because a page was not in memory."""
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
