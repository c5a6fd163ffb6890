"""The checks of ``verify()`` that all formats share."""

from __future__ import annotations

import numpy as np

from embmap.progress import Progress, named
from embmap.report import Report
from embmap.words.vocabulary import Vocabulary

__all__ = ["verify_words"]

_BLOCK = 1 << 15
_MOST_LETTERS = 1 << 21
_MOST_REPEATS = 20
_NO_WORD = "\ud800"  # not valid UTF-8, so that no word of a file equals it


def verify_words(words: Vocabulary, report: Report, progress: Progress | None) -> None:
    """Check that all words are complete, valid UTF-8 and distinct."""
    noun, n = words.records.noun, len(words)
    hashing = None if progress is None else named(progress, f"hashing {noun}s")
    index = report.attempt(words.build, hashing, what=f"{noun}s")
    if index is None:
        return
    block: list[str] = []
    first = n_repeated = n_letters = 0
    for row, data in words.encoded(starts=index.starts):
        try:
            block.append(data.decode())
        except UnicodeDecodeError as error:
            wrong = words.not_utf8(row, error, index.starts)
            report.error(str(wrong), wrong.offset)
            block.append(_NO_WORD)
        n_letters += len(data)
        if len(block) == _BLOCK or n_letters > _MOST_LETTERS or row == n - 1:
            rows = index.find_many(block)
            repeated = np.flatnonzero((rows >= 0) & (rows != np.arange(first, row + 1)))
            for i in repeated[: max(_MOST_REPEATS - n_repeated, 0)].tolist():
                report.error(f"{noun} {first + i}, {block[i]!r}, repeats {noun} {rows[i]}")
            n_repeated += repeated.size
            first, block, n_letters = row + 1, [], 0
            if progress is not None:
                progress(f"checking {noun}s", first, n)
    if n_repeated > _MOST_REPEATS:
        report.error(f"{n_repeated} {noun}s repeat an earlier {noun}; look-ups find the first")
