"""Words with data of a fixed size between them, as word2vec and fastText write them."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, TruncatedError
from embmap.io.mapping import ByteSource
from embmap.words.table import WordTable

__all__ = ["step_over_words"]

_WINDOW = 1 << 20
_LONGEST = 1 << 16  # bytes of a word; a search for its end that goes further is among numbers


def step_over_words(
    source: ByteSource,
    offset: int,
    n: int,
    *,
    end: bytes,
    nbytes: int,
    format: str,
    strip: bytes = b"",
) -> tuple[WordTable, npt.NDArray[np.int64]]:
    """Step over `n` records: a word, the byte `end` that ends it, and `nbytes` bytes of data.

    `strip` lists bytes to remove from the start of each word. Returns the words, and the offsets of
    their data: shape (n + 1,), int64, the last of which is the end of the records.
    """
    source.check_whole()
    if n * (1 + nbytes) > source.nbytes - offset:
        raise TruncatedError(
            f"{n} records of at least {1 + nbytes} bytes cannot fit into "
            f"{max(source.nbytes - offset, 0)} bytes",
            path=source.path,
            format=format,
            offset=offset,
        )
    words, ends = bytearray(), array("q")
    starts, offsets = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    window, base = b"", offset
    position = offset
    for number in range(n):
        found = window.find(end, position - base)
        if found < 0 or found - (position - base) > _LONGEST:
            base = position
            window = source.read(base, min(max(_WINDOW, _LONGEST + 1), source.nbytes - base))
            found = window.find(end, 0, _LONGEST + 1)
        place = found + base
        if found < 0 or place + 1 + nbytes > source.nbytes:
            where: dict[str, Any] = {
                "path": source.path,
                "format": format,
                "offset": position,
                "field": f"word {number}",
            }
            if found < 0 and source.nbytes - position > _LONGEST:
                raise FormatError(f"no word of at most {_LONGEST} bytes was found", **where)
            raise TruncatedError(f"the file ends within this record, one of {n}", **where)
        word = window[position - base : found].lstrip(strip)
        words += word
        ends.append(len(words))
        starts[number] = place - len(word)
        offsets[number] = place + 1
        position = place + 1 + nbytes
    offsets[n] = position
    table = WordTable(words, np.array(ends, np.int64), source, format, offsets=starts)
    return table, offsets
