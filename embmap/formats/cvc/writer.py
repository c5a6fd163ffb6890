"""Writing CVC files of all three versions.

The header comes first but depends on every chunk, so the chunks are written to a temporary file and
copied after the header. A chunk is encoded a few rows at a time, so that memory stays bounded for
any number of vectors and any size of chunks. The file gets its name only once it is complete.
"""

from __future__ import annotations

import json
import operator
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from embmap.formats.cvc.header import DIALECTS, MAGIC
from embmap.formats.cvc.layout import COMPRESSIONS, DTYPES, KNOWN, Section
from embmap.formats.cvc.payloads import Record, encode
from embmap.io.atomic_write import replacing, spool_beside
from embmap.io.parsing import parse_json
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks, count_rows, rechunk, split_blocks
from embmap.vectors.matrix import Matrix

__all__ = ["COMPRESSIONS", "write", "write_columns"]

_COPY = 1 << 22
_PAGE = 4096
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
    header["compression"] = _allowed(default, layout)
    if mmap_optimized:
        header["mmap_optimized"] = True
    with replacing(path) as out, spool_beside(path) as spool, spool_beside(path) as held:
        encode_held = partial(encode, allow_overflow=allow_overflow, held=held)
        listed, n, total = [], 0, count_rows(vectors)
        for number, pieces in enumerate(_chunks(vectors, chunk_rows)):
            if not isinstance(compression, str):
                chunk = np.concatenate(list(pieces))
                pieces = split_blocks(chunk)
                default = _allowed(compression(number, chunk), layout)
            if mmap_optimized:
                spool.seek(_aligned(spool.tell()))
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
        _add_to_header(header, sections, metadata)
        _copy(out, spool, header, layout)
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
        _add_to_header(header, sections, metadata)
        _copy(out, spool, header, "2.0")
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
        "compression": _allowed(chosen, "2.0"),
    }


def _allowed(compression: str, dialect: str) -> str:
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


def _add_to_header(
    header: dict[str, Any],
    sections: Iterable[Section | Mapping[str, Any]] | None,
    metadata: Mapping[str, Any] | None,
) -> None:
    if sections is not None:
        header["sections"] = _sections(list(sections), header["num_vectors"])
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ValueError(f"metadata must be a mapping, not {type(metadata).__name__}")
    for key, value in (metadata or {}).items():
        if key in KNOWN:
            raise ValueError(f"the metadata must not contain {key!r}, a key of the format")
        header[key] = value


def _copy(out: BinaryIO, spool: BinaryIO, header: dict[str, Any], dialect: str) -> None:
    """Write the prelude, the header and the chunks."""
    prelude = MAGIC if dialect == "0.1" else MAGIC + struct.pack("<HH", int(dialect[0]), 0)
    start = 0
    if header.get("mmap_optimized"):
        # Reserve room for offsets of 20 digits; no offset in the finished header has more.
        most = [{**chunk, "file_offset": 10**19} for chunk in header["chunks"]]
        start = _aligned(len(prelude) + 4 + len(_json({**header, "chunks": most})))
        moved = [{**each, "file_offset": each["file_offset"] + start} for each in header["chunks"]]
        header["chunks"] = moved
    text = _json(header)
    out.write(prelude + struct.pack("<I", len(text)) + text)
    out.write(bytes(max(start - out.tell(), 0)) if header.get("chunks") else b"")
    spool.seek(0)
    shutil.copyfileobj(spool, out, _COPY)


def _json(header: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(header, allow_nan=False).encode()
        unchanged = parse_json(text) == _as_read(header)  # 1 and "1" are one key in JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata cannot be written as JSON: {error}") from None
    if not unchanged:
        raise ValueError("metadata must be the same when read from JSON; keys must be str")
    if len(text) >= 2**32:
        raise ValueError(
            f"the header must stay below 4 GiB, not {len(text)} bytes; chunk_rows must be larger"
        )
    return text


def _as_read(value: Any) -> Any:
    """Return a value as JSON gives it back if it can store it: with lists for tuples."""
    if isinstance(value, dict):
        return {key: _as_read(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_read(item) for item in value]
    return value


def _aligned(offset: int) -> int:
    """Return the start of the first page at or after an offset."""
    return -(-offset // _PAGE) * _PAGE


def _sections(sections: Sequence[Section | Mapping[str, Any]], n: int) -> list[dict[str, Any]]:
    written = []
    for section in sections:
        if isinstance(section, Section):
            given, about = (section.start, section.stop), section.metadata
        elif isinstance(section, Mapping) and "start" in section and "stop" in section:
            given = (section["start"], section["stop"])
            about = dict(section.get("metadata") or {})
        else:
            raise ValueError(f"a section must have start and stop, not {section!r:.80}")
        if any(isinstance(each, bool) or not hasattr(each, "__index__") for each in given):
            raise ValueError(f"start and stop of a section must be rows, not {given!r:.80}")
        start, stop = map(operator.index, given)
        if not 0 <= start <= stop <= n:
            raise ValueError(f"a section must lie in rows 0 to {n}, not {start} to {stop}")
        place = {"start_index": start, "end_index": stop, "num_vectors": stop - start}
        written.append({**place, "metadata": about})
    return written
