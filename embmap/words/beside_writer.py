"""Vectors and the text file with their words, written together; see :mod:`embmap.words.beside`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from embmap.io.atomic_write import Part, Together
from embmap.io.backends import open_mapped
from embmap.io.mapping import ByteSource
from embmap.words.beside import describe, digests_beside, exists, words_beside

__all__ = ["refuse_line_end", "with_words_beside"]

_BOM = "\ufeff"


def refuse_line_end(word: str) -> str | None:
    """Return why a text of one word per line cannot hold a word; None if it can."""
    if "\n" in word or word.endswith("\r"):
        return "holds the end of a line"
    return None


@contextlib.contextmanager
def with_words_beside(path: Path, words: Iterable[str] | None) -> Iterator[Part]:
    """Write vectors together with the text file that holds their words.

    Without words, an older text file beside the vectors is removed.
    """
    listed, digests = words_beside(path), digests_beside(path)
    stale = [each for each in (listed, digests) if exists(each)]
    with Together() as together:
        described = lines = None
        if words is not None or stale:
            # New digests are in place first: until all new files are, they refuse the old words.
            described = together.file(digests)
        if words is not None:
            lines = together.file(listed)
            with lines.open() as out:
                for number, word in enumerate(words):
                    # A reader takes a byte order mark at the start for the mark of UTF-8, so a
                    # first word that starts with one is written with a second.
                    mark = _BOM if number == 0 and word.startswith(_BOM) else ""
                    out.write(f"{mark}{word}\n".encode())
        elif listed in stale:
            together.remove(listed)
        vectors = together.file(path)
        yield vectors
        if described is not None:
            with described.open() as out:
                out.write(describe(_open(vectors), None if lines is None else _open(lines)))
        if words is None and stale:
            together.remove(digests)


def _open(part: Part) -> ByteSource:
    return open_mapped(part.written, backend="read")
