"""Writing CVC files of all three versions.

The header comes first but depends on every chunk, so the chunks are written to a temporary file and
copied after the header. A chunk is encoded a few rows at a time, so that memory stays bounded for
any number of vectors and any size of chunks. The file gets its name only once it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.formats.cvc.header import DIALECTS
from embmap.formats.cvc.header_writer import add_to_header, check_metadata
from embmap.formats.cvc.layout import COMPRESSIONS, DTYPES, Section
from embmap.formats.cvc.payloads import ChunkSpool, encode, spool_chunks
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks, count_rows, rechunk, split_blocks
from embmap.vectors.matrix import Matrix

__all__ = [
    "COMPRESSIONS",
    "NO_BLOCK",
    "VECTORS",
    "add_chunks",
    "check_block",
    "check_compression",
    "check_compressions",
    "column_blocks",
    "describe",
    "write",
    "write_columns",
]

VECTORS = "vectors"  # the only column of versions 0.1 and 1.0
NO_BLOCK = "a column must have at least one block, for its dtype and width"
_WHAT = "writing rows"
_UNEQUAL = "columns must have the same number of rows"

Compression = str | Callable[[int, npt.NDArray[Any]], str]


def write(
    path: str | os.PathLike[str],
    vectors: Blocks,
    *,
    compression: Compression = "fp16",
    chunk_rows: int = 100_000,
    layout: str = "0.1",
    sections: Iterable[Section | Mapping[str, Any]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    chunk_metadata: Iterable[Mapping[str, Any]] | None = None,
    mmap_optimized: bool = False,
    allow_overflow: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a CVC file of one matrix.

    Parameters
    ----------
    path : path-like
        The file to create or replace; an existing file is kept until the new one is complete.
    vectors : array-like, Matrix or iterable of blocks
        Shape (rows, dim), or blocks of rows in order; floating point.
    compression : {"fp16", "int8", "lossless"} or callable
        How chunks are stored; lossless requires version 1.0. A callable chooses for each chunk: it
        is called as ``compression(number, chunk)``, which takes a whole chunk into memory.
    chunk_rows : int
        Number of rows in a chunk.
    layout : {"0.1", "1.0"}
        The version of the format; 1.0 adds checksums and lossless chunks.
    sections : iterable, optional
        Ranges of rows: :class:`Section` or mappings with ``start``, ``stop`` and ``metadata``.
    metadata : mapping, optional
        Further keys of the header, with values that JSON can represent.
    chunk_metadata : iterable of mapping, optional
        The metadata of each chunk, with values that JSON can represent.
    mmap_optimized : bool
        Whether every chunk starts on a page of 4096 bytes; requires version 1.0.
    allow_overflow : bool
        Whether fp16 stores numbers beyond 65504 as infinities; otherwise they raise ValueError.
    progress : callable, optional
        Called as ``progress(what, rows_done, total)``; total is 0 if it is not known.

    Returns
    -------
    pathlib.Path
        The new file.

    Raises
    ------
    ValueError
        If an argument is out of range or the vectors cannot be stored. An existing file is then
        left unchanged.
    OSError
        If the file cannot be written.
    """
    if layout not in ("0.1", "1.0"):
        raise ValueError(
            f"layout must be '0.1' or '1.0', not {layout!r}; write_columns writes '2.0'"
        )
    if mmap_optimized and layout != "1.0":
        raise ValueError(f"mmap_optimized requires the layout '1.0', not {layout!r}")
    default = check_compression(compression if isinstance(compression, str) else "fp16", layout)
    with spool_chunks(path, layout, aligned=mmap_optimized) as chunks:
        described = add_chunks(
            chunks,
            {VECTORS: map(check_block, split_blocks(vectors))},
            lambda _, block: {"dimension": block.shape[1], "compression": default},
            choose=None if isinstance(compression, str) else compression,
            chunk_rows=chunk_rows,
            chunk_metadata=chunk_metadata,
            allow_overflow=allow_overflow,
            progress=progress,
            total=count_rows(vectors),
        )
        header = {"num_vectors": chunks.n, "dimension": 0, "compression": default}
        if described:
            header["dimension"] = described[0]["dimension"]
        if mmap_optimized:
            header["mmap_optimized"] = True
        header["chunks"] = chunks.entries
        add_to_header(header, sections, metadata)
        chunks.finish(header)
    return Path(os.fsdecode(path))


def write_columns(
    path: str | os.PathLike[str],
    columns: Mapping[str, Blocks],
    *,
    compression: str | Mapping[str, str] = "none",
    chunk_rows: int = 100_000,
    sections: Iterable[Section | Mapping[str, Any]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    chunk_metadata: Iterable[Mapping[str, Any]] | None = None,
    allow_overflow: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a CVC file of version 2.0, which has columns of equal length.

    Parameters
    ----------
    path : path-like
        The file to create or replace; an existing file is kept until the new one is complete.
    columns : mapping
        From names to arrays of shape (rows,) or (rows, dim), matrices, or iterables of blocks of
        these shapes: float32, float16, int32, int64, int8 or uint8.
    compression : {"none", "fp16", "int8"} or mapping
        How all columns are stored, or a mapping from names of columns; the default is "none". Only
        float32 can be compressed.
    chunk_rows : int
        Number of rows in a chunk.
    sections : iterable, optional
        Ranges of rows: :class:`Section` or mappings with ``start``, ``stop`` and ``metadata``.
    metadata : mapping, optional
        Further keys of the header, with values that JSON can represent.
    chunk_metadata : iterable of mapping, optional
        The metadata of each chunk, with values that JSON can represent.
    allow_overflow : bool
        Whether fp16 stores numbers beyond 65504 as infinities; otherwise they raise ValueError.
    progress : callable, optional
        Called as ``progress(what, rows_done, total)``; total is 0 if it is not known.

    Returns
    -------
    pathlib.Path
        The new file.

    Raises
    ------
    ValueError
        If an argument is out of range or a column cannot be stored. An existing file is then left
        unchanged.
    OSError
        If the file cannot be written.
    """
    if not isinstance(columns, Mapping) or not columns:
        raise ValueError("columns must be a mapping with at least one column")
    check_compressions(compression, columns)
    with spool_chunks(path, "2.0") as chunks:
        described = add_chunks(
            chunks,
            {name: column_blocks(name, values) for name, values in columns.items()},
            partial(describe, compression=compression),
            chunk_rows=chunk_rows,
            chunk_metadata=chunk_metadata,
            allow_overflow=allow_overflow,
            progress=progress,
            total=max(map(count_rows, columns.values())),
        )
        if not described:
            raise ValueError(NO_BLOCK)
        header = {
            "format_type": "columnar",
            "num_vectors": chunks.n,
            "columns": described,
            "chunks": chunks.entries,
        }
        add_to_header(header, sections, metadata)
        chunks.finish(header)
    return Path(os.fsdecode(path))


def add_chunks(
    chunks: ChunkSpool,
    columns: Mapping[str, Iterator[npt.NDArray[Any]]],
    describe: Callable[[str, npt.NDArray[Any]], dict[str, Any]],
    *,
    choose: Callable[[int, npt.NDArray[Any]], str] | None = None,
    chunk_rows: int,
    chunk_metadata: Iterable[Mapping[str, Any]] | None,
    allow_overflow: bool,
    progress: Progress | None,
    total: int,
) -> list[dict[str, Any]]:
    """Add chunks of `chunk_rows` rows and return what `describe` returns for each column.

    `describe` is called with the name of a column and its first block.
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, not {chunk_rows}")
    is_columnar = chunks.dialect == "2.0"
    described: dict[str, dict[str, Any]] = {}
    n_before = chunks.n
    about = None if chunk_metadata is None else iter(chunk_metadata)
    for number, chunk in enumerate(_align_chunks(columns, chunk_rows)):
        with chunks.add() as (record, entry):
            parts: dict[str, Any] = {}
            rows = set()
            for name, pieces in chunk.items():
                if not number:
                    piece = next(pieces)
                    pieces = chain((piece,), pieces)
                    described[name] = describe(name, piece)
                compression = described[name]["compression"]
                if choose is not None:
                    whole = np.concatenate(list(pieces))
                    pieces = split_blocks(whole)
                    compression = check_compression(choose(number, whole), chunks.dialect)
                start = record.nbytes
                encoded = encode(
                    record,
                    pieces,
                    compression,
                    f"column {name!r}" if is_columnar else f"chunk {len(chunks.entries)}",
                    allow_overflow=allow_overflow,
                    held=chunks.held,
                )
                rows.add(encoded.rows)
                parts[name] = encoded.entry
                if is_columnar:
                    parts[name] |= {"offset": start, "size": record.nbytes - start}
            if len(rows) > 1:
                raise ValueError(_UNEQUAL)
            (entry["rows"],) = rows
            entry |= {"columns": parts} if is_columnar else parts[VECTORS]
            if about is not None and entry["rows"]:
                entry["metadata"] = check_metadata(next(about, None), f"chunk_metadata[{number}]")
        if progress is not None:
            progress(_WHAT, chunks.n - n_before, total)
    if about is not None and next(about, about) is not about:
        raise ValueError("chunk_metadata has more items than there are chunks")
    return list(described.values())


def _align_chunks(
    columns: Mapping[str, Iterator[npt.NDArray[Any]]], chunk_rows: int
) -> Iterator[dict[str, Iterator[npt.NDArray[Any]]]]:
    """Return the columns of each chunk as blocks of rows."""
    chunks = {name: rechunk(blocks, chunk_rows) for name, blocks in columns.items()}
    while True:
        taken = {name: next(blocks, None) for name, blocks in chunks.items()}
        chunk = {name: pieces for name, pieces in taken.items() if pieces is not None}
        if not chunk:
            return
        if len(chunk) != len(taken):
            raise ValueError(_UNEQUAL)
        yield chunk


def column_blocks(name: str, values: Blocks) -> Iterator[npt.NDArray[Any]]:
    """Return two-dimensional blocks; one-dimensional blocks get a width of 1."""
    if isinstance(values, list | tuple) and np.ndim(values[0] if values else 0) == 0:
        values = np.asarray(values)
    if isinstance(values, Matrix | list | tuple) or getattr(values, "ndim", 1) != 1:
        yield from split_blocks(values)
    elif hasattr(values, "__array__"):
        yield from split_blocks(np.asarray(values)[:, np.newaxis])
    else:
        for item in values:  # type: ignore[union-attr]
            block = np.asarray(item)
            if not block.ndim:
                raise ValueError(f"column {name!r}: blocks must be arrays, not {item!r:.80}")
            yield block[:, np.newaxis] if block.ndim == 1 else block


def describe(
    name: str, block: npt.NDArray[Any], compression: str | Mapping[str, str]
) -> dict[str, Any]:
    """Return the entry of a column in the header."""
    if block.dtype.name not in DTYPES:
        names = ", ".join(DTYPES)
        raise ValueError(f"column {name!r} must be one of {names}, not {block.dtype}")
    if not block.shape[1]:
        raise ValueError(f"column {name!r} must have at least one dimension")
    chosen = compression if isinstance(compression, str) else compression.get(name, "none")
    if chosen != "none" and block.dtype != np.float32:
        raise ValueError(f"column {name!r} must be float32 for {chosen}, not {block.dtype}")
    return {
        "name": name,
        "dimension": block.shape[1],
        "dtype": block.dtype.name,
        "compression": check_compression(chosen, "2.0"),
    }


def check_compressions(compression: str | Mapping[str, str], columns: Iterable[str]) -> None:
    """Raise ValueError if compressions, or names of columns, are not what they must be."""
    if not isinstance(compression, str | Mapping):
        raise ValueError("compression must be a name, or a mapping from columns to names")
    for name in compression if isinstance(compression, Mapping) else ():
        if name not in columns:
            raise ValueError(f"compression names {name!r}, which is not a column")
    for name in columns:
        if not isinstance(name, str):
            raise ValueError(f"the name of a column must be str, not {name!r}")


def check_compression(compression: str, dialect: str) -> str:
    """Return a compression if a version has it."""
    if compression not in COMPRESSIONS[dialect]:
        able = [each for each in DIALECTS if compression in COMPRESSIONS[each]]
        hint = f"; version {' or '.join(able)} does" if able else ""
        raise ValueError(f"version {dialect} has no compression {compression!r}{hint}")
    return compression


def check_block(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a block of vectors if a file of one matrix can hold it."""
    if block.dtype.kind != "f":
        raise ValueError(f"vectors must be floating point, not {block.dtype}")
    if block.ndim == 2 and len(block) and not block.shape[1]:
        raise ValueError("vectors must have at least one column")
    return block
