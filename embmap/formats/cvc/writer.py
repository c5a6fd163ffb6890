"""Writing CVC files of all three versions.

The header stands first but depends on every chunk, so the chunks are spooled to a temporary file
and copied behind the header: memory stays bounded whatever number of vectors comes, and the file
appears under its name only once it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from embmap.atomic_write import replacing
from embmap.blocks import Blocks, blocks_of, rechunked
from embmap.codecs.affine import encode_affine
from embmap.codecs.half import encode_half
from embmap.codecs.planes import encode_planes
from embmap.formats.cvc.layout import DTYPES, KNOWN, MAGIC, VERSIONS, Section

__all__ = ["write", "write_columns"]

_COMPRESSIONS = {
    "0.1": ("fp16", "int8"),
    "1.0": ("fp16", "int8", "lossless"),
    "2.0": ("fp16", "int8", "none"),
}
_COPY = 1 << 22

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
) -> Path:
    """Write a CVC file of one matrix.

    Parameters
    ----------
    path : path-like
        The file to create or replace; it is replaced only when everything has been written.
    vectors : array-like, Matrix or iterable of blocks
        Shape (rows, dim), or blocks of rows in order; floating point.
    compression : {"fp16", "int8", "lossless"} or callable
        How chunks are stored, or ``compression(number, chunk)`` to choose for each. Version 0.1
        has no lossless.
    chunk_rows : int
        Rows of a chunk.
    version : {"0.1", "1.0"}
        1.0 has checksums and lossless chunks.
    sections : iterable, optional
        Ranges of rows: ``start``, ``stop`` and ``metadata`` of each.
    metadata : mapping, optional
        Further keys of the header, JSON-able.

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
    header: dict[str, Any] = {"num_vectors": 0, "dimension": 0}
    default = compression if isinstance(compression, str) else "fp16"
    header["compression"] = _allowed(default, version)
    with replacing(path) as out, _spool(path) as spool:
        listed, n = [], 0
        for number, chunk in enumerate(_chunks(vectors, chunk_rows)):
            chosen = compression if isinstance(compression, str) else compression(number, chunk)
            payload, entry = _encode(chunk, _allowed(chosen, version), f"chunk {number}")
            header["dimension"] = chunk.shape[1]
            if len(chunk):
                listed.append({"rows": len(chunk), **entry})
                _write_record(spool, payload, version)
            n += len(chunk)
        header |= {"num_vectors": n, "chunks": listed}
        _finish(out, spool, header, version, sections, metadata)
    return Path(os.fsdecode(path))


def write_columns(
    path: str | os.PathLike[str],
    columns: Mapping[str, npt.ArrayLike],
    *,
    compression: str | Mapping[str, str] = "none",
    chunk_rows: int = 100_000,
    sections: Iterable[Section | Mapping[str, Any]] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a CVC file of version 2.0: columns of equal length.

    Parameters
    ----------
    path : path-like
        The file to create or replace; it is replaced only when everything has been written.
    columns : mapping
        From names to arrays of shape (rows,) or (rows, dim): float32, float16, int32, int64, int8
        or uint8.
    compression : {"none", "fp16", "int8"} or mapping
        How columns are stored, or for each name how; float32 alone can be compressed.
    chunk_rows : int
        Rows of a chunk.
    sections : iterable, optional
        Ranges of rows: ``start``, ``stop`` and ``metadata`` of each.
    metadata : mapping, optional
        Further keys of the header, JSON-able.

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
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    if not arrays or len({len(array) for array in arrays.values()}) != 1:
        raise ValueError("columns must be one or more arrays of the same length")
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be positive, not {chunk_rows}")
    described = []
    for name, array in arrays.items():
        if array.ndim not in (1, 2) or array.dtype.name not in DTYPES or 0 in array.shape[1:]:
            raise ValueError(f"column {name!r} is {array.dtype} of shape {array.shape}")
        chosen = compression if isinstance(compression, str) else compression.get(name, "none")
        if chosen != "none" and array.dtype != np.float32:
            raise ValueError(f"column {name!r} is {array.dtype}; only float32 can be {chosen}")
        arrays[name] = array.reshape(len(array), -1) if array.size else array.reshape(0, 1)
        described.append(
            {
                "name": name,
                "dimension": arrays[name].shape[1],
                "dtype": array.dtype.name,
                "compression": _allowed(chosen, "2.0"),
            }
        )
    n = len(next(iter(arrays.values())))
    with replacing(path) as out, _spool(path) as spool:
        listed = []
        for start in range(0, n, chunk_rows):
            entries: dict[str, Any] = {}
            payload = b""
            for column in described:
                rows = arrays[column["name"]][start : start + chunk_rows]
                field = f"column {column['name']!r}"
                data, entry = _encode(rows, column["compression"], field)
                entries[column["name"]] = {**entry, "offset": len(payload), "size": len(data)}
                payload += data
            listed.append({"rows": min(chunk_rows, n - start), "columns": entries})
            _write_record(spool, payload, "2.0")
        header = {
            "format_type": "columnar",
            "num_vectors": n,
            "columns": described,
            "chunks": listed,
        }
        _finish(out, spool, header, "2.0", sections, metadata)
    return Path(os.fsdecode(path))


def _spool(path: str | os.PathLike[str]) -> Any:
    """Return a temporary file beside the target, where there is room for it."""
    return tempfile.TemporaryFile(dir=Path(os.fsdecode(path)).resolve().parent)


def _allowed(compression: str, version: str) -> str:
    if compression not in _COMPRESSIONS[version]:
        able = [each for each in VERSIONS if compression in _COMPRESSIONS[each]]
        hint = f"; version {' or '.join(able)} does" if able else ""
        raise ValueError(f"version {version} has no compression {compression!r}{hint}")
    return compression


def _chunks(vectors: Blocks, chunk_rows: int) -> Iterable[npt.NDArray[Any]]:
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be positive, not {chunk_rows}")
    for chunk in rechunked(blocks_of(vectors), chunk_rows):
        if chunk.dtype.kind != "f":
            raise ValueError(f"vectors must be floating point, not {chunk.dtype}")
        if len(chunk) and not chunk.shape[1]:
            raise ValueError("vectors need at least one column")
        yield chunk


def _encode(chunk: npt.NDArray[Any], compression: str, field: str) -> tuple[bytes, dict[str, Any]]:
    """Return a payload and its entry in the header."""
    entry: dict[str, Any] = {"compression": compression}
    try:
        if compression == "fp16":
            return encode_half(chunk).tobytes(), entry
        if compression == "int8":
            codes, scale, minimum = encode_affine(chunk)
            return codes.tobytes(), {**entry, "min": minimum, "scale": scale}
        if compression == "lossless":
            if chunk.dtype.itemsize > 4:
                raise ValueError(f"lossless holds float32, not {chunk.dtype}")
            return encode_planes(chunk.astype(np.float32).reshape(-1)), entry
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    return np.ascontiguousarray(chunk, chunk.dtype.newbyteorder("<")).tobytes(), entry


def _write_record(spool: BinaryIO, payload: bytes, version: str) -> None:
    if len(payload) >= 2**32:
        raise ValueError("a chunk must stay below 4 GiB; choose fewer chunk_rows")
    spool.write(struct.pack("<I", len(payload)))
    if version != "0.1":
        spool.write(struct.pack("<I", zlib.crc32(payload)))
    spool.write(payload)


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
    for key, value in (metadata or {}).items():
        if key in KNOWN:
            raise ValueError(f"the header needs {key!r} for itself; call it something else")
        header[key] = value
    try:
        text = json.dumps(header, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the metadata are not JSON: {error}") from None
    out.write(MAGIC)
    if version != "0.1":
        out.write(struct.pack("<HH", int(version[0]), 0))
    out.write(struct.pack("<I", len(text)) + text)
    spool.seek(0)
    shutil.copyfileobj(spool, out, _COPY)


def _sections(sections: Sequence[Section | Mapping[str, Any]], n: int) -> list[dict[str, Any]]:
    written = []
    for section in sections:
        if isinstance(section, Section):
            start, stop, about = section.start, section.stop, section.metadata
        else:
            start, stop = section["start"], section["stop"]
            about = dict(section.get("metadata") or {})
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
