"""Which words of an input are converted.

Words that are not UTF-8, that repeat, or that the output cannot hold are treated here, in the same
way for every pair of formats.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from embmap.words.repeats import find_repeats
from embmap.words.table import WordTable

__all__ = ["Chosen", "choose"]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The words that are converted, and how many were left out and why.

    Attributes
    ----------
    rows : numpy.ndarray
        Shape (n,), int64: the rows of the words in the input, ascending.
    is_changed : bool
        Whether bytes that are not UTF-8 were replaced.
    """

    words: WordTable
    rows: npt.NDArray[np.int64]
    n_duplicates: int
    n_dropped: int
    n_missing: int
    is_changed: bool = False


def choose(
    table: WordTable,
    *,
    wanted: Iterable[str] | None = None,
    refuse: Callable[[str], str | None],
    lossy: bool = False,
    keep_repeats: bool = False,
) -> Chosen:
    """Choose the words to convert: the first of equal words, of `wanted` if that is given.

    With `keep_repeats`, all of equal words are chosen.
    `refuse` returns why the output cannot hold a word, or None. Such words and words that are not
    UTF-8 raise FormatError unless `lossy` is true.
    """
    asked = None if wanted is None else set(wanted)
    data, ends, rows, hashes = bytearray(), array("q"), array("q"), array("Q")
    n_dropped, is_changed = 0, False
    for row, encoded in enumerate(table.encoded()):
        try:
            word = encoded.decode()
        except UnicodeDecodeError as error:
            if not lossy:
                raise table.not_utf8(row, error) from None
            word = encoded.decode(errors="replace")
            encoded, is_changed = word.encode(), True
        if asked is not None and word not in asked:
            continue
        reason = refuse(word)
        if reason is not None:
            if not lossy:
                raise table.error(
                    row, f"{word[:50]!r} {reason}; lossy conversion leaves such words out"
                )
            n_dropped += 1
            continue
        data += encoded
        ends.append(len(data))
        rows.append(row)
        hashes.append(xxh3_64_intdigest(encoded))
    found = WordTable(data, np.array(ends, np.int64), table.source, table.format)
    numbers = np.array(rows, np.int64)
    repeats, _ = find_repeats(
        np.array(hashes, np.uint64), lambda suspects: found.select(suspects).encoded()
    )
    n_missing = 0
    if repeats.size and not keep_repeats:
        firsts = np.delete(np.arange(len(found)), repeats)
        found, numbers = found.select(firsts), numbers[firsts]
    if asked is not None:
        n_missing = len(asked) - len(found) - n_dropped
    return Chosen(
        words=found,
        rows=numbers,
        n_duplicates=0 if keep_repeats else int(repeats.size),
        n_dropped=n_dropped,
        n_missing=max(n_missing, 0),
        is_changed=is_changed,
    )
