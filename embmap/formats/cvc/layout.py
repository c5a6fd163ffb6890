"""The layout of CVC files: from bytes to frozen offsets, everything validated.

A file consists of a prelude, a JSON header and a record for each chunk. The dialects are the
versions: 0.1 stores one matrix in chunks, 1.0 adds checksums, 2.0 has several columns.
docs/formats/cvc.md describes how they are distinguished.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from embmap.codecs.planes import check_size
from embmap.errors import FormatError, TruncatedError
from embmap.formats.cvc.header import FORMAT, Header, read_header
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource

__all__ = [
    "COMPRESSIONS",
    "DTYPES",
    "KNOWN",
    "ChunkLayout",
    "Column",
    "CvcLayout",
    "Part",
    "Section",
    "get_dtype",
    "parse",
]

COMPRESSIONS = {
    "0.1": ("fp16", "int8"),
    "1.0": ("fp16", "int8", "lossless"),
    "2.0": ("fp16", "int8", "none"),
}
DTYPES = {
    "float32": "<f4",
    "float16": "<f2",
    "int32": "<i4",
    "int64": "<i8",
    "int8": "<i1",
    "uint8": "<u1",
}
KNOWN = {"num_vectors", "dimension", "compression", "chunks", "sections", "columns"}
KNOWN |= {"format_type", "mmap_optimized"}
_ITEMSIZES = {"fp16": 2, "int8": 1}
_LENGTH_AND_CHECKSUM = struct.Struct("<II")


@dataclass(frozen=True)
class Column:
    """A column: its name, its width, and the dtype of its decoded numbers as numpy spells it."""

    name: str
    dimension: int
    dtype: str
    compression: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """The part of a chunk that belongs to one column: where it is and how it is stored."""

    compression: str
    offset: int
    nbytes: int
    minimum: float = 0.0
    scale: float = 0.0


_NO_PART = Part(compression="none", offset=0, nbytes=0)


@dataclass(frozen=True, kw_only=True)
class ChunkLayout:
    """A chunk: its rows, its payload, its checksum (None in 0.1), and a part for each column."""

    start: int
    rows: int
    offset: int
    nbytes: int
    crc: int | None
    parts: tuple[Part, ...]
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A range of rows with metadata.

    Attributes
    ----------
    start, stop : int
        The first row, and the row after the last.
    metadata : dict
        The metadata of these rows.
    """

    start: int
    stop: int
    metadata: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CvcLayout:
    """The offsets and sizes of a file, all inside it; `n` is the number of rows.

    `start` is the end of the header. `unreadable` has an error for each column that cannot be read;
    such a column is not in `columns`, and chunks have no parts for it.
    """

    dialect: str
    n: int
    start: int
    columns: tuple[Column, ...]
    unreadable: dict[str, FormatError]
    chunks: tuple[ChunkLayout, ...]
    sections: tuple[Section, ...]
    metadata: dict[str, Any]

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Return the ranges of bytes between the header and the chunks that belong to no chunk."""
        end, prefix = self.start, 4 if self.dialect == "0.1" else 8
        for chunk in sorted(self.chunks, key=lambda each: each.offset):
            start = chunk.offset - prefix
            if start > end:
                yield end, start
            end = chunk.offset + chunk.nbytes


def parse(source: ByteSource, dialect: str | None = None) -> CvcLayout:
    """Parse a CVC file, as `dialect` if one is given; by default the bytes decide."""
    header = read_header(source, dialect)
    n = header.count(header.document, "num_vectors", "header")
    columns = _Columns(header, n)
    chunks = _chunks(header, columns)
    total = sum(chunk.rows for chunk in chunks)
    if total != n:
        raise header.error(f"the chunks have {total} rows", "num_vectors", expected=n)
    readable = columns.described
    for i, column in enumerate(readable if header.dialect == "2.0" else ()):
        try:
            dtype = get_dtype(column, [chunk.parts[i] for chunk in chunks])
            _check_size(header, column, n, int(dtype[2:]))
        except FormatError as error:
            if columns.give_up(column, error):
                raise
    if columns.unreadable:
        kept = [i for i, each in enumerate(readable) if each.name not in columns.unreadable]
        readable = [readable[i] for i in kept]
        chunks = [replace(each, parts=tuple(each.parts[i] for i in kept)) for each in chunks]
    return CvcLayout(
        dialect=header.dialect,
        n=n,
        start=header.end,
        columns=tuple(readable),
        unreadable=columns.unreadable,
        chunks=tuple(chunks),
        sections=_sections(header, n),
        metadata={key: value for key, value in header.document.items() if key not in KNOWN},
    )


def get_dtype(column: Column, parts: Sequence[Part]) -> str:
    """Return the dtype of a column's rows: its own if no chunk of it is compressed."""
    compressions = {part.compression for part in parts} or {column.compression}
    return column.dtype if compressions == {"none"} else "<f4"


class _Columns:
    """The columns that the header describes, and an error for each that cannot be read."""

    def __init__(self, header: Header, n: int) -> None:
        self.described: list[Column] = []
        self.unreadable: dict[str, FormatError] = {}
        document, names = header.document, set()
        if header.dialect != "2.0":
            dimension = header.count(document, "dimension", "header")
            compression = header.get(document, "compression", str, "header")
            column = Column("vectors", dimension, "<f4", compression)
            _check_size(header, column, n, 4)
            self.described.append(column)
            return
        kind = header.get(document, "format_type", str, "header")
        if kind != "columnar":
            raise header.unsupported(f"the format_type {kind!r:.80} is not known", "format_type")
        for i, record in enumerate(header.get(document, "columns", list, "header")):
            name = header.get(record, "name", str, f"column {i}")
            if name in names:
                raise header.error(f"two columns are called {name!r}", f"column {i}")
            names.add(name)
            try:
                self.described.append(_column(header, record, f"column {i}", n))
            except FormatError as error:
                self._note(name, error)
        if n and not names:
            raise header.error(f"a file of {n} vectors must have a column", "columns")
        if names and not self.described:
            raise next(iter(self.unreadable.values()))

    def give_up(self, column: Column, error: FormatError) -> bool:
        """Note that a column cannot be read; return whether it was the last one."""
        self._note(column.name, error)
        return all(each.name in self.unreadable for each in self.described)

    def _note(self, name: str, error: FormatError) -> None:
        # The frames of a traceback would keep the whole header in memory.
        self.unreadable.setdefault(name, copy(error))


def _column(header: Header, record: dict[str, Any], field: str, n: int) -> Column:
    name = record["name"]
    dtype = header.get(record, "dtype", str, field)
    if dtype not in DTYPES:
        raise header.error(f"the dtype of column {name!r} is not known", field, found=dtype)
    dimension = header.count(record, "dimension", field)
    compression = header.get(record, "compression", str, field)
    column = Column(name, dimension, DTYPES[dtype], compression)
    _check_size(header, column, n, int(get_dtype(column, ())[2:]))
    return column


def _check_size(header: Header, column: Column, n: int, itemsize: int) -> None:
    """Refuse sizes that no array can have, and vectors without dimensions."""
    if n and not column.dimension:
        raise header.error(f"{n} vectors must have at least one dimension", "dimension")
    if max(n, 1) * column.dimension * itemsize >= 2**63:
        sizes = f"{n} vectors of {column.dimension} dimensions"
        raise header.unsupported(f"{sizes} are too many numbers for an array", "dimension")


def _chunks(header: Header, columns: _Columns) -> list[ChunkLayout]:
    """Parse the chunks, with a part for each column that the header describes."""
    position = header.end
    source, listed = header.source, header.get(header.document, "chunks", list, "header")
    placed = bool(header.document.get("mmap_optimized"))
    chunks: list[ChunkLayout] = []
    spans, start, end = [], 0, position
    for i, record in enumerate(listed):
        field = f"chunk {i}"
        rows = header.count(record, "rows", field)
        offset = header.count(record, "file_offset", field) if placed else end
        if offset < position:
            raise header.error("the chunk overlaps the header", field, found=offset)
        reader = FieldReader(source, FORMAT, offset)
        if offset == source.nbytes:
            raise TruncatedError(
                f"the file ends before chunk {i} of {len(listed)}", **reader.where(field)
            )
        if header.dialect == "0.1":
            nbytes, crc = reader.u32(f"length of chunk {i}"), None
        else:
            head = reader.raw(8, f"length and checksum of chunk {i}")
            nbytes, crc = _LENGTH_AND_CHECKSUM.unpack(head)
        if nbytes > reader.remaining:
            raise TruncatedError(
                f"chunk {i} needs {nbytes} bytes, but {reader.remaining} are left",
                **reader.where(field, offset),
            )
        payload = reader.offset
        end = payload + nbytes
        parts = _parts(header, columns, record, field=field, rows=rows, span=(payload, end))
        metadata = record.get("metadata")
        chunks.append(
            ChunkLayout(
                start=start,
                rows=rows,
                offset=payload,
                nbytes=nbytes,
                crc=crc,
                parts=parts,
                metadata=metadata if isinstance(metadata, dict) else {},
            )
        )
        start += rows
        spans.append((offset, end))
    spans.sort()
    for (_, before), (after, _) in itertools.pairwise(spans):
        if before > after:
            raise header.error("two chunks overlap", "chunks", found=after)
    last = max((stop for _, stop in spans), default=position)
    if last != source.nbytes:
        raise FormatError(
            f"{source.nbytes - last} bytes follow the {len(listed)} chunks that the header lists",
            path=source.path,
            format=FORMAT,
            offset=last,
        )
    return chunks


def _parts(
    header: Header,
    columns: _Columns,
    record: dict[str, Any],
    *,
    field: str,
    rows: int,
    span: tuple[int, int],
) -> tuple[Part, ...]:
    """Parse the part of each column in a chunk whose payload has the offsets `span`."""
    if header.dialect != "2.0":
        (column,) = columns.described
        return (_part(header, column, record, field=field, rows=rows, span=span),)
    stored = header.get(record, "columns", dict, field)
    parts = []
    for column in columns.described:
        part = _NO_PART
        if column.name not in columns.unreadable:
            try:
                where = f"{field}, column {column.name!r}"
                entry = header.get(stored, column.name, dict, field)
                offset, nbytes = header.counts(entry, ("offset", "size"), where)
                start = span[0] + offset
                if start + nbytes > span[1]:
                    message = f"lies outside its chunk of {span[1] - span[0]} bytes"
                    raise header.error(message, where, found=offset)
                place = start, start + nbytes
                part = _part(header, column, entry, field=where, rows=rows, span=place)
            except FormatError as error:
                if columns.give_up(column, error):
                    raise
        parts.append(part)
    return tuple(parts)


def _part(
    header: Header,
    column: Column,
    record: dict[str, Any],
    *,
    field: str,
    rows: int,
    span: tuple[int, int],
) -> Part:
    compression = record.get("compression", column.compression)
    if compression not in COMPRESSIONS[header.dialect]:
        message = f"the compression {compression!r:.80} is not known"
        if compression in itertools.chain(*COMPRESSIONS.values()):
            message = f"version {header.dialect} has no compression {compression}"
        raise header.unsupported(message, field)
    offset, nbytes = span[0], span[1] - span[0]
    n_values = rows * column.dimension
    minimum = scale = 0.0
    if compression == "int8":
        minimum = header.number(record, "min", field)
        scale = header.number(record, "scale", field)
    if compression == "lossless":
        try:
            check_size(header.source.read(offset, min(nbytes, 4)), nbytes, n_values)
        except ValueError as error:
            raise header.error(f"the payload is wrong: {error}", field) from None
    else:
        expected = n_values * (_ITEMSIZES.get(compression) or int(column.dtype[2:]))
        if nbytes != expected:
            sizes = f"{rows} rows of {column.dimension}"
            message = f"the payload has the wrong size for {sizes}"
            raise header.error(message, field, found=nbytes, expected=expected)
    return Part(compression=compression, offset=offset, nbytes=nbytes, minimum=minimum, scale=scale)


def _sections(header: Header, n: int) -> tuple[Section, ...]:
    sections = []
    listed = header.document.get("sections")
    if listed is not None and not isinstance(listed, list):
        raise header.error("must be a list", "sections", found=type(listed).__name__)
    for i, record in enumerate(listed or ()):
        field = f"section {i}"
        start, stop = header.counts(record, ("start_index", "end_index"), field)
        if not start <= stop <= n:
            raise header.error(f"a section must be in rows 0 to {n}, not {start} to {stop}", field)
        metadata = record.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise header.error("'metadata' must be an object", field)
        sections.append(Section(start, stop, metadata or {}))
    return tuple(sections)
