"""The words of an open file, which contains them, gets them from the caller, or has none."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from embmap.errors import FormatError, StaleIndexError
from embmap.io.backends import open_mapped
from embmap.io.mapping import Backend, BytesFile, ByteSource
from embmap.words.beside import check_words
from embmap.words.index_source import IndexChoice, IndexSource
from embmap.words.records import Records
from embmap.words.vocabulary import Vocabulary

__all__ = ["Words", "read_words", "vocabulary_of", "words_of"]

Words = str | os.PathLike[str] | Sequence[str]


def read_words(path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of a text file as words, empty ones included.

    A UTF-8 mark at the start and CR LF line ends are accepted. FormatError is raised at bytes that
    are not UTF-8.
    """
    try:
        text = Path(os.fsdecode(path)).read_bytes().decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8: {error.reason}", path=path, offset=error.start) from None
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def words_of(
    file: ByteSource,
    records: Records | None,
    given: Words | None,
    n_rows: int,
    format: str,
    index: IndexChoice,
) -> Vocabulary | None:
    """Return the vocabulary of a file that is being opened; None for a file without words.

    `records` are the words in the file, `given` the words that the caller passes.
    """
    if records is not None:
        if given is not None:
            raise ValueError(f"{file.path} has words of its own; vocab must be None")
        return Vocabulary(file, records, IndexSource(file, index))
    if given is not None:
        return vocabulary_of(
            given, n_rows, format, vectors=file, backend=cast(Backend, file.backend), index=index
        )
    if index not in ("auto", "memory"):
        raise StaleIndexError(f"{file.path} has no words, so index must be auto or memory")
    return None


def vocabulary_of(
    words: str | os.PathLike[str] | Sequence[str],
    n: int,
    format: str,
    *,
    vectors: ByteSource | None = None,
    backend: Backend = "mmap",
    index: IndexChoice = "auto",
) -> Vocabulary:
    """Return a vocabulary of `n` words, from a text file with a word a line or from a sequence.

    Words beside `vectors` are checked against their digests.
    """
    if isinstance(words, str | os.PathLike):
        lines = open_mapped(words, backend=backend)
        if vectors is not None:
            check_words(vectors, lines)
        head = lines.read(0, min(lines.nbytes, 1 << 16))
        start = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
        crlf = head[: head.find(b"\n") + 1].endswith(b"\r\n")
        records = Records(
            start, lines.nbytes, n, format, prefix=0, suffix=2 if crlf else 1, exact=False
        )
        return Vocabulary(lines, records, IndexSource(lines, index))
    if isinstance(words, bytes | set | frozenset | dict) or not hasattr(words, "__len__"):
        raise TypeError(f"vocab must be a path or a sequence of words, not {type(words).__name__}")
    if len(words) != n:
        raise ValueError(f"{len(words)} words were given for {n} rows")
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"a word is a str, not {type(word).__name__}")
    encoded = [word.encode() for word in words]
    data = b"".join(len(word).to_bytes(4, "little") + word for word in encoded)
    file = BytesFile(data)
    choice = "memory" if index == "auto" else index
    return Vocabulary(file, Records(0, len(data), n, format), IndexSource(file, choice))
