"""The checks of words that ``verify()`` makes for all formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.progress import Progress
from embmap.report import Report
from embmap.words.records import scan
from embmap.words.repeats import find_repeats
from embmap.words.vocabulary import Vocabulary
from embmap.words.word_index import hash_words

__all__ = ["verify_words"]

_BLOCK = 1 << 15  # words between two calls of a progress callback
_MOST_REPEATS = 20


def verify_words(words: Vocabulary, report: Report, progress: Progress | None) -> None:
    """Check that words lie within their section, are UTF-8, and occur once each."""
    data, records, n = words.file, words.records, len(words)
    noun = records.noun
    hashes = np.empty(n, np.uint64)

    def scan_and_hash() -> npt.NDArray[Any]:
        starts = scan(data, records)
        for first, block in hash_words(data, records, starts):
            hashes[first : first + block.size] = block
            if progress is not None:
                progress(f"hashing {noun}s", first + block.size, n)
        return starts

    starts = report.attempt(scan_and_hash, what=f"{noun}s")
    if starts is None:
        return
    not_utf8 = []
    for row, word in words.encoded(starts=starts):
        try:
            word.decode()
        except UnicodeDecodeError as error:
            wrong = words.not_utf8(row, error, starts)
            report.error(str(wrong), wrong.offset)
            not_utf8.append(row)
        if progress is not None and ((row + 1) % _BLOCK == 0 or row + 1 == n):
            progress(f"checking {noun}s", row + 1, n)

    def encoded(rows: npt.NDArray[np.int64]) -> Iterator[bytes]:
        data.check_whole()
        begins = starts[rows].astype(np.int64) + (records.offset + records.prefix)
        ends = starts[rows + 1].astype(np.int64) + (records.offset - records.suffix)
        return map(data.fetch.__getitem__, map(slice, begins.tolist(), ends.tolist()))

    repeats, firsts = find_repeats(hashes, encoded)
    named = ~np.isin(repeats, not_utf8)
    repeats, firsts = repeats[named], firsts[named]
    shown = repeats[:_MOST_REPEATS]
    for row, first, word in zip(shown.tolist(), firsts.tolist(), encoded(shown), strict=False):
        report.error(f"{noun} {row}, {word.decode()!r}, repeats {noun} {first}")
    if repeats.size > _MOST_REPEATS:
        report.error(f"{repeats.size} {noun}s repeat an earlier {noun}; look-ups find the first")
