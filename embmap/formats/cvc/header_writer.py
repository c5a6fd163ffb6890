"""Writing the header of CVC files, which comes first but depends on every chunk."""

from __future__ import annotations

import json
import operator
import shutil
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from embmap.formats.cvc.header import MAGIC, PAGE_NBYTES
from embmap.formats.cvc.layout import KNOWN, Section
from embmap.io.parsing import parse_json

__all__ = [
    "add_metadata",
    "add_sections_to_chunks",
    "add_to_header",
    "align",
    "check_metadata",
    "write_with_header",
]

_COPY = 1 << 22


def add_to_header(
    header: dict[str, Any],
    sections: Iterable[Section | Mapping[str, Any]] | None,
    metadata: Mapping[str, Any] | None,
) -> None:
    """Add sections, to the chunks as well, and keys that the format does not define."""
    if sections is not None:
        header["sections"] = _sections(list(sections), header["num_vectors"])
        add_sections_to_chunks(header)
    if metadata is not None:
        add_metadata(header, metadata)


def add_metadata(header: dict[str, Any], metadata: Mapping[str, Any]) -> None:
    """Add keys that the format does not define."""
    for key, value in check_metadata(metadata).items():
        if key in KNOWN:
            raise ValueError(f"the metadata must not contain {key!r}, a key of the format")
        header[key] = value


def check_metadata(metadata: Any, what: str = "metadata") -> dict[str, Any]:
    """Return metadata if JSON gives them back as they are."""
    if not isinstance(metadata, Mapping):
        raise ValueError(f"{what} must be a mapping, not {type(metadata).__name__}")
    _json(dict(metadata))
    return dict(metadata)


def write_with_header(
    out: BinaryIO, spool: BinaryIO, header: dict[str, Any], dialect: str, *, again: bool = False
) -> None:
    """Write the prelude, the header and the chunks.

    With `again`, the header was read from a file, and may hold NaN and infinities.
    """
    prelude = MAGIC if dialect == "0.1" else MAGIC + struct.pack("<HH", int(dialect[0]), 0)
    start = 0
    if header.get("mmap_optimized"):
        # Reserve room for offsets of 20 digits; no offset in the finished header has more.
        most = [{**chunk, "file_offset": 10**19} for chunk in header["chunks"]]
        start = align(len(prelude) + 4 + len(_json({**header, "chunks": most}, again)))
        moved = [{**each, "file_offset": each["file_offset"] + start} for each in header["chunks"]]
        header["chunks"] = moved
    text = _json(header, again)
    out.write(prelude + struct.pack("<I", len(text)) + text)
    out.write(bytes(max(start - out.tell(), 0)) if header.get("chunks") else b"")
    spool.seek(0)
    shutil.copyfileobj(spool, out, _COPY)


def _json(header: dict[str, Any], again: bool = False) -> bytes:
    try:
        text = json.dumps(header, allow_nan=again).encode()
        unchanged = again or parse_json(text) == _as_read(header)  # 1 and "1" are one key in JSON
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


def align(offset: int) -> int:
    """Return the start of the first page at or after an offset."""
    return -(-offset // PAGE_NBYTES) * PAGE_NBYTES


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
            raise ValueError(f"a section must be in rows 0 to {n}, not {start} to {stop}")
        place = {"start_index": start, "end_index": stop, "num_vectors": stop - start}
        written.append({**place, "metadata": about})
    return written


def add_sections_to_chunks(header: dict[str, Any]) -> None:
    """Give each chunk the list of the sections that it has rows of.

    decompressed selects sections by these lists and not by the header's list.
    """
    ends, stop = [], 0
    for chunk in header["chunks"]:
        stop += chunk["rows"]
        ends.append(stop)
        chunk["sections"] = []
    for section in header["sections"]:
        start, stop = section["start_index"], section["end_index"]
        first = bisect_right(ends, start)
        last = max(bisect_left(ends, stop), first)  # a section without rows may lie in a chunk
        for chunk, end in zip(
            header["chunks"][first : last + 1], ends[first : last + 1], strict=True
        ):
            begin = end - chunk["rows"]
            if begin < stop and end > start:
                chunk["sections"].append(
                    {
                        "metadata": section.get("metadata") or {},
                        "start_in_chunk": max(start, begin) - begin,
                        "end_in_chunk": min(stop, end) - begin,
                        "section_start": start,
                        "section_end": stop,
                    }
                )
