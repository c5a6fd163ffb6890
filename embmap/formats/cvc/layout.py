"""The layout of CVC files: from bytes to frozen offsets, everything validated.

Version 0.1 has one matrix in chunks, 1.0 adds checksums, 2.0 several columns. All are a prelude, a
JSON header and a record for each chunk; docs/formats/cvc.md tells how they are told apart.
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
    "DTYPES",
    "FORMAT",
    "KNOWN",
    "MAGIC",
    "VERSIONS",
    "ChunkLayout",
    "Column",
    "CvcLayout",
    "Part",
    "Section",
    "parse",
]

FORMAT = "cvc"
MAGIC = b"CVCF"
VERSIONS = ("0.1", "1.0", "2.0")
ITEMSIZES = {"fp16": 2, "int8": 1}
DTYPES = {
    "float32": "<f4",
    "float16": "<f2",
    "int32": "<i4",
    "int64": "<i8",
    "int8": "<i1",
    "uint8": "<u1",
}
KNOWN = (
    "num_vectors",
    "dimension",
    "compression",
    "chunks",
    "sections",
    "columns",
    "format_type",
    "mmap_optimized",
)


@dataclass(frozen=True)
class Column:
    """A column: its name, its width, and its type as numpy spells it when it is decoded."""

    name: str
    dimension: int
    dtype: str
    compression: str


@dataclass(frozen=True)
class Part:
    """A chunk's share of a column: how it is stored, and where in the file."""

    compression: str
    offset: int
    nbytes: int
    minimum: float = 0.0
    scale: float = 0.0


@dataclass(frozen=True)
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
    """A range of rows with metadata."""

    start: int
    stop: int
    metadata: dict[str, Any]


@dataclass(frozen=True)
class CvcLayout:
    """Everything an open file needs to know."""

    version: str
    n: int
    columns: tuple[Column, ...]
    chunks: tuple[ChunkLayout, ...]
    sections: tuple[Section, ...]
    metadata: dict[str, Any]


class _Header:
    """Takes values out of the JSON header, each error naming what is wrong."""

    def __init__(self, file: ByteSource, offset: int) -> None:
        self._where: dict[str, Any] = {"path": file.path, "format": FORMAT, "offset": offset}

    def error(self, message: str, field: str, **details: Any) -> FormatError:
        return FormatError(message, field=field, **self._where, **details)

    def unsupported(self, message: str, field: str) -> UnsupportedError:
        return UnsupportedError(message, field=field, **self._where)

    def get(self, record: Any, key: str, kinds: type | tuple[type, ...], field: str) -> Any:
        """Return a required value of one of some types; bool is no number here."""
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
            raise self.error(f"{key!r} is larger than any float", field) from None

    def count(self, record: Any, key: str, field: str) -> int:
        value: int = self.get(record, key, int, field)
        if not 0 <= value < 2**63:
            raise self.error(f"{key!r} cannot be {value!s:.80}", field)
        return value


def parse(file: ByteSource, version: str | None = None) -> CvcLayout:
    """Parse a CVC file."""
    if version is not None and version not in VERSIONS:
        raise ValueError(f"layout must be one of {', '.join(VERSIONS)}, not {version!r}")
    reader = FieldReader(file, FORMAT)
    magic = reader.raw(4, "magic")
    if magic != MAGIC:
        raise FormatError("not a CVC file", **reader.where("magic", 0), found=magic)
    word = reader.u32("header length or version")
    if version is None:
        version = _version(file, reader, word)
    nbytes = word if version == "0.1" else reader.u32("header length")
    offset = reader.offset
    document = _document(reader, nbytes)
    header = _Header(file, offset)
    n = header.count(document, "num_vectors", "header")
    columns = _columns(header, document, version)
    _reject_impossible(header, columns, n)
    listed = header.get(document, "chunks", list, "header")
    chunks = _chunks(file, header, document, version, listed, columns, reader.offset)
    total = sum(chunk.rows for chunk in chunks)
    if total != n:
        raise header.error(f"the chunks have {total} rows", "num_vectors", expected=n)
    return CvcLayout(
        version,
        n,
        columns,
        chunks,
        _sections(header, document, n),
        {key: value for key, value in document.items() if key not in KNOWN},
    )


def _version(file: ByteSource, reader: FieldReader, word: int) -> str:
    major, minor = word & 0xFFFF, word >> 16
    if word in (1, 2):
        return f"{word}.0"
    looks_newer = 1 <= major <= 10 and minor <= 100
    if looks_newer and file.nbytes > 12 and file.read(12, 1) == b"{":
        raise UnsupportedError(
            "a newer version of CVC files; this embmap reads 0.1, 1.0 and 2.0",
            **reader.where("version", 4),
            found=f"{major}.{minor}",
        )
    return "0.1"


def _document(reader: FieldReader, nbytes: int) -> dict[str, Any]:
    where = reader.where("header")
    data = reader.raw(nbytes, "header")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) != len(pairs):
            raise ValueError("a key stands twice in an object")
        return record

    try:
        document = parse_json(data, once)
    except ValueError as error:
        raise FormatError(f"the header is not JSON: {error}", **where) from None
    if not isinstance(document, dict):
        raise FormatError("the header is no JSON object", **where)
    return document


def _columns(header: _Header, document: Any, version: str) -> tuple[Column, ...]:
    if version != "2.0":
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
            raise header.error(f"column {name!r} has an unknown dtype", field, found=dtype)
        if name in columns:
            raise header.error(f"two columns are called {name!r}", field)
        dimension = header.count(record, "dimension", field)
        compression = header.get(record, "compression", str, field)
        columns[name] = Column(name, dimension, DTYPES[dtype], compression)
    return tuple(columns.values())


def _reject_impossible(header: _Header, columns: tuple[Column, ...], n: int) -> None:
    """Refuse sizes that no array can have, and rows that consist of nothing."""
    if n and not columns:
        raise header.error(f"{n} vectors cannot have no columns", "columns")
    for column in columns:
        if n and not column.dimension:
            raise header.error(f"{n} vectors cannot have no dimensions", "dimension")
        itemsize = int(column.dtype[2:]) if column.compression == "none" else 4
        if max(n, 1) * column.dimension * itemsize >= 2**63:
            sizes = f"{n} vectors of {column.dimension} dimensions"
            raise header.unsupported(f"no array can have {sizes}", "dimension")


def _chunks(
    file: ByteSource,
    header: _Header,
    document: dict[str, Any],
    version: str,
    listed: list[Any],
    columns: tuple[Column, ...],
    position: int,
) -> tuple[ChunkLayout, ...]:
    placed = bool(document.get("mmap_optimized"))
    chunks, spans, start, end = [], [], 0, position
    for i, record in enumerate(listed):
        field = f"chunk {i}"
        rows = header.count(record, "rows", field)
        offset = header.count(record, "file_offset", field) if placed else end
        if offset < position:
            raise header.error("the chunk lies in the header", field, found=offset)
        reader = FieldReader(file, FORMAT, offset)
        if offset == file.nbytes:
            raise TruncatedError(
                f"the file ends before chunk {i} of {len(listed)}", **reader.where(field)
            )
        nbytes = reader.u32(f"length of chunk {i}")
        crc = None if version == "0.1" else reader.u32(f"checksum of chunk {i}")
        if nbytes > reader.remaining:
            raise TruncatedError(
                f"chunk {i} needs {nbytes} bytes, {reader.remaining} are left",
                **reader.where(field, offset),
            )
        payload = reader.offset
        if version == "2.0":
            parts = _parts(file, header, record, field, columns, rows, payload, nbytes)
        else:
            compression = record.get("compression", columns[0].compression)
            if compression == "none" or (compression == "lossless" and version == "0.1"):
                raise header.unsupported(
                    f"version {version} has no compression {compression}", field
                )
            place = (payload, nbytes)
            parts = (_part(file, header, record, field, columns[0], compression, rows, place),)
        metadata = record.get("metadata")
        known = metadata if isinstance(metadata, dict) else {}
        chunks.append(ChunkLayout(start, rows, payload, nbytes, crc, parts, known))
        start += rows
        spans.append((offset, payload + nbytes))
        end = payload + nbytes
    spans.sort()
    for (_, before), (after, _) in itertools.pairwise(spans):
        if before > after:
            raise header.error("two chunks overlap", "chunks", found=after)
    last = max((stop for _, stop in spans), default=position)
    if last != file.nbytes:
        raise FormatError(
            f"{file.nbytes - last} bytes follow the {len(listed)} chunks that the header lists",
            path=file.path,
            format=FORMAT,
            offset=last,
        )
    return tuple(chunks)


def _parts(
    file: ByteSource,
    header: _Header,
    record: dict[str, Any],
    field: str,
    columns: tuple[Column, ...],
    rows: int,
    payload: int,
    nbytes: int,
) -> tuple[Part, ...]:
    stored = header.get(record, "columns", dict, field)
    parts = []
    for column in columns:
        where = f"{field}, column {column.name!r}"
        part = header.get(stored, column.name, dict, field)
        offset, size = header.count(part, "offset", where), header.count(part, "size", where)
        if offset + size > nbytes:
            raise header.error(f"lies outside its chunk of {nbytes} bytes", where, found=offset)
        compression = part.get("compression", column.compression)
        if compression == "lossless":
            raise header.unsupported("version 2.0 has no compression lossless", where)
        place = (payload + offset, size)
        parts.append(_part(file, header, part, where, column, compression, rows, place))
    return tuple(parts)


def _part(
    file: ByteSource,
    header: _Header,
    record: dict[str, Any],
    field: str,
    column: Column,
    compression: object,
    rows: int,
    place: tuple[int, int],
) -> Part:
    offset, nbytes = place
    n_values = rows * column.dimension
    if compression != "none" and column.dtype[1] in "iu":  # decoding gives float32
        raise header.error(f"integers cannot be stored as {compression!r:.80}", field)
    minimum = scale = 0.0
    if compression == "int8":
        minimum = header.number(record, "min", field)
        scale = header.number(record, "scale", field)
    elif compression == "none":
        expected = n_values * int(column.dtype[2:])
        if nbytes != expected:
            raise header.error("the payload has the wrong size", field, found=nbytes)
    elif compression == "lossless":
        try:
            check_size(file.read(offset, min(nbytes, 4)), nbytes, n_values)
        except ValueError as error:
            raise header.error(f"the payload is wrong: {error}", field) from None
    elif compression != "fp16":
        raise header.unsupported(f"the compression {compression!r:.80} is not known", field)
    if compression in ITEMSIZES and nbytes != n_values * ITEMSIZES[str(compression)]:
        raise header.error(
            f"the payload has the wrong size for {rows} rows of {column.dimension}",
            field,
            found=nbytes,
            expected=n_values * ITEMSIZES[str(compression)],
        )
    return Part(str(compression), offset, nbytes, minimum, scale)


def _sections(header: _Header, document: dict[str, Any], n: int) -> tuple[Section, ...]:
    sections = []
    listed = document.get("sections")
    if listed is not None and not isinstance(listed, list):
        raise header.error("must be a list", "sections", found=type(listed).__name__)
    for i, record in enumerate(listed or ()):
        field = f"section {i}"
        start = header.count(record, "start_index", field)
        stop = header.count(record, "end_index", field)
        if not start <= stop <= n:
            raise header.error(f"rows {start} to {stop} of {n} do not exist", field)
        metadata = record.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise header.error("'metadata' must be an object", field)
        sections.append(Section(start, stop, metadata or {}))
    return tuple(sections)
