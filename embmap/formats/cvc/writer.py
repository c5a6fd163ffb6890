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
from embmap.formats.cvc.header_writer import add_to_header, align, write_with_header
from embmap.formats.cvc.layout import COMPRESSIONS, DTYPES, Section
from embmap.formats.cvc.payloads import Record, encode
from embmap.io.atomic_write import replacing, spool_beside
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks, count_rows, rechunk, split_blocks
from embmap.vectors.matrix import Matrix

__all__ = ["COMPRESSIONS", "check_compression", "write", "write_columns"]

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
    header: dict[str, Any] = {"num_vectors": 0, "dimension": 0}
    default = compression if isinstance(compression, str) else "fp16"
    header["compression"] = check_compression(default, layout)
    if mmap_optimized:
        header["mmap_optimized"] = True
    with replacing(path) as out, spool_beside(path) as spool, spool_beside(path) as held:
        encode_held = partial(encode, allow_overflow=allow_overflow, held=held)
        listed, n, total = [], 0, count_rows(vectors)
        for number, pieces in enumerate(_chunks(vectors, chunk_rows)):
            if not isinstance(compression, str):
                chunk = np.concatenate(list(pieces))
                pieces = split_blocks(chunk)
                default = check_compression(compression(number, chunk), layout)
            if mmap_optimized:
                spool.seek(align(spool.tell()))
            start = spool.tell()
            record = Record(spool, layout)
            encoded = encode_held(record, pieces, default, f"chunk {number}")
            record.end()
            header["dimension"] = encoded.columns
            if encoded.rows:
                if mmap_optimized:
                    encoded.entry["file_offset"] = start  # the size of the header is added later
                listed.append({"rows": encoded.rows, **encoded.entry})
            n += encoded.rows
            if progress is not None:
                progress(_WHAT, n, total)
        if not n:
            spool.truncate(0)  # chunks without rows are not stored
        header |= {"num_vectors": n, "chunks": listed}
        add_to_header(header, sections, metadata)
        write_with_header(out, spool, header, layout)
    return Path(os.fsdecode(path))


def write_columns(
    path: str | os.PathLike[str],
    columns: Mapping[str, Blocks],
    *,
    compression: str | Mapping[str, str] = "none",
    chunk_rows: int = 100_000,
    sections: Iterable[Section | Mapping[str, Any]] | None = None,
    metadata: Mapping[str, Any] | None = None,
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
    if not isinstance(compression, str | Mapping):
        raise ValueError("compression must be a name, or a mapping from columns to names")
    for name in columns if isinstance(compression, str) else {**columns, **compression}:
        if not isinstance(name, str):
            raise ValueError(f"the name of a column must be str, not {name!r}")
        if name not in columns:
            raise ValueError(f"compression names {name!r}, which is not a column")
    lengths = {count_rows(values) for values in columns.values()}
    n = 0
    described: list[dict[str, Any]] = []
    with replacing(path) as out, spool_beside(path) as spool, spool_beside(path) as held:
        encode_held = partial(encode, allow_overflow=allow_overflow, held=held)
        listed = []
        for chunk in _column_chunks(columns, chunk_rows):
            record = Record(spool, "2.0")
            entries: dict[str, Any] = {}
            rows = set()
            first = not described
            for number, (name, pieces) in enumerate(chunk.items()):
                if first:
                    piece = next(pieces)
                    pieces = chain((piece,), pieces)
                    described.append(_described(name, piece, compression))
                start = record.nbytes
                chosen = described[number]["compression"]
                encoded = encode_held(record, pieces, chosen, f"column {name!r}")
                rows.add(encoded.rows)
                entries[name] = {**encoded.entry, "offset": start, "size": record.nbytes - start}
            record.end()
            if len(rows) > 1:
                raise ValueError(_UNEQUAL)
            (n_more,) = rows
            if n_more:
                listed.append({"rows": n_more, "columns": entries})
            n += n_more
            if progress is not None:
                progress(_WHAT, n, max(lengths))
        if not n:
            spool.truncate(0)  # chunks without rows are not stored
        if not described:
            raise ValueError("a column must have at least one block, for its dtype and width")
        header = {
            "format_type": "columnar",
            "num_vectors": n,
            "columns": described,
            "chunks": listed,
        }
        add_to_header(header, sections, metadata)
        write_with_header(out, spool, header, "2.0")
    return Path(os.fsdecode(path))


def _column_chunks(
    columns: Mapping[str, Blocks], chunk_rows: int
) -> Iterator[dict[str, Iterator[npt.NDArray[Any]]]]:
    """Return the columns of each chunk as blocks of rows."""
    _check_chunk_rows(chunk_rows)
    chunks = {
        name: rechunk(_column_blocks(name, values), chunk_rows) for name, values in columns.items()
    }
    while True:
        taken = {name: next(blocks, None) for name, blocks in chunks.items()}
        chunk = {name: pieces for name, pieces in taken.items() if pieces is not None}
        if not chunk:
            return
        if len(chunk) != len(taken):
            raise ValueError(_UNEQUAL)
        yield chunk


def _column_blocks(name: str, values: Blocks) -> Iterator[npt.NDArray[Any]]:
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


def _described(
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


def check_compression(compression: str, dialect: str) -> str:
    """Return a compression if a version has it."""
    if compression not in COMPRESSIONS[dialect]:
        able = [each for each in DIALECTS if compression in COMPRESSIONS[each]]
        hint = f"; version {' or '.join(able)} does" if able else ""
        raise ValueError(f"version {dialect} has no compression {compression!r}{hint}")
    return compression


def _chunks(vectors: Blocks, chunk_rows: int) -> Iterator[Iterator[npt.NDArray[Any]]]:
    _check_chunk_rows(chunk_rows)
    return rechunk(map(_check_block, split_blocks(vectors)), chunk_rows)


def _check_chunk_rows(chunk_rows: int) -> None:
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, not {chunk_rows}")


def _check_block(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if block.dtype.kind != "f":
        raise ValueError(f"vectors must be floating point, not {block.dtype}")
    if block.ndim == 2 and len(block) and not block.shape[1]:
        raise ValueError("vectors must have at least one column")
    return block
