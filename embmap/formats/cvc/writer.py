"""Writing CVC files of all three versions.

The header stands first but depends on every chunk, so the chunks are spooled to a temporary file
and copied behind the header. A chunk is encoded a few rows at a time; what int8 and lossless need
its rows for again is kept in a second temporary file. So memory stays bounded whatever number of
vectors comes and however many rows a chunk has, and the file appears under its name only once it
is whole.
"""

from __future__ import annotations

import json
import operator
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from embmap.formats.cvc.layout import DTYPES, KNOWN, MAGIC, VERSIONS, Section
from embmap.formats.cvc.payloads import Record, encode
from embmap.io.atomic_write import replacing, spool_beside
from embmap.io.parsing import parse_json
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks, blocks_of, n_rows, rechunked
from embmap.vectors.matrix import Matrix

__all__ = ["COMPRESSIONS", "write", "write_columns"]

COMPRESSIONS = {
    "0.1": ("fp16", "int8"),
    "1.0": ("fp16", "int8", "lossless"),
    "2.0": ("fp16", "int8", "none"),
}
_COPY = 1 << 22
_PAGE = 4096
_WHAT = "writing rows"
_UNEQUAL = "columns must be of the same length; these are not"

Compression = str | Callable[[int, npt.NDArray[Any]], str]


def write(
    path: str | os.PathLike[str],
    vectors: Blocks,
    *,
    compression: Compression = "fp16",
    chunk_rows: int = 100_000,
    version: str = "0.1",
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
        The file to create or replace; it is replaced only when everything has been written.
    vectors : array-like, Matrix or iterable of blocks
        Shape (rows, dim), or blocks of rows in order; floating point.
    compression : {"fp16", "int8", "lossless"} or callable
        How chunks are stored, or ``compression(number, chunk)`` to choose for each, which takes a
        whole chunk into memory. Version 0.1 has no lossless.
    chunk_rows : int
        Rows of a chunk.
    version : {"0.1", "1.0"}
        1.0 has checksums and lossless chunks.
    sections : iterable, optional
        Ranges of rows: ``start``, ``stop`` and ``metadata`` of each.
    metadata : mapping, optional
        Further keys of the header, JSON-able.
    mmap_optimized : bool
        Let every chunk start on a page of 4096 bytes; version 1.0 only.
    allow_overflow : bool
        Let fp16 store numbers beyond 65504 as infinities instead of refusing them.
    progress : callable, optional
        Called as ``progress(what, rows_done, total)``; total is 0 when it is not known.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    ValueError
        When something does not fit; the old file, if there was one, is left as it was.
    OSError
        When the file cannot be written.
    """
    if version not in ("0.1", "1.0"):
        raise ValueError(f"version must be '0.1' or '1.0', not {version!r}; columns are 2.0")
    if mmap_optimized and version != "1.0":
        raise ValueError(f"version {version} has no mmap_optimized; version 1.0 does")
    header: dict[str, Any] = {"num_vectors": 0, "dimension": 0}
    default = compression if isinstance(compression, str) else "fp16"
    header["compression"] = _allowed(default, version)
    if mmap_optimized:
        header["mmap_optimized"] = True
    with replacing(path) as out, spool_beside(path) as spool, spool_beside(path) as held:
        listed, n, total = [], 0, n_rows(vectors)
        for number, pieces in enumerate(_chunks(vectors, chunk_rows)):
            if not isinstance(compression, str):
                chunk = np.concatenate(list(pieces))
                pieces = blocks_of(chunk)
                default = _allowed(compression(number, chunk), version)
            if mmap_optimized:
                spool.seek(_aligned(spool.tell()))
            start = spool.tell()
            record = Record(spool, version)
            encoded = encode(
                record,
                pieces,
                default,
                f"chunk {number}",
                allow_overflow=allow_overflow,
                held=held,
            )
            record.end()
            header["dimension"] = encoded.columns
            if encoded.rows:
                if mmap_optimized:
                    encoded.entry["file_offset"] = start  # behind the header, not known yet
                listed.append({"rows": encoded.rows, **encoded.entry})
            n += encoded.rows
            if progress is not None:
                progress(_WHAT, n, total)
        if not n:
            spool.truncate(0)  # a chunk without rows is not stored
        header |= {"num_vectors": n, "chunks": listed}
        _finish(out, spool, header, version, sections, metadata)
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
    """Write a CVC file of version 2.0: columns of equal length.

    Parameters
    ----------
    path : path-like
        The file to create or replace; it is replaced only when everything has been written.
    columns : mapping
        From names to arrays of shape (rows,) or (rows, dim), matrices, or iterables of blocks of
        these shapes: float32, float16, int32, int64, int8 or uint8.
    compression : {"none", "fp16", "int8"} or mapping
        How columns are stored, or for each name how; float32 alone can be compressed.
    chunk_rows : int
        Rows of a chunk.
    sections : iterable, optional
        Ranges of rows: ``start``, ``stop`` and ``metadata`` of each.
    metadata : mapping, optional
        Further keys of the header, JSON-able.
    allow_overflow : bool
        Let fp16 store numbers beyond 65504 as infinities instead of refusing them.
    progress : callable, optional
        Called as ``progress(what, rows_done, total)``; total is 0 when it is not known.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    ValueError
        When something does not fit; the old file, if there was one, is left as it was.
    OSError
        When the file cannot be written.
    """
    if not isinstance(columns, Mapping) or not columns:
        raise ValueError("a file of version 2.0 needs a mapping of one column at least")
    if not isinstance(compression, str | Mapping):
        raise ValueError("compression must be a name, or a mapping from columns to names")
    names = columns if isinstance(compression, str) else {**columns, **compression}
    for name in names:
        if not isinstance(name, str) or name not in columns:
            raise ValueError(f"there is no column {name!r}; names are text")
    lengths = {n_rows(values) for values in columns.values()}
    n = 0
    described: list[dict[str, Any]] = []
    with replacing(path) as out, spool_beside(path) as spool, spool_beside(path) as held:
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
                encoded = encode(
                    record,
                    pieces,
                    chosen,
                    f"column {name!r}",
                    allow_overflow=allow_overflow,
                    held=held,
                )
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
            spool.truncate(0)  # a chunk without rows is not stored
        if not described:
            raise ValueError("a column without any block has no type and no width")
        header = {
            "format_type": "columnar",
            "num_vectors": n,
            "columns": described,
            "chunks": listed,
        }
        _finish(out, spool, header, "2.0", sections, metadata)
    return Path(os.fsdecode(path))


def _column_chunks(
    columns: Mapping[str, Blocks], chunk_rows: int
) -> Iterator[dict[str, Iterator[npt.NDArray[Any]]]]:
    """Return the rows of all columns, chunk by chunk, those of a chunk piece by piece."""
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be positive, not {chunk_rows}")
    chunks = {
        name: rechunked(_column_blocks(name, values), chunk_rows)
        for name, values in columns.items()
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
    """Return two-dimensional blocks; a column of single numbers gets a width of one."""
    if isinstance(values, list | tuple) and np.ndim(values[0] if values else 0) == 0:
        values = np.asarray(values)
    if isinstance(values, Matrix | list | tuple) or getattr(values, "ndim", 1) != 1:
        yield from blocks_of(values)
    elif hasattr(values, "__array__"):
        yield from blocks_of(np.asarray(values)[:, np.newaxis])
    else:
        for item in values:  # type: ignore[union-attr]
            block = np.asarray(item)
            if not block.ndim:
                raise ValueError(f"column {name!r}: a block must be an array, not {item!r:.80}")
            yield block[:, np.newaxis] if block.ndim == 1 else block


def _described(
    name: str, block: npt.NDArray[Any], compression: str | Mapping[str, str]
) -> dict[str, Any]:
    """Return what the header says about a column."""
    if block.dtype.name not in DTYPES or not block.shape[1]:
        raise ValueError(f"column {name!r} is {block.dtype} with {block.shape[1]} dimensions")
    chosen = compression if isinstance(compression, str) else compression.get(name, "none")
    if chosen != "none" and block.dtype != np.float32:
        raise ValueError(f"column {name!r} is {block.dtype}; only float32 can be {chosen}")
    return {
        "name": name,
        "dimension": block.shape[1],
        "dtype": block.dtype.name,
        "compression": _allowed(chosen, "2.0"),
    }


def _allowed(compression: str, version: str) -> str:
    if compression not in COMPRESSIONS[version]:
        able = [each for each in VERSIONS if compression in COMPRESSIONS[each]]
        hint = f"; version {' or '.join(able)} does" if able else ""
        raise ValueError(f"version {version} has no compression {compression!r}{hint}")
    return compression


def _chunks(vectors: Blocks, chunk_rows: int) -> Iterator[Iterator[npt.NDArray[Any]]]:
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be positive, not {chunk_rows}")
    return rechunked(map(_checked, blocks_of(vectors)), chunk_rows)


def _checked(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if block.dtype.kind != "f":
        raise ValueError(f"vectors must be floating point, not {block.dtype}")
    if block.ndim == 2 and len(block) and not block.shape[1]:
        raise ValueError("vectors need at least one column")
    return block


def _finish(
    out: BinaryIO,
    spool: BinaryIO,
    header: dict[str, Any],
    version: str,
    sections: Iterable[Section | Mapping[str, Any]] | None,
    metadata: Mapping[str, Any] | None,
) -> None:
    """Write prelude and header, and the chunks behind them."""
    if sections is not None:
        header["sections"] = _sections(list(sections), header["num_vectors"])
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ValueError(f"metadata must be a mapping, not {type(metadata).__name__}")
    for key, value in (metadata or {}).items():
        if key in KNOWN:
            raise ValueError(f"the header needs {key!r} for itself; call it something else")
        header[key] = value
    prelude = MAGIC if version == "0.1" else MAGIC + struct.pack("<HH", int(version[0]), 0)
    start = 0
    if header.get("mmap_optimized"):
        # No offset in the finished header has more digits than these.
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
        raise ValueError(f"the metadata are not JSON: {error}") from None
    if not unchanged:
        raise ValueError("the metadata would not come back as they are; keys must be text")
    if len(text) >= 2**32:
        raise ValueError(f"the header takes {len(text)} bytes; choose more chunk_rows")
    return text


def _as_read(value: Any) -> Any:
    """Return a value as JSON gives it back: lists for tuples, and nothing else different."""
    if isinstance(value, dict):
        return {key: _as_read(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_read(item) for item in value]
    return value


def _aligned(offset: int) -> int:
    """Return the first page that starts at an offset or behind it."""
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
            raise ValueError(f"a section has start, stop and metadata; {section!r:.80} has not")
        if any(isinstance(each, bool) or not hasattr(each, "__index__") for each in given):
            raise ValueError(f"a section begins and ends at a row, not at {given!r:.80}")
        start, stop = map(operator.index, given)
        if not 0 <= start <= stop <= n:
            raise ValueError(f"a section of rows {start} to {stop} of {n} does not exist")
        written.append(
            {
                "start_index": start,
                "end_index": stop,
                "num_vectors": stop - start,
                "metadata": about,
            }
        )
    return written
