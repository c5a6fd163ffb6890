"""The rows of fp16 chunks as they are stored: half-precision numbers that are not widened."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.formats.cvc.layout import ChunkLayout
from embmap.io.mapping import ByteSource
from embmap.vectors.streamed import Streamed

__all__ = ["Halves"]


class Halves(Streamed):
    """Rows of chunks that are all fp16: float16, to the bit.

    `offsets` says where the rows of each chunk start in the file. `check` compares a chunk with its
    checksum, which is done when all of its rows are read.
    """

    def __init__(
        self,
        file: ByteSource,
        chunks: Sequence[ChunkLayout],
        offsets: Sequence[int],
        *,
        shape: tuple[int, ...],
        check: Callable[[int], None],
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(np.float16)
        self._file = file
        self._starts = [chunk.start for chunk in chunks]
        self._rows = [chunk.rows for chunk in chunks]
        self._offsets = offsets
        self._row_nbytes = shape[1] * self.dtype.itemsize
        self._check = check

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        self._file.check_whole()
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        at = start
        while at < stop:
            number = bisect_right(self._starts, at) - 1
            first, n_rows = self._starts[number], self._rows[number]
            last = min(first + n_rows, stop)
            if last - at == n_rows:
                self._check(number)
            out[at - start : last - start] = self._stored(number, at - first, last - first)
            at = last
        return out

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        self._file.check_whole()
        numbers = np.searchsorted(self._starts, rows, "right") - 1
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            places = rows[chosen] - self._starts[number]
            if self._file.zero_copy:
                out[chosen] = self._stored(number, 0, self._rows[number])[places]
                continue
            offsets = self._offsets[number] + places * self._row_nbytes
            data = self._file.gather(offsets, np.full(places.size, self._row_nbytes))
            out[chosen] = data.view(self.dtype).reshape(places.size, self.shape[1])

    def _stored(self, number: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of a chunk, counted from its first row."""
        offset = self._offsets[number] + start * self._row_nbytes
        return self._file.array(offset, "<f2", (stop - start, self.shape[1]))
