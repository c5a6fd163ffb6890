"""Writing the word index of a file: FILE.embx, which covers its words and stored n-grams."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from embmap.progress import Progress, named
from embmap.words.index_file import write_index
from embmap.words.index_source import default_index_path
from embmap.words.vocabulary import Vocabulary
from embmap.words.word_index import WordIndex

__all__ = ["build_word_index"]


def build_word_index(
    vocabularies: Sequence[Vocabulary],
    file_path: Path,
    path: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Path:
    """Write one index over vocabularies of one file, and let them use it from now on.

    `file_path` holds the vectors; the words may come from another file, beside which the index is
    written unless `path` names another place.
    """
    if not any(map(len, vocabularies)):
        raise ValueError(f"{file_path} has no words to index")
    source = vocabularies[0].file
    if source.path is None:
        raise ValueError("words given in memory have no file that an index could belong to")
    target = cast(Path, default_index_path(source)) if path is None else path
    index = Path(os.fsdecode(target))
    for taken in (source.path, file_path):
        if index.exists() and index.samefile(taken):
            raise ValueError(f"{taken} holds the data; name another file for the index")
    tables = []

    def build() -> Iterator[WordIndex]:
        for words in vocabularies:
            noun = words.records.noun
            tables.append(words.finder.build(progress and named(progress, f"hashing {noun}s")))
            yield tables[-1]

    written = write_index(target, source, build())
    for words, table in zip(vocabularies, tables, strict=True):
        words.finder.adopt(table)
    return written
