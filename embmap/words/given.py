"""The words of an open file, which contains them, gets them from the caller, or has none.

A caller gives a sequence, a text file with one word per line, or a word list in JSON: an object
with the words as ``vocab`` and, if it has any, the labels of time steps as ``years``.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from embmap.errors import FormatError, StaleIndexError
from embmap.io.backends import open_mapped
from embmap.io.mapping import Backend, BytesFile, ByteSource
from embmap.io.parsing import parse_json
from embmap.words.beside import check_words
from embmap.words.index_source import IndexChoice, IndexSource
from embmap.words.records import Records
from embmap.words.time_labels import TimeLabel, parse_labels
from embmap.words.vocabulary import Vocabulary

__all__ = ["Words", "read_labels", "read_words", "vocabulary_of", "words_of"]

Words = str | os.PathLike[str] | Sequence[str]
# An object begins with a brace and a key. A text of words may begin with the word "{".
_OBJECT = re.compile(rb'\s*\{\s*"[^"\n]*"\s*:')
_HEAD = 1 << 16  # bytes that show whether a file is JSON


def read_words(path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of a text file as words, empty ones included, or the words of a JSON list.

    A UTF-8 mark at the start and CR LF line ends are accepted. FormatError is raised at bytes that
    are not UTF-8.
    """
    file = Path(os.fsdecode(path))
    data = file.read_bytes()  # it may be a pipe, which cannot be mapped
    given = BytesFile(data)
    given.path = file
    listed = _read_json(given)
    if listed is not None:
        return listed[0]
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8: {error.reason}", path=path, offset=error.start) from None
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def read_labels(words: Words | None) -> tuple[TimeLabel, ...]:
    """Return the labels of time steps in a word list; () if it has none."""
    listed = _read_json(open_mapped(words)) if isinstance(words, str | os.PathLike) else None
    return () if listed is None else listed[1]


def _read_json(file: ByteSource) -> tuple[list[str], tuple[TimeLabel, ...]] | None:
    """Return the words and labels of a word list in JSON; None for any other file."""
    if not _OBJECT.match(_head_of(file)):
        return None

    def damaged(message: str) -> FormatError:
        return FormatError(message, path=file.path, format="word list")

    try:
        listed: Any = parse_json(file.read(0, file.nbytes).decode("utf-8-sig"))
    except ValueError as error:
        raise damaged(f"not JSON: {error}") from None
    words, labels = listed.get("vocab"), listed.get("years", [])
    if not isinstance(words, list) or not isinstance(labels, list):
        raise damaged("vocab must be a list of words, and years a list of labels, if there are any")
    for row, word in enumerate(words):
        if not isinstance(word, str) or _lacks_utf8(word):
            raise damaged(f"word {row} must be text, not {str(word)[:50]!r}")
    try:
        return words, parse_labels(labels)
    except ValueError as error:
        raise damaged(f"years: {error}") from None


def _head_of(file: ByteSource) -> bytes:
    """Return the first bytes of a file without a UTF-8 mark."""
    return file.read(0, min(file.nbytes, _HEAD)).removeprefix(codecs.BOM_UTF8)


def _lacks_utf8(word: str) -> bool:
    """Return whether UTF-8 cannot encode a word, because half of a surrogate pair is in it."""
    return any("\ud800" <= letter <= "\udfff" for letter in word)


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
    """Return a vocabulary of `n` words, from a file or from a sequence.

    Words beside `vectors` are checked against their digests.
    """
    given: ByteSource | None = None
    labels: tuple[TimeLabel, ...] = ()
    if isinstance(words, str | os.PathLike):
        lines = open_mapped(words, backend=backend)
        if vectors is not None:
            check_words(vectors, lines)
        listed = _read_json(lines)
        if listed is not None:
            (words, labels), given = listed, lines
    if isinstance(words, str | os.PathLike):
        head = lines.read(0, min(lines.nbytes, _HEAD))
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
    file = BytesFile(data, given)
    choice = "memory" if index == "auto" and given is None else index
    source = IndexSource(file, choice)
    return Vocabulary(file, Records(0, len(data), n, format), source, labels=labels)
