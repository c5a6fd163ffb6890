"""Reading word2vec's binary form: a line of sizes, then words and float32 numbers by turns."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.io.mapping import ByteSource
from embmap.vectors.streamed import Streamed
from embmap.words.interleaved import step_over_words
from embmap.words.table import WordTable

__all__ = ["Word2VecMatrix", "read_sizes", "read_word2vec"]

FORMAT = "word2vec"
_SIZES = re.compile(rb"[ \t]*(\d{1,18})[ \t]+(\d{1,9})[ \t]*\r?\n")


def read_sizes(source: ByteSource) -> tuple[int, int, int] | None:
    """Return the number of words, the dimension and the length of the first line, or None."""
    found = _SIZES.match(source.read(0, min(64, source.nbytes)))
    return None if found is None else (int(found[1]), int(found[2]), found.end())


def read_word2vec(
    source: ByteSource, *, limit: int | None = None
) -> tuple[WordTable, Word2VecMatrix]:
    """Find the words and the offsets of their numbers."""
    sizes = read_sizes(source)
    if sizes is None or sizes[1] < 1:
        raise FormatError(
            "the first line of a word2vec file must state the number of words and the dimension",
            path=source.path,
            format=FORMAT,
            offset=0,
            found=source.read(0, min(40, source.nbytes)),
        )
    stated, dim, offset = sizes
    n = stated if limit is None else min(limit, stated)
    words, offsets = step_over_words(
        source, offset, n, end=b" ", nbytes=4 * dim, format=FORMAT, strip=b"\n"
    )
    end = int(offsets[n])
    rest = source.read(end, min(16, source.nbytes - end)) if n == stated else b""
    if rest.strip(b"\r\n"):
        raise FormatError(
            f"{stated} words end here, but {source.nbytes - end} bytes follow",
            path=source.path,
            format=FORMAT,
            offset=end,
        )
    return words, Word2VecMatrix(source, offsets[:n], dim)


class Word2VecMatrix(Streamed):
    """Rows of float32 with words between them."""

    def __init__(self, source: ByteSource, offsets: npt.NDArray[np.int64], dim: int) -> None:
        self.shape = (offsets.size, dim)
        self.dtype = np.dtype(np.float32)
        self._source = source
        self._offsets = offsets

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        n, nbytes = stop - start, 4 * self.shape[1]
        if not n:
            return np.empty((0, self.shape[1]), self.dtype)
        places = self._offsets[start:stop]
        base = int(places[0])
        data = self._source.read(base, int(places[-1]) + nbytes - base)
        rows = b"".join([data[place : place + nbytes] for place in (places - base).tolist()])
        return np.frombuffer(rows, "<f4").reshape(n, self.shape[1])
