"""A slow, obvious decoder and encoder for CVC files of versions 0.1, 1.0 and 2.0.

It reads and writes whole files in memory, number by number, straight from the format. It shares no
code with embmap: it is the oracle embmap is compared with, so nothing here is clever or fast.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAGIC = b"CVCF"
DTYPES = ["float32", "float16", "int32", "int64", "int8", "uint8"]
COMPRESSIONS = {
    "0.1": ["fp16", "int8"],
    "1.0": ["fp16", "int8", "lossless"],
    "2.0": ["fp16", "int8", "none"],
}
# All other keys of a header are metadata.
KNOWN = [
    "num_vectors",
    "dimension",
    "compression",
    "chunks",
    "sections",
    "columns",
    "format_type",
    "mmap_optimized",
]


class InvalidFile(ValueError):
    """The bytes are not a CVC file."""


class NewerFile(InvalidFile):
    """The bytes are a CVC file of a version after 2.0."""


@dataclass
class Column:
    """A column: its entry in the header, its rows, and the rows that no payload gives."""

    name: str
    dimension: int
    dtype: str
    compression: str
    rows: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))
    unreadable: set[int] = field(default_factory=set)


@dataclass
class Chunk:
    """A chunk: its first row, how many, its payload, and whether its checksum holds."""

    start: int
    rows: int
    payload: bytes
    intact: bool
    metadata: dict[str, Any]
    compressions: list[str] = field(default_factory=list)


@dataclass
class Decoded:
    """The content of a CVC file."""

    version: str
    n: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    sections: list[tuple[int, int, dict[str, Any]]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # what can be read past, but is wrong

    def section(self, **match: Any) -> list[int]:
        """Return every row of every section, then of every chunk, whose metadata match."""
        found = []
        for start, stop, metadata in self.sections:
            if all(key in metadata and metadata[key] == match[key] for key in match):
                found += list(range(start, stop))
        in_sections = set(found)
        for chunk in self.chunks:
            about = chunk.metadata
            if about and all(key in about and about[key] == match[key] for key in match):
                rows = range(chunk.start, chunk.start + chunk.rows)
                found += [row for row in rows if row not in in_sections]
        return found


# ---------------------------------------------------------------------------------------- decode


def decode(data: bytes) -> Decoded:
    """Decode a whole file, or raise InvalidFile."""
    if data[:4] != MAGIC:
        raise InvalidFile("no magic")
    version, at = _version(data)
    (nbytes,) = _unpack("<I", data, at)
    at += 4
    header = parse_json(_bytes(data, at, nbytes))
    if not isinstance(header, dict):
        raise InvalidFile("the header is not an object")
    out = Decoded(version)
    out.n = _count(header, "num_vectors")
    columns = _columns(header, version)
    for column in columns:
        out.columns[column.name] = column
    if out.n and (not columns or any(column.dimension == 0 for column in columns)):
        raise InvalidFile("rows of nothing")
    if sum(_count(record, "rows") for record in _list(header, "chunks")) != out.n:
        raise InvalidFile("the rows of the chunks do not add up")
    _read_chunks(out, header, data, at + nbytes)
    _read_sections(out, header)
    out.metadata = {key: value for key, value in header.items() if key not in KNOWN}
    return out


def _version(data: bytes) -> tuple[str, int]:
    """Return the version and the offset of the header's length."""
    (word,) = _unpack("<I", data, 4)
    if word == 1:
        return "1.0", 8
    if word == 2:
        return "2.0", 8
    major, minor = struct.unpack_from("<HH", data, 4)
    if 1 <= major <= 10 and minor <= 100 and data[12:13] == b"{":
        raise NewerFile(f"version {major}.{minor}")
    return "0.1", 4


def parse_json(text: bytes) -> Any:
    """Parse JSON; NaN and Infinity are numbers, and a repeated key is an error."""

    def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InvalidFile(f"the key {key!r} is repeated")
            found[key] = value
        return found

    try:
        found = json.loads(text.decode(), object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"not JSON: {error}") from error
    if depth(found) > 256:
        raise InvalidFile("nested too deep")
    return found


def depth(value: Any) -> int:
    """Return how deep lists and objects are nested."""
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        each, level = waiting.pop()
        if isinstance(each, (dict, list)):
            deepest = max(deepest, level)
            waiting += [
                (item, level + 1) for item in (each.values() if isinstance(each, dict) else each)
            ]
    return deepest


def _columns(header: dict[str, Any], version: str) -> list[Column]:
    """Return the columns, one of version 0.1 and 1.0, without their rows."""
    if version != "2.0":
        records = [{**header, "name": "vectors", "dtype": "float32"}]
    else:
        if _text(header, "format_type") != "columnar":
            raise InvalidFile("2.0 is columnar")
        records = _list(header, "columns")
    columns: list[Column] = []
    for record in records:
        name, dtype = _text(record, "name"), _text(record, "dtype")
        if dtype not in DTYPES:
            raise InvalidFile(f"no dtype {dtype}")
        if name in [column.name for column in columns]:
            raise InvalidFile(f"two columns {name!r}")
        dimension = _count(record, "dimension")
        columns.append(Column(name, dimension, dtype, _text(record, "compression")))
    return columns


def _read_chunks(out: Decoded, header: dict[str, Any], data: bytes, header_end: int) -> None:
    """Read every chunk, and join their rows."""
    listed = _list(header, "chunks")
    placed = bool(header.get("mmap_optimized")) and out.version != "0.1"
    pieces: dict[str, list[list[Any]]] = {name: [] for name in out.columns}
    start, at = 0, header_end
    taken = []
    for record in listed:
        rows = _count(record, "rows")
        begin = _count(record, "file_offset") if placed else at
        if begin < header_end:
            raise InvalidFile(f"a chunk at {begin}, in the header")
        (nbytes,) = _unpack("<I", data, begin)
        at = begin + 4
        payload_sum = None
        if out.version != "0.1":
            (payload_sum,) = _unpack("<I", data, at)
            at += 4
        payload = _bytes(data, at, nbytes)
        at += nbytes
        taken.append((begin, at))
        intact = payload_sum is None or payload_sum == zlib.crc32(payload)
        if not intact:
            out.problems.append(f"the checksum of chunk {len(out.chunks)} does not hold")
        about = record.get("metadata")
        chunk = Chunk(start, rows, payload, intact, about if isinstance(about, dict) else {})
        for column in out.columns.values():
            _read_part(out, chunk, column, record, pieces[column.name])
        out.chunks.append(chunk)
        start += rows
    for i, (begin, end) in enumerate(taken):
        for other_begin, other_end in taken[:i]:
            if begin < other_end and other_begin < end:
                raise InvalidFile("two chunks overlap")
    end = max((end for _, end in taken), default=header_end)
    if end != len(data):
        raise InvalidFile(f"{len(data) - end} bytes behind the last chunk")
    for number, column in enumerate(out.columns.values()):
        _join(column, out, number, pieces[column.name])


def _read_part(
    out: Decoded, chunk: Chunk, column: Column, record: dict[str, Any], rows: list[list[Any]]
) -> None:
    """Read what a chunk has of a column."""
    entry, stored = record, chunk.payload
    if out.version == "2.0":
        entry = _object(_object(record, "columns"), column.name)
        offset, size = _count(entry, "offset"), _count(entry, "size")
        stored = _bytes(chunk.payload, offset, size)
    compression = entry.get("compression", column.compression)
    if compression not in COMPRESSIONS[out.version]:
        raise InvalidFile(f"{out.version} has no compression {compression!r}")
    chunk.compressions.append(compression)
    n = chunk.rows * column.dimension
    values: list[Any]
    if compression == "fp16":
        _exactly(stored, 2 * n)
        values = [half(bits) for (bits,) in struct.iter_unpack("<H", stored)]
    elif compression == "int8":
        minimum, scale = _number(entry, "min"), _number(entry, "scale")
        _exactly(stored, n)
        values = [affine(code, scale, minimum) for code in stored]
    elif compression == "lossless":
        values = planes(stored, n)
    else:
        dtype = np.dtype(column.dtype).newbyteorder("<")
        _exactly(stored, n * dtype.itemsize)
        values = list(np.frombuffer(stored, dtype))
    for i in range(chunk.rows):
        row = values[i * column.dimension : (i + 1) * column.dimension]
        if any(value is None for value in row):
            column.unreadable.add(chunk.start + i)
            row = [0.0] * column.dimension
            out.problems.append(f"no dictionary has all codes of row {chunk.start + i}")
        rows.append(row)


def _join(column: Column, out: Decoded, number: int, rows: list[list[Any]]) -> None:
    """Make one array of rows: in the column's own dtype where nothing is compressed."""
    found = {chunk.compressions[number] for chunk in out.chunks} or {column.compression}
    dtype = np.dtype(column.dtype if found == {"none"} else "float32")
    # Without a zero among them, the dimensions may be more than arrays have.
    if max(out.n, 1) * max(column.dimension, 1) * dtype.itemsize >= 2**63:
        raise InvalidFile(f"no array has the shape {(out.n, column.dimension)}")
    column.rows = np.empty((len(rows), column.dimension), dtype)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            column.rows[i, j] = value


def _read_sections(out: Decoded, header: dict[str, Any]) -> None:
    """Read the sections of the header; those that chunks repeat say nothing more."""
    if header.get("sections") is None:
        return
    for record in _list(header, "sections"):
        start, stop = _count(record, "start_index"), _count(record, "end_index")
        if not start <= stop <= out.n:
            raise InvalidFile(f"no section has the rows {start} to {stop} of {out.n}")
        metadata = record.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise InvalidFile("the metadata of a section are no object")
        out.sections.append((start, stop, metadata or {}))


# ---------------------------------------------------------------------------------- compressions


def half(bits: int) -> np.float32:
    """Return what a half-precision pattern means."""
    sign = -1.0 if bits & 0x8000 else 1.0
    exponent, fraction = bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return np.float32(math.nan if fraction else sign * math.inf)
    if exponent == 0:
        return np.float32(sign * fraction * 2.0**-24)
    return np.float32(sign * (1024 + fraction) * 2.0 ** (exponent - 25))


def affine(code: int, scale: float, minimum: float) -> np.float32:
    """Return code * scale + minimum, rounded to float32 after each operation."""
    with np.errstate(all="ignore"):
        product = np.float32(np.float32(code) * np.float32(scale))
        return np.float32(product + np.float32(minimum))


def planes(stored: bytes, n: int) -> list[np.float32 | None]:
    """Return the numbers in four byte planes; None where a code is in no dictionary."""
    n_stored, *widths = _unpack("<I4B", stored, 0)
    if n_stored != n:
        raise InvalidFile(f"{n_stored} numbers in the planes, not {n}")
    at = 8
    numbers: list[list[int | None]] = []
    for width in widths:
        if not 1 <= width <= 8:
            raise InvalidFile(f"codes of {width} bits")
        (size,) = _unpack("<H", stored, at)
        if size > 256 or (n and not size):
            raise InvalidFile(f"a dictionary of {size} bytes")
        dictionary = _bytes(stored, at + 2, size)
        at += 2 + size
        packed = _bytes(stored, at, (n * width + 7) // 8)
        at += len(packed)
        digits = "".join(f"{byte:08b}" for byte in packed)
        codes = [int(digits[i * width : (i + 1) * width], 2) for i in range(n)]
        numbers.append([dictionary[code] if code < size else None for code in codes])
    if at != len(stored):
        raise InvalidFile(f"the planes end at {at}, the payload at {len(stored)}")
    values: list[np.float32 | None] = []
    for letters in zip(*numbers, strict=True):
        if any(letter is None for letter in letters):
            values.append(None)
        else:
            values.append(np.frombuffer(bytes(letters), "<f4")[0])
    return values


# ------------------------------------------------------------------------------------- take apart


def _unpack(layout: str, data: bytes, offset: int) -> tuple[int, ...]:
    """Unpack fixed fields."""
    return struct.unpack(layout, _bytes(data, offset, struct.calcsize(layout)))


def _bytes(data: bytes, offset: int, length: int) -> bytes:
    """Return bytes that are all there."""
    if offset + length > len(data):
        raise InvalidFile(f"{length} bytes at {offset} do not fit in {len(data)}")
    return data[offset : offset + length]


def _exactly(stored: bytes, nbytes: int) -> None:
    """Refuse a payload of another length."""
    if len(stored) != nbytes:
        raise InvalidFile(f"a payload of {len(stored)} bytes is of another length")


def _get(record: Any, key: str, kinds: list[type]) -> Any:
    """Return a required value of exactly one of these types: True is not a number."""
    if type(record) is not dict:
        raise InvalidFile(f"{record!r:.40} is not an object")
    if key not in record:
        raise InvalidFile(f"there is no {key}")
    if type(record[key]) not in kinds:
        raise InvalidFile(f"{key} is {record[key]!r:.40}")
    return record[key]


def _count(record: Any, key: str) -> int:
    """Return a number of things."""
    value: int = _get(record, key, [int])
    if value < 0:
        raise InvalidFile(f"{key} is negative")
    return value


def _number(record: Any, key: str) -> float:
    """Return a number that a double can hold."""
    try:
        return float(_get(record, key, [int, float]))
    except OverflowError as error:
        raise InvalidFile(f"{key} is too large") from error


def _text(record: Any, key: str) -> str:
    """Return a string."""
    return str(_get(record, key, [str]))


def _list(record: Any, key: str) -> list[Any]:
    """Return a list."""
    return list(_get(record, key, [list]))


def _object(record: Any, key: str) -> dict[str, Any]:
    """Return an object."""
    return dict(_get(record, key, [dict]))


# ---------------------------------------------------------------------------------------- encode


def encode(
    version: str, header: dict[str, Any] | bytes, payloads: list[bytes], *, pad: bytes = b"\0"
) -> bytes:
    """Return the bytes of a file.

    A header that says mmap_optimized gets a file_offset in each chunk, at a multiple of 4096.
    """
    text = header if isinstance(header, bytes) else json_of(header)
    prelude = MAGIC if version == "0.1" else MAGIC + struct.pack("<HH", int(version[0]), 0)
    records = []
    for payload in payloads:
        checksum = b"" if version == "0.1" else struct.pack("<I", zlib.crc32(payload))
        records.append(struct.pack("<I", len(payload)) + checksum + payload)
    if isinstance(header, bytes) or not header.get("mmap_optimized"):
        return prelude + struct.pack("<I", len(text)) + text + b"".join(records)

    pages = 1  # the header's
    while True:
        at, chunks = 4096 * pages, []
        for entry, record in zip(header["chunks"], records, strict=True):
            chunks.append({**entry, "file_offset": at})
            at += len(record) + -len(record) % 4096
        text = json_of({**header, "chunks": chunks})
        out = prelude + struct.pack("<I", len(text)) + text
        if len(out) <= 4096 * pages:
            break
        pages += 1
    for entry, record in zip(chunks, records, strict=True):
        out += pad * (entry["file_offset"] - len(out)) + record
    return out


def json_of(header: Any) -> bytes:
    """Return JSON without white space and, as the format allows, with bare NaN."""
    return json.dumps(header, separators=(",", ":")).encode()


def matrix(
    version: str, chunks: list[tuple[str, Any]], *, default: str = "fp16", **more: Any
) -> bytes:
    """Encode a file of version 0.1 or 1.0 from how each chunk is stored, and its rows."""
    header: dict[str, Any] = {"num_vectors": 0, "dimension": 0, "compression": default}
    header["chunks"], payloads = [], []
    for compression, rows in chunks:
        array = np.asarray(rows, np.float32)
        entry, payload = stored_as(compression, array)
        if compression != default:
            entry["compression"] = compression
        header["num_vectors"] += array.shape[0]
        header["dimension"] = array.shape[1]
        header["chunks"].append({"rows": array.shape[0], **entry})
        payloads.append(payload)
    return encode(version, {**header, **more}, payloads)


def columnar(
    columns: dict[str, tuple[str, str, int]], chunks: list[dict[str, Any]], **more: Any
) -> bytes:
    """Encode a file of version 2.0.

    Columns have a dtype, a compression and a dimension; a chunk has rows for each, which come
    in the payload in the order of the chunk.
    """
    header: dict[str, Any] = {"format_type": "columnar", "num_vectors": 0, "columns": []}
    for name, (dtype, compression, dimension) in columns.items():
        column = {"name": name, "dimension": dimension, "dtype": dtype}
        header["columns"].append({**column, "compression": compression})
    header["chunks"], payloads = [], []
    for chunk in chunks:
        n, entries, payload = 0, {}, b""
        for name, rows in chunk.items():
            dtype, compression, dimension = columns[name]
            array = np.asarray(rows, dtype).reshape(-1, dimension)
            entry, stored = stored_as(compression, array)
            where = {"compression": compression, "offset": len(payload), "size": len(stored)}
            entries[name] = {**where, **entry}
            payload += stored
            n = array.shape[0]
        header["chunks"].append({"rows": n, "columns": entries})
        header["num_vectors"] += n
        payloads.append(payload)
    return encode("2.0", {**header, **more}, payloads)


def stored_as(compression: str, rows: np.ndarray) -> tuple[dict[str, Any], bytes]:
    """Return what a chunk's entry says about rows beside the compression, and the payload."""
    values = rows.reshape(-1).tolist()
    if compression == "fp16":
        return {}, b"".join(struct.pack("<e", value) for value in values)
    if compression == "int8":
        return _quantized(rows.reshape(-1).astype(np.float32))
    if compression == "lossless":
        return {}, _in_planes(rows)
    return {}, rows.astype(rows.dtype.newbyteorder("<")).tobytes()


def _quantized(values: np.ndarray) -> tuple[dict[str, Any], bytes]:
    """Return the smallest value and the step between codes, and the nearest codes."""
    if not all(math.isfinite(value) for value in values):
        raise ValueError("int8 holds no NaN and no infinity")
    if not len(values):
        return {"min": 0.0, "scale": 1.0}, b""
    minimum, maximum = min(values), max(values)
    scale = np.float32((float(maximum) - float(minimum)) / 255) or np.float32(1)
    codes = []
    for value in values:
        steps = np.float32(np.float32(value - minimum) / scale)
        codes.append(min(max(round(float(steps)), 0), 255))  # halves to even
    return {"min": float(minimum), "scale": float(scale)}, bytes(codes)


def _in_planes(rows: np.ndarray) -> bytes:
    """Return four byte planes, each a dictionary and codes of as few bits as it takes."""
    data = rows.astype("<f4").tobytes()
    widths, body = [], b""
    for plane in range(4):
        letters = data[plane::4]
        dictionary = sorted(set(letters))
        width = max(1, math.ceil(math.log2(len(dictionary)))) if dictionary else 1
        widths.append(width)
        digits = "".join(f"{dictionary.index(letter):0{width}b}" for letter in letters)
        digits += "0" * (-len(digits) % 8)
        packed = bytes(int(digits[i : i + 8], 2) for i in range(0, len(digits), 8))
        body += struct.pack("<H", len(dictionary)) + bytes(dictionary) + packed
    return struct.pack("<I4B", len(data) // 4, *widths) + body
