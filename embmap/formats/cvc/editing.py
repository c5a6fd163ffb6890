"""Changing a CVC file: appending rows; adding, replacing, renaming and dropping columns.

A change writes a new file, into which it copies the stored payloads, and replaces the old file only
once the new one is complete. Programs that have the old file open keep its bytes. The words beside
the file are written with it, so that their digests match.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import EmbmapError
from embmap.formats.cvc.file import CvcFile
from embmap.formats.cvc.header_writer import check_metadata
from embmap.formats.cvc.layout import Column
from embmap.formats.cvc.payloads import ChunkSpool
from embmap.formats.cvc.rewriting import Rewriting, Target
from embmap.formats.cvc.writer import (
    NO_BLOCK,
    add_chunks,
    check_block,
    check_compressions,
    column_blocks,
    describe,
)
from embmap.io.atomic_write import Part
from embmap.io.backends import open_mapped
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks, count_rows, split_blocks
from embmap.words.beside import find_words, words_beside
from embmap.words.beside_writer import refuse_line_end, with_words_beside
from embmap.words.given import Words, read_words

__all__ = ["append", "edit_columns"]


def append(
    path: str | os.PathLike[str],
    rows: Blocks | Mapping[str, Blocks],
    *,
    words: Words | None = None,
    section: Mapping[str, Any] | None = None,
    chunk_rows: int = 100_000,
    chunk_metadata: Iterable[Mapping[str, Any]] | None = None,
    allow_overflow: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Append rows to a CVC file, which keeps its version.

    The rows become new chunks in the default compressions of the file; stored chunks are copied as
    they are. Every call copies the file, so many rows should be appended at once.

    Parameters
    ----------
    path : path-like
        The file to replace; it is kept until the new one is complete.
    rows : array-like, Matrix, iterable of blocks or mapping
        Shape (rows, dim), or blocks of rows in order; floating point. For a file of several
        columns, a mapping with rows for each column, as for :func:`write_columns`.
    words : path-like or sequence of str, optional
        A word for each new row: a text file with one word per line, or the words. Required if
        ``FILE.words.txt`` is beside the file, which is replaced as well.
    section : mapping, optional
        Metadata of a section that consists of the new rows.
    chunk_rows : int
        Number of rows in a new chunk.
    chunk_metadata : iterable of mapping, optional
        The metadata of each new chunk, with values that JSON can represent.
    allow_overflow : bool
        Whether fp16 stores numbers beyond 65504 as infinities; otherwise they raise ValueError.
    progress : callable, optional
        Called as ``progress(what, rows_done, total)``; total is 0 if it is not known.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If the rows or words do not fit the file, or an argument is out of range. The file is then
        left unchanged.
    EmbmapError
        If the file is damaged, is not a CVC file, has other words beside it than it was written
        with, or is replaced by another program meanwhile.
    OSError
        If the file cannot be read or written.
    """
    new_words = None if words is None else _list_words(words)
    if section is not None:
        section = check_metadata(section, "section")
    with _replacing(Path(os.fsdecode(path)), new_words, needs_words=True) as (file, target):
        for error in file._offsets.unreadable.values():
            raise copy(error)
        columns = {column.name: column for column in file._offsets.columns}
        is_columnar = file.layout == "2.0"
        if not isinstance(rows, Mapping) and len(columns) == 1:
            rows = dict.fromkeys(columns, rows)
        if not isinstance(rows, Mapping) or rows.keys() != columns.keys():
            found = f", not {', '.join(map(str, rows))}" if isinstance(rows, Mapping) else ""
            raise ValueError(f"rows must be given for the columns {', '.join(columns)}{found}")

        def describe_more(name: str, block: npt.NDArray[Any]) -> dict[str, Any]:
            return _describe_more(columns[name], block, is_columnar=is_columnar)

        def add(chunks: ChunkSpool) -> Sequence[Mapping[str, Any]]:
            blocks = {
                name: column_blocks(name, rows[name])
                if is_columnar
                else map(check_block, split_blocks(rows[name]))
                for name in columns
            }
            described = add_chunks(
                chunks,
                blocks,
                describe_more,
                chunk_rows=chunk_rows,
                chunk_metadata=chunk_metadata,
                allow_overflow=allow_overflow,
                progress=progress,
                total=max(map(count_rows, rows.values())),
            )
            n = chunks.n - len(file)
            if new_words is not None and len(new_words) != n:
                raise ValueError(f"{len(new_words)} words were given for {n} rows")
            return described

        Rewriting(
            source=file._file,
            layout=file._offsets,
            matrices=file._columns,
            columns=[Target(name=name, stored=file._columns[name]) for name in columns],
            append=add,
            section=section,
            progress=progress,
        ).write(target)
    return Path(os.fsdecode(path))


def edit_columns(
    path: str | os.PathLike[str],
    *,
    add: Mapping[str, Blocks] | None = None,
    replace: Mapping[str, Blocks] | None = None,
    rename: Mapping[str, str] | None = None,
    drop: Collection[str] = (),
    compression: str | Mapping[str, str] | None = None,
    allow_overflow: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Add, replace, rename and drop columns of a CVC file of version 2.0, all in one go.

    What is stored of other columns is copied as it is. Sections and metadata are kept. A file of
    version 0.1 or 1.0 has one matrix and no columns; `embmap.convert` with ``output_layout="2.0"``
    turns it into a file with the column "vectors".

    Parameters
    ----------
    path : path-like
        The file to replace; it is kept until the new one is complete.
    add : mapping, optional
        From names of new columns, which follow the others, to what :func:`write_columns` takes,
        with as many rows as the file has.
    replace : mapping, optional
        The same for columns that the file has. Dtypes and dimensions may differ from the old ones.
    rename : mapping, optional
        From old names to new names.
    drop : collection of str
        Names of columns to leave out. One column must remain.
    compression : {"none", "fp16", "int8"} or mapping, optional
        How columns in `add` and `replace` are stored: for all of them, or by name. By default, new
        columns are stored as "none", and others keep the compression of their column.
    allow_overflow : bool
        Whether fp16 stores numbers beyond 65504 as infinities; otherwise they raise ValueError.
    progress : callable, optional
        Called as ``progress(what, rows_done, total)``.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If the file is of another version, a name does not exist, exists already or is given
        twice, no column would remain, or a column cannot be stored. The file is then left
        unchanged.
    EmbmapError
        If the file is damaged, is not a CVC file, has other words beside it than it was written
        with, or is replaced by another program meanwhile.
    OSError
        If the file cannot be read or written.
    """
    add, replace, rename = dict(add or {}), dict(replace or {}), dict(rename or {})
    if isinstance(drop, str):
        raise ValueError(f"drop must be a collection of names, not {drop!r}")
    compression = {} if compression is None else compression
    check_compressions(compression, {**add, **replace})
    with _replacing(Path(os.fsdecode(path))) as (file, target):
        layout = file._offsets
        if layout.dialect != "2.0":
            raise ValueError(
                f"{path} is of version {layout.dialect}, which has one matrix and no columns; "
                "convert it with output_layout='2.0' first"
            )
        _check_names(
            [*file._columns, *layout.unreadable],
            add=add,
            rename=rename,
            drop=drop,
            changed=(*replace, *rename, *drop),
        )

        def choose(name: str, default: str) -> str:
            chosen = compression if isinstance(compression, str) else compression.get(name)
            return chosen or default

        def make(name: str, values: Blocks, chosen: str, **stored: Any) -> Target:
            n = count_rows(values)
            if n not in (0, len(file)):
                raise ValueError(f"column {name!r} must have {len(file)} rows, not {n}")
            blocks = column_blocks(name, values)
            first = next(blocks, None)
            if first is None:
                raise ValueError(NO_BLOCK)
            return Target(
                name=name,
                values=chain((first,), blocks),
                described=describe(name, first, compression=chosen),
                compression=chosen,
                **stored,
            )

        targets = []
        for name, matrix in file._columns.items():
            if name in replace:
                chosen = choose(name, matrix.column.compression)
                targets.append(make(name, replace[name], chosen, stored=matrix))
            elif name not in drop:
                targets.append(Target(name=rename.get(name, name), stored=matrix))
        targets += [make(name, values, choose(name, "none")) for name, values in add.items()]
        unreadable = {name: error for name, error in layout.unreadable.items() if name not in drop}
        plan = Rewriting(
            source=file._file,
            layout=layout,
            matrices=file._columns,
            columns=targets,
            keeps_unreadable=len(unreadable) == len(layout.unreadable),
            allow_overflow=allow_overflow,
            progress=progress,
        )
        for name, error in unreadable.items():
            # Only whole payloads can be copied with a part of them that cannot be read.
            if name in rename or not plan.is_verbatim:
                raise copy(error)
        plan.write(target)
    return Path(os.fsdecode(path))


@contextlib.contextmanager
def _replacing(
    path: Path, words: Sequence[str] | None = None, *, needs_words: bool = False
) -> Iterator[tuple[CvcFile, Part]]:
    """Open a file and its replacement; `words` follow the words beside the file.

    With `needs_words`, they are required if there are words beside the file.
    """
    data = open_mapped(path)
    with CvcFile(data, vocab=find_words(data)) as file:
        old = file.vocab
        if old is not None and words is None and needs_words:
            raise ValueError(f"{words_beside(path)} has a word for each row; give words as well")
        if old is None and words is not None and len(file):
            raise ValueError(f"the rows of {path} have no words, so words must be None")
        every = None if old is None and words is None else chain(old or (), words or ())
        with with_words_beside(path, every) as target:
            yield file, target
            now = open_mapped(path)
            if (now.identity, now.mtime_ns) != (data.identity, data.mtime_ns):
                raise EmbmapError(
                    f"{path} was replaced by another program meanwhile and is left as it is; "
                    "try again"
                )


def _list_words(words: Words) -> list[str]:
    """Return words that a text of one word per line can hold."""
    listed = read_words(words) if isinstance(words, str | os.PathLike) else list(words)
    for word in listed:
        if not isinstance(word, str):
            raise TypeError(f"a word is a str, not {type(word).__name__}")
        reason = refuse_line_end(word)
        if reason is not None:
            raise ValueError(f"{word[:50]!r} {reason}")
    return listed


def _describe_more(column: Column, block: npt.NDArray[Any], *, is_columnar: bool) -> dict[str, Any]:
    """Return the entry of a column if a block of new rows fits it."""
    what = f"column {column.name!r}" if is_columnar else "rows"
    n = block.shape[1]
    # A file of one matrix may have no dimension as long as it has no rows.
    if n != column.dimension and (is_columnar or column.dimension):
        raise ValueError(f"{what} must have {column.dimension} dimensions as in the file, not {n}")
    if not is_columnar:
        return {"dimension": n, "compression": column.compression}
    dtype = np.dtype(column.dtype)
    if column.compression == "none" and block.dtype != dtype:
        raise ValueError(f"{what} must be {dtype} as in the file, not {block.dtype}")
    return describe(column.name, block, compression=column.compression)


def _check_names(
    names: Collection[str],
    *,
    add: Iterable[str],
    rename: Mapping[str, str],
    drop: Collection[str],
    changed: Iterable[str],
) -> None:
    """Raise ValueError for a column that does not exist, or exists twice after the changes."""
    for name, n in Counter(changed).items():
        if name not in names:
            raise ValueError(f"there is no column {name!r}; the file has {', '.join(names)}")
        if n > 1:
            raise ValueError(f"column {name!r} is to be changed in {n} ways")
    after = [rename.get(name, name) for name in names if name not in drop]
    for name, n in Counter((*after, *add)).items():
        if not isinstance(name, str):
            raise ValueError(f"the name of a column must be str, not {name!r}")
        if n > 1:
            raise ValueError(f"the file has a column {name!r} already")
    if names and not after:
        raise ValueError("one column of the file must remain")
