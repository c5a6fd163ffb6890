"""The layout of CVC files: from bytes to frozen offsets, everything validated.

A file consists of a prelude, a JSON header and a record for each chunk. The dialects are the
versions: 0.1 stores one matrix in chunks, 1.0 adds checksums, 2.0 has several columns.
docs/formats/cvc.md describes how they are distinguished.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from embmap.codecs.planes import check_size
from embmap.errors import FormatError, TruncatedError, UnsupportedError
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_json

__all__ = [
    "COMPRESSIONS",
    "DIALECTS",
    "DTYPES",
    "FORMAT",
    "KNOWN",
    "MAGIC",
    "ChunkLayout",
    "Column",
    "CvcLayout",
    "Part",
    "Section",
    "parse",
]

FORMAT = "cvc"
MAGIC = b"CVCF"
COMPRESSIONS = {
    "0.1": ("fp16", "int8"),
    "1.0": ("fp16", "int8", "lossless"),
    "2.0": ("fp16", "int8", "none"),
}
DIALECTS = tuple(COMPRESSIONS)
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
    """The offsets and sizes of a file, all inside it; `n` is the number of rows."""

    dialect: str
    n: int
    columns: tuple[Column, ...]
    chunks: tuple[ChunkLayout, ...]
    sections: tuple[Section, ...]
    metadata: dict[str, Any]


class _Header:
    """The JSON header; checks the types of values and names the field in every error."""

    def __init__(self, source: ByteSource, dialect: str, reader: FieldReader, nbytes: int) -> None:
        self.source = source
        self.dialect = dialect
        where: dict[str, Any] = {"path": source.path, "format": FORMAT, "offset": reader.offset}
        self._where = where
        self.document = self._parse(reader.raw(nbytes, "header"))

    def _parse(self, data: bytes) -> dict[str, Any]:
        def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            record = dict(pairs)
            if len(record) != len(pairs):
                raise ValueError("an object has the same key twice")
            return record

        try:
            document = parse_json(data, refuse_repeats)
        except ValueError as error:
            raise self.error(f"the header is not JSON: {error}", "header") from None
        if not isinstance(document, dict):
            raise self.error("the header is not a JSON object", "header")
        return document

    def error(self, message: str, field: str, **details: Any) -> FormatError:
        return FormatError(message, field=field, **self._where, **details)

    def unsupported(self, message: str, field: str) -> UnsupportedError:
        return UnsupportedError(message, field=field, **self._where)

    def get(self, record: Any, key: str, kinds: type | tuple[type, ...], field: str) -> Any:
        """Return a required value of one of these types; a bool does not count as an int."""
        if not isinstance(record, dict):
            raise self.error("must be an object", field, found=type(record).__name__)
        if key not in record:
            raise self.error(f"{key!r} is missing", field)
        value = record[key]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise self.error(f"{key!r} cannot be {value!r:.80}", field)
        return value

    def number(self, record: Any, key: str, field: str) -> float:
        value = self.get(record, key, (int, float), field)
        try:
            return float(value)
        except OverflowError:
            raise self.error(f"{key!r} is too large for float64", field) from None

    def count(self, record: Any, key: str, field: str) -> int:
        value: int = self.get(record, key, int, field)
        if not 0 <= value < 2**63:
            raise self.error(f"{key!r} cannot be {value!s:.80}", field)
        return value

    def counts(self, record: Any, keys: tuple[str, str], field: str) -> tuple[int, int]:
        return self.count(record, keys[0], field), self.count(record, keys[1], field)


def parse(source: ByteSource, dialect: str | None = None) -> CvcLayout:
    """Parse a CVC file, as `dialect` if one is given; by default the bytes decide."""
    reader = FieldReader(source, FORMAT)
    magic = reader.raw(4, "magic")
    if magic != MAGIC:
        raise FormatError("not a CVC file", **reader.where("magic", 0), found=magic)
    word = reader.u32("header length or version")
    if dialect is None:
        dialect = _recognize(source, reader, word)
    header = _Header(
        source, dialect, reader, word if dialect == "0.1" else reader.u32("header length")
    )
    n = header.count(header.document, "num_vectors", "header")
    columns = _columns(header)
    _check_sizes(header, columns, n)
    chunks = _chunks(header, columns, reader.offset)
    total = sum(chunk.rows for chunk in chunks)
    if total != n:
        raise header.error(f"the chunks have {total} rows", "num_vectors", expected=n)
    return CvcLayout(
        dialect=dialect,
        n=n,
        columns=columns,
        chunks=chunks,
        sections=_sections(header, n),
        metadata={key: value for key, value in header.document.items() if key not in KNOWN},
    )


def _recognize(source: ByteSource, reader: FieldReader, word: int) -> str:
    """Return the dialect, given the 32-bit number after the magic."""
    if word in (1, 2):
        return f"{word}.0"
    major, minor = word & 0xFFFF, word >> 16
    looks_newer = 1 <= major <= 10 and minor <= 100
    if looks_newer and source.nbytes > 12 and source.read(12, 1) == b"{":
        raise UnsupportedError(
            f"this embmap reads CVC files of versions {', '.join(DIALECTS)}",
            **reader.where("version", 4),
            found=f"{major}.{minor}",
        )
    return "0.1"


def _columns(header: _Header) -> tuple[Column, ...]:
    document = header.document
    if header.dialect != "2.0":
        dimension = header.count(document, "dimension", "header")
        compression = header.get(document, "compression", str, "header")
        return (Column("vectors", dimension, "<f4", compression),)
    kind = header.get(document, "format_type", str, "header")
    if kind != "columnar":
        raise header.unsupported(f"the format_type {kind!r:.80} is not known", "format_type")
    columns: dict[str, Column] = {}
    for i, record in enumerate(header.get(document, "columns", list, "header")):
        field = f"column {i}"
        name = header.get(record, "name", str, field)
        dtype = header.get(record, "dtype", str, field)
        if dtype not in DTYPES:
            raise header.error(f"the dtype of column {name!r} is not known", field, found=dtype)
        if name in columns:
            raise header.error(f"two columns are called {name!r}", field)
        dimension = header.count(record, "dimension", field)
        compression = header.get(record, "compression", str, field)
        columns[name] = Column(name, dimension, DTYPES[dtype], compression)
    return tuple(columns.values())


def _check_sizes(header: _Header, columns: tuple[Column, ...], n: int) -> None:
    """Refuse sizes that no array can have, and rows without any number."""
    if n and not columns:
        raise header.error(f"a file of {n} vectors must have a column", "columns")
    for column in columns:
        if n and not column.dimension:
            raise header.error(f"{n} vectors must have at least one dimension", "dimension")
        itemsize = int(column.dtype[2:]) if column.compression == "none" else 4
        if max(n, 1) * column.dimension * itemsize >= 2**63:
            sizes = f"{n} vectors of {column.dimension} dimensions"
            raise header.unsupported(f"no array can have {sizes}", "dimension")


def _chunks(header: _Header, columns: tuple[Column, ...], position: int) -> tuple[ChunkLayout, ...]:
    """Parse the chunks, the first of which starts at `position` or after it."""
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
        nbytes = reader.u32(f"length of chunk {i}")
        crc = None if header.dialect == "0.1" else reader.u32(f"checksum of chunk {i}")
        if nbytes > reader.remaining:
            raise TruncatedError(
                f"chunk {i} needs {nbytes} bytes, but {reader.remaining} are left",
                **reader.where(field, offset),
            )
        payload = reader.offset
        end = payload + nbytes
        span = payload, end
        if header.dialect == "2.0":
            parts = _parts(header, columns, record, field=field, rows=rows, span=span)
        else:
            parts = (_part(header, columns[0], record, field=field, rows=rows, span=span),)
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
    return tuple(chunks)


def _parts(
    header: _Header,
    columns: tuple[Column, ...],
    record: dict[str, Any],
    *,
    field: str,
    rows: int,
    span: tuple[int, int],
) -> tuple[Part, ...]:
    """Parse the part of each column in a chunk whose payload has the offsets `span`."""
    stored = header.get(record, "columns", dict, field)
    parts = []
    for column in columns:
        where = f"{field}, column {column.name!r}"
        part = header.get(stored, column.name, dict, field)
        offset, nbytes = header.counts(part, ("offset", "size"), where)
        start = span[0] + offset
        if start + nbytes > span[1]:
            message = f"lies outside its chunk of {span[1] - span[0]} bytes"
            raise header.error(message, where, found=offset)
        place = start, start + nbytes
        parts.append(_part(header, column, part, field=where, rows=rows, span=place))
    return tuple(parts)


def _part(
    header: _Header,
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
    if compression != "none" and column.dtype[1] in "iu":  # decoding gives float32
        raise header.error(f"integers cannot be stored as {compression}", field)
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


def _sections(header: _Header, n: int) -> tuple[Section, ...]:
    sections = []
    listed = header.document.get("sections")
    if listed is not None and not isinstance(listed, list):
        raise header.error("must be a list", "sections", found=type(listed).__name__)
    for i, record in enumerate(listed or ()):
        field = f"section {i}"
        start, stop = header.counts(record, ("start_index", "end_index"), field)
        if not start <= stop <= n:
            raise header.error(f"rows {start} to {stop} of {n} do not exist", field)
        metadata = record.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise header.error("'metadata' must be an object", field)
        sections.append(Section(start, stop, metadata or {}))
    return tuple(sections)
