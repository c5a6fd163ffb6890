"""word2vec's binary form: a line of sizes, then words and their float32 numbers by turns."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.conversion.rows import Streamed
from embmap.conversion.word_records import words_before
from embmap.conversion.words import WordTable
from embmap.errors import FormatError
from embmap.io.mapping import ByteSource

__all__ = ["Word2VecMatrix", "read_sizes", "read_word2vec"]

FORMAT = "word2vec"
_SIZES = re.compile(rb"[ \t]*(\d{1,18})[ \t]+(\d{1,9})[ \t]*\r?\n")


def read_sizes(file: ByteSource) -> tuple[int, int, int] | None:
    """Return what the first line of a word2vec file states."""
    found = _SIZES.match(file.read(0, min(64, file.nbytes)))
    return None if found is None else (int(found[1]), int(found[2]), found.end())


def read_word2vec(
    file: ByteSource, *, limit: int | None = None
) -> tuple[WordTable, Word2VecMatrix]:
    """Find the words of a binary word2vec file and where their numbers are."""
    sizes = read_sizes(file)
    if sizes is None or sizes[1] < 1:
        raise FormatError(
            "the first line of a word2vec file states the number of words and of their numbers",
            path=file.path,
            format=FORMAT,
            offset=0,
            found=file.read(0, min(40, file.nbytes)),
        )
    stated, dim, offset = sizes
    n = stated if limit is None else min(limit, stated)
    words, offsets = words_before(
        file, offset, n, end=b" ", nbytes=4 * dim, format=FORMAT, strip=b"\n"
    )
    end = int(offsets[n])
    rest = file.read(end, min(16, file.nbytes - end)) if n == stated else b""
    if rest.strip(b"\r\n"):
        raise FormatError(
            f"{stated} words end here, but {file.nbytes - end} bytes follow",
            path=file.path,
            format=FORMAT,
            offset=end,
        )
    return words, Word2VecMatrix(file, offsets[:n], dim)


class Word2VecMatrix(Streamed):
    """Rows of float32 with words between them."""

    def __init__(self, file: ByteSource, offsets: npt.NDArray[np.int64], dim: int) -> None:
        self.shape = (offsets.size, dim)
        self.dtype = np.dtype(np.float32)
        self._file = file
        self._offsets = offsets

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        n, nbytes = stop - start, 4 * self.shape[1]
        if not n:
            return np.empty((0, self.shape[1]), self.dtype)
        places = self._offsets[start:stop]
        base = int(places[0])
        data = self._file.read(base, int(places[-1]) + nbytes - base)
        rows = b"".join([data[place : place + nbytes] for place in (places - base).tolist()])
        return np.frombuffer(rows, "<f4").reshape(n, self.shape[1])
