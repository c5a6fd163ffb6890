"""Records of a word and data of a fixed size, as word2vec and fastText write them."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.conversion.words import WordTable
from embmap.errors import FormatError, TruncatedError
from embmap.io.mapping import ByteSource

__all__ = ["words_before"]

_WINDOW = 1 << 20
_LONGEST = 1 << 16  # bytes of a word: looking further for its end is reading numbers


def words_before(
    file: ByteSource,
    offset: int,
    n: int,
    *,
    end: bytes,
    nbytes: int,
    format: str,
    strip: bytes = b"",
) -> tuple[WordTable, npt.NDArray[np.int64]]:
    """Step over records of a word, the byte that ends it, and data of a fixed size."""
    file.check_whole()
    if n * (1 + nbytes) > file.nbytes - offset:
        raise TruncatedError(
            f"{n} records of {1 + nbytes} bytes at least cannot fit into "
            f"{max(file.nbytes - offset, 0)} bytes",
            path=file.path,
            format=format,
            offset=offset,
        )
    words, ends = bytearray(), array("q")
    places, offsets = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    window, base = b"", offset
    position = offset
    for number in range(n):
        found = window.find(end, position - base)
        if found < 0 or found - (position - base) > _LONGEST:
            base = position
            window = file.read(base, min(max(_WINDOW, _LONGEST + 1), file.nbytes - base))
            found = window.find(end, 0, _LONGEST + 1)
        place = found + base
        if found < 0 or place + 1 + nbytes > file.nbytes:
            where: dict[str, Any] = {
                "path": file.path,
                "format": format,
                "offset": position,
                "field": f"word {number}",
            }
            if found < 0 and file.nbytes - position > _LONGEST:
                raise FormatError(f"no word of {_LONGEST} bytes or less stands here", **where)
            raise TruncatedError(f"the file ends within this record, one of {n}", **where)
        word = window[position - base : found].lstrip(strip)
        words += word
        ends.append(len(words))
        places[number] = place - len(word)
        offsets[number] = place + 1
        position = place + 1 + nbytes
    offsets[n] = position
    return WordTable(words, np.array(ends, np.int64), file, format, places), offsets
