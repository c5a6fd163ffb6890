"""A slow, obvious decoder and encoder for EMBD files, written straight from the format.

It reads and writes the published layout ("spec") and the one that files in the wild have ("flat"),
all at once and into memory. It shares no code with embmap: it is the oracle embmap is compared
with, so nothing here is clever or fast.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass, field

import numpy as np

MAGIC, END_MAGIC = b"EMBD", b"DBME"
HEADER, FOOTER, DESCRIPTOR = 64, 16, 32
VOCAB_EMBEDDED, TENSORS_ALIGNED, CHECKSUM_ENABLED, COMPRESSED = 1, 2, 4, 8
# Types by their number in a descriptor. numpy has no bfloat16: the arrays hold its bits.
DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "int32",
    "int16",
    "int8",
    "uint32",
    "uint16",
    "uint8",
]
SPECIAL_TOKENS = ["pad", "unk", "cls", "sep", "mask"]
REQUIRED_METADATA = {
    "model_name": "m",
    "model_version": "1.0.0",
    "embedding_dim": "3",
    "vocab_size": "4",
    "num_layers": "1",
    "num_attention_heads": "1",
    "hidden_size": "3",
    "intermediate_size": "8",
    "max_position_emb": "8",
    "created_at": "2025-01-16T12:00:00Z",
}


class InvalidFile(ValueError):
    """The bytes are not an EMBD file."""


@dataclass
class Decoded:
    """The content of an EMBD file; parts that the file does not have are empty."""

    layout: str = "spec"
    tensors: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = field(default_factory=dict)
    tokens: list[bytes] = field(default_factory=list)
    special_tokens: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    flags: int = 0
    problems: list[str] = field(default_factory=list)  # what can be read past, but is wrong


def numpy_dtype(dtype: str) -> np.dtype:
    """Return what numpy holds a tensor in."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")


def fnv1a(name: bytes) -> int:
    """Return the FNV-1a hash of 32 bits."""
    value = 0x811C9DC5
    for byte in name:
        value ^= byte
        value = value * 0x01000193 % 2**32
    return value


# ---------------------------------------------------------------------------------------- decode


def decode(data: bytes) -> Decoded:
    """Decode a whole file, or raise InvalidFile."""
    if data[:4] != MAGIC:
        raise InvalidFile("no magic")
    major, minor = _unpack("<HH", data, 4, len(data))
    if major != 1:
        raise InvalidFile(f"version {major}")
    out = Decoded()
    if _is_spec(data):
        _read_spec(out, data)
    elif minor != 0:
        raise InvalidFile("a minor version, which flat files do not have, and no sign of spec")
    else:
        _read_flat(out, data)
    _find_problems(out)
    return out


def _is_spec(data: bytes) -> bool:
    """Say whether the checksum of the header holds, or two of three signs do."""
    if len(data) < HEADER:
        return False
    (checksum,) = struct.unpack_from("<I", data, 56)
    (total,) = struct.unpack_from("<Q", data, 48)
    checksum_holds = checksum == zlib.crc32(data[:56])
    size_holds = total == len(data)
    end_holds = data[-8:-4] == END_MAGIC
    return checksum_holds or [checksum_holds, size_holds, end_holds].count(True) >= 2


def _read_spec(out: Decoded, data: bytes) -> None:
    """Read the layout of the published text."""
    if len(data) < HEADER + FOOTER:
        raise InvalidFile("too short for a header and a footer")
    (
        out.flags,
        metadata_offset,
        metadata_size,
        vocab_offset,
        vocab_size,
        index_offset,
        n_tensors,
        data_offset,
        data_size,
        total,
        header_checksum,
    ) = struct.unpack_from("<8IQQI", data, 8)
    if total != len(data):
        raise InvalidFile(f"{total} bytes announced, {len(data)} there")
    if data[-8:-4] != END_MAGIC:
        raise InvalidFile("no end magic")
    if out.flags & COMPRESSED or out.flags > 15:
        raise InvalidFile(f"flags {out.flags:#x}")
    checksums = bool(out.flags & CHECKSUM_ENABLED)
    if checksums and header_checksum != zlib.crc32(data[:56]):
        raise InvalidFile("the checksum of the header does not hold")

    end = len(data) - FOOTER
    for offset, size in (
        (metadata_offset, metadata_size),
        (vocab_offset, vocab_size),
        (data_offset, data_size),
    ):
        if size and (offset < HEADER or offset + size > end):
            raise InvalidFile(f"a section of {size} bytes at {offset} is not inside the file")
    if metadata_size:
        _read_metadata(out, data, metadata_offset, metadata_offset + metadata_size)
    if out.flags & VOCAB_EMBEDDED and vocab_size:
        _read_vocabulary(out, data, vocab_offset, vocab_offset + vocab_size)
    if index_offset < HEADER:
        raise InvalidFile("the tensor index is inside the header")
    _read_tensors(out, data, index_offset, n_tensors, (data_offset, data_size))

    if checksums:
        data_checksum, file_checksum = struct.unpack_from("<II", data, end)
        if data_checksum != zlib.crc32(data[data_offset : data_offset + data_size]):
            out.problems.append("the checksum of the tensor data does not hold")
        if file_checksum != zlib.crc32(data[:end]):
            out.problems.append("the checksum of the file does not hold")


def _read_metadata(out: Decoded, data: bytes, at: int, stop: int) -> None:
    """Read the metadata section."""
    n_entries, _ = _unpack("<II", data, at, stop)
    at += 8
    for _ in range(n_entries):
        key_length, value_length = _unpack("<HH", data, at, stop)
        at += 4
        key = _text(_bytes(data, at, key_length, stop))
        at += key_length
        out.metadata[key] = _text(_bytes(data, at, value_length, stop))
        at += value_length


def _read_vocabulary(out: Decoded, data: bytes, start: int, stop: int) -> None:
    """Read the vocabulary section."""
    n_tokens, _, special = _unpack("<III", data, start, stop)
    at = start + 12
    for _ in range(n_tokens):
        (length,) = _unpack("<H", data, at, stop)
        out.tokens.append(_bytes(data, at + 2, length, stop))
        at += 2 + length
    if special:
        if not start <= special <= stop - 20:  # absolute does not fit: relative, or nothing
            special += start
        numbers = _unpack("<5I", data, special, stop)
        out.special_tokens = dict(zip(SPECIAL_TOKENS, numbers, strict=True))


def _read_tensors(
    out: Decoded, data: bytes, at: int, n_tensors: int, section: tuple[int, int]
) -> None:
    """Read the tensor index and the tensors it names."""
    end = len(data) - FOOTER
    data_offset, data_size = section
    if at + DESCRIPTOR * n_tensors > end:
        raise InvalidFile(f"{n_tensors} tensors do not fit in the file")
    name_at = at + DESCRIPTOR * n_tensors
    taken: list[tuple[int, int]] = []
    for _ in range(n_tensors):
        name_hash, dtype_id, n_dims, name_length, *dims, start = _unpack("<IBBH4IQ", data, at, end)
        at += DESCRIPTOR
        raw_name = _bytes(data, name_at, name_length, end)
        name_at += name_length
        if dtype_id >= len(DTYPES):
            raise InvalidFile(f"data type {dtype_id}")
        if not 1 <= n_dims <= 4 or any(dims[n_dims:]):
            raise InvalidFile(f"{n_dims} dimensions: {dims}")
        shape, dtype = tuple(dims[:n_dims]), DTYPES[dtype_id]
        size = math.prod(shape) * numpy_dtype(dtype).itemsize
        if start + size > data_size:
            raise InvalidFile("a tensor outside the tensor data")
        if size:
            for other_start, other_stop in taken:
                if start < other_stop and other_start < start + size:
                    raise InvalidFile("tensors overlap")
            taken.append((start, start + size))
        _add_tensor(out, _text(raw_name), dtype, shape, data[data_offset + start :][:size])
        if name_hash != fnv1a(raw_name):
            out.problems.append("the hash of a name is wrong")


def _read_flat(out: Decoded, data: bytes) -> None:
    """Read tensors one after the other, then the vocabulary, to the last byte."""
    out.layout = "flat"
    end = len(data)
    (n_tensors,) = _unpack("<I", data, 8, end)
    at = 12
    for _ in range(n_tensors):
        (length,) = _unpack("<I", data, at, end)
        name = _text(_bytes(data, at + 4, length, end))
        at += 4 + length
        (n_dims,) = _unpack("<I", data, at, end)
        if not 1 <= n_dims <= 4:
            raise InvalidFile(f"{n_dims} dimensions")
        shape = _unpack(f"<{n_dims}I", data, at + 4, end)
        at += 4 + 4 * n_dims
        size = 4 * math.prod(shape)
        _add_tensor(out, name, "float32", shape, _bytes(data, at, size, end))
        at += size
    (n_tokens,) = _unpack("<I", data, at, end)
    at += 4
    for _ in range(n_tokens):
        (length,) = _unpack("<I", data, at, end)
        out.tokens.append(_bytes(data, at + 4, length, end))
        at += 4 + length
    if at != end:
        raise InvalidFile(f"the vocabulary ends at {at}, the file at {end}")


def _add_tensor(out: Decoded, name: str, dtype: str, shape: tuple[int, ...], raw: bytes) -> None:
    """Add a tensor under a name that no other has."""
    if name in out.tensors:
        raise InvalidFile(f"two tensors are called {name!r}")
    # Without a zero among them, the dimensions of an empty tensor may be more than arrays have.
    if math.prod(n for n in shape if n) * numpy_dtype(dtype).itemsize >= 2**63:
        raise InvalidFile(f"no array has the shape {shape}")
    out.tensors[name] = (dtype, shape, np.frombuffer(raw, numpy_dtype(dtype)).reshape(shape))


def _find_problems(out: Decoded) -> None:
    """Note what can be read past, but is wrong in any layout."""
    for token in out.tokens:
        try:
            token.decode()
        except UnicodeDecodeError:
            out.problems.append(f"token {token!r} is not UTF-8")
    if len(set(out.tokens)) < len(out.tokens):
        out.problems.append("a token is there twice")


def _unpack(layout: str, data: bytes, offset: int, stop: int) -> tuple[int, ...]:
    """Unpack fixed fields that end before stop."""
    if offset + struct.calcsize(layout) > stop:
        raise InvalidFile(f"fields at {offset} do not fit")
    return struct.unpack_from(layout, data, offset)


def _bytes(data: bytes, offset: int, length: int, stop: int) -> bytes:
    """Return bytes that end before stop."""
    if offset + length > stop:
        raise InvalidFile(f"{length} bytes at {offset} do not fit")
    return data[offset : offset + length]


def _text(raw: bytes) -> str:
    """Decode UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidFile("not UTF-8") from error


# ---------------------------------------------------------------------------------------- encode


def encode(
    content: Decoded, layout: str = "spec", *, align: int = 64, checksums: bool = True
) -> bytes:
    """Encode a whole file; the flat layout has neither metadata nor alignment nor checksums."""
    return _flat(content) if layout == "flat" else _spec(content, align, checksums)


def _flat(content: Decoded) -> bytes:
    """Encode the flat layout."""
    out = struct.pack("<4sII", MAGIC, 1, len(content.tensors))
    for name, (dtype, shape, raw) in content.tensors.items():
        if dtype != "float32":
            raise ValueError(f"flat files hold float32, not {dtype}")
        out += struct.pack("<I", len(name.encode())) + name.encode()
        out += struct.pack(f"<I{len(shape)}I", len(shape), *shape)
        out += raw.astype("<f4").tobytes()
    out += struct.pack("<I", len(content.tokens))
    for token in content.tokens:
        out += struct.pack("<I", len(token)) + token
    return out


def _spec(content: Decoded, align: int, checksums: bool) -> bytes:
    """Encode the layout of the published text, its sections in the order of the text."""
    flags = 0
    if content.tokens:
        flags |= VOCAB_EMBEDDED
    if align % 64 == 0:
        flags |= TENSORS_ALIGNED
    if checksums:
        flags |= CHECKSUM_ENABLED

    entries = b""
    for key, value in content.metadata.items():
        entries += struct.pack("<HH", len(key.encode()), len(value.encode()))
        entries += key.encode() + value.encode()
    metadata = struct.pack("<II", len(content.metadata), len(entries)) + entries

    vocabulary, vocab_offset = b"", HEADER + len(metadata)
    if content.tokens:
        tokens = b"".join(struct.pack("<H", len(token)) + token for token in content.tokens)
        special_offset = vocab_offset + 12 + len(tokens) if content.special_tokens else 0
        vocabulary = struct.pack("<III", len(content.tokens), len(tokens), special_offset) + tokens
        if content.special_tokens:
            numbers = [content.special_tokens[name] for name in SPECIAL_TOKENS]
            vocabulary += struct.pack("<5I", *numbers)

    data, descriptors, names = b"", b"", b""
    for name, (dtype, shape, raw) in content.tensors.items():
        data += bytes(-len(data) % align)
        dims = [*shape, 0, 0, 0][:4]
        sizes = (DTYPES.index(dtype), len(shape), len(name.encode()))
        descriptors += struct.pack("<IBBH", fnv1a(name.encode()), *sizes)
        descriptors += struct.pack("<4IQ", *dims, len(data))
        names += name.encode()
        data += raw.astype(numpy_dtype(dtype)).tobytes()

    index_offset = vocab_offset + len(vocabulary)
    index_end = index_offset + len(descriptors) + len(names)
    data_offset = index_end + -index_end % align
    total = data_offset + len(data) + FOOTER
    header = struct.pack("<4sHHI", MAGIC, 1, 0, flags)
    header += struct.pack("<II", HEADER, len(metadata))
    header += struct.pack("<II", vocab_offset if vocabulary else 0, len(vocabulary))
    header += struct.pack("<III", index_offset, len(content.tensors), data_offset)
    header += struct.pack("<QQ", len(data), total)
    header += struct.pack("<II", zlib.crc32(header) if checksums else 0, 0)
    out = header + metadata + vocabulary + descriptors + names
    out += bytes(data_offset - index_end) + data
    sums = (zlib.crc32(data), zlib.crc32(out)) if checksums else (0, 0)
    return out + struct.pack("<II4sI", *sums, END_MAGIC, 0)
