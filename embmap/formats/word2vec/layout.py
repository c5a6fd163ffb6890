"""The layout of word2vec's binary files: a line of sizes, then words and float32 rows by turns.

The original writes a newline after each row (the dialect "newlines"), and gensim writes none
("plain"). The byte after the first row decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from embmap.errors import FormatError, TruncatedError
from embmap.io.mapping import ByteSource
from embmap.words.records import Records

__all__ = ["DIALECTS", "FORMAT", "Word2VecLayout", "parse", "read_sizes"]

FORMAT = "word2vec"
DIALECTS = ("newlines", "plain")
_SIZES = re.compile(rb"[ \t]*(\d{1,18})[ \t]+(\d{1,9})[ \t]*\r?\n")
_LONGEST = 1 << 16  # bytes of the first word


@dataclass(frozen=True)
class Word2VecLayout:
    """The words, and the length of the row of float32 that follows each and a space."""

    dialect: str
    words: Records
    dim: int


def read_sizes(source: ByteSource) -> tuple[int, int, int] | None:
    """Return the number of words, the dimension and the length of the first line, or None."""
    found = _SIZES.match(source.read(0, min(64, source.nbytes)))
    return None if found is None else (int(found[1]), int(found[2]), found.end())


def parse(source: ByteSource, dialect: str | None = None) -> Word2VecLayout:
    """Parse the first line, and look for a newline after the first row."""
    sizes = read_sizes(source)
    if sizes is None or sizes[1] < 1:
        raise FormatError(
            "the first line of a word2vec file must state the number of words and the dimension",
            path=source.path,
            format=FORMAT,
            offset=0,
            found=source.read(0, min(40, source.nbytes)),
        )
    n, dim, offset = sizes
    nbytes = 4 * dim
    if n * (1 + nbytes) > source.nbytes - offset:
        raise TruncatedError(
            f"{n} words and rows of {nbytes} bytes cannot fit into {source.nbytes - offset} bytes",
            path=source.path,
            format=FORMAT,
            offset=offset,
        )
    if dialect is None:
        start = source.read(offset, min(_LONGEST, source.nbytes - offset))
        end = offset + start.find(b" ") + 1 + nbytes  # without a space, a scan says what is wrong
        follows = source.read(end, min(1, max(source.nbytes - end, 0))) if n else b""
        dialect = "newlines" if follows == b"\n" else "plain"
    n_newlines = int(dialect == "newlines")
    words = Records(
        offset,
        source.nbytes,
        n,
        FORMAT,
        prefix=0,
        suffix=1 + nbytes + n_newlines,
        exact=False,
        end=b" ",
        newlines=n_newlines,
    )
    return Word2VecLayout(dialect, words, dim)
