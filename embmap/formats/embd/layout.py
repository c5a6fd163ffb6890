"""The layout of EMBD files: from bytes to frozen offsets, everything validated.

The dialect "spec" follows the published text: a header of 64 bytes, metadata, vocabulary, tensor
index, tensor data, footer. The only known program that uses the magic emits "flat": tensors one
after the other, then the vocabulary, without padding or checksums. docs/formats/embd.md describes
how they are distinguished.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from embmap.errors import ChecksumError, FormatError, TruncatedError, UnsupportedError
from embmap.formats.embd.fields import (
    CHECKSUM_ENABLED,
    COMPRESSED,
    END_MAGIC,
    FOOTER,
    FORMAT,
    HEADER,
    MAGIC,
    SPECIAL_TOKENS,
    VOCAB_EMBEDDED,
    TensorLayout,
)
from embmap.formats.embd.tensor_table import DescribedTensors, WalkedTensors
from embmap.formats.tensors import TensorTable
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.words.records import Records, scan

__all__ = ["EmbdLayout", "parse"]

_LENGTHS = struct.Struct("<HH").unpack_from
_AHEAD = 1 << 12  # bytes of the metadata that are read at once


@dataclass(frozen=True, kw_only=True)
class EmbdLayout:
    """The offsets and sizes of a file, all inside it.

    Attributes
    ----------
    tensors : TensorTable
        The tensors in the order of the file.
    vocabulary : Records or None
        The tokens.
    data_offset, data_nbytes : int
        The section of the tensor data.
    stated_nbytes : int or None
        The size of the tokens in the vocabulary section; None in flat files.
    special_tokens : dict
        The numbers of "pad", "unk", "cls", "sep" and "mask"; empty if the file does not have them.
    metadata : tuple of (str, str)
        Keys and values in the order of the file.
    flags : int
        The flags of the header; 0 in flat files.
    warnings : tuple of (str, int)
        Violations of the text that leave the file readable, and their offsets.
    """

    dialect: str
    tensors: TensorTable[TensorLayout]
    vocabulary: Records | None
    data_offset: int
    data_nbytes: int
    stated_nbytes: int | None = None
    special_tokens: dict[str, int] = field(default_factory=dict)
    metadata: tuple[tuple[str, str], ...] = ()
    flags: int = 0
    warnings: tuple[tuple[str, int], ...] = ()

    @property
    def has_checksums(self) -> bool:
        """Whether the file has checksums."""
        return bool(self.flags & CHECKSUM_ENABLED)


def parse(file: ByteSource, dialect: str | None = None) -> EmbdLayout:
    """Parse an EMBD file, as `dialect` if one is given; by default the bytes decide."""
    reader = FieldReader(file, FORMAT)
    head = file.read_at_most(0, HEADER.size)
    magic = head[:4] if len(head) >= 4 else reader.raw(4, "magic")
    if magic != MAGIC:
        raise FormatError("not an EMBD file", **reader.where("magic", 0), found=magic)
    reader.offset = 4
    version = int.from_bytes(head[4:8], "little") if len(head) >= 8 else reader.u32("version")
    if version & 0xFFFF != 1:
        raise UnsupportedError(
            "this embmap reads version 1 of EMBD files; another format may have the same magic",
            **reader.where("version_major", 4),
            found=version & 0xFFFF,
            expected=1,
        )
    if dialect == "spec" or (dialect is None and _is_spec(file, head)):
        return _parse_spec(file, head)
    if dialect == "flat":
        return _parse_flat(file)
    minor = version >> 16
    if minor:  # flat files have no minor version
        return _parse_spec(file, head)
    try:
        return _parse_flat(file)
    except FormatError as as_flat:
        raise FormatError(
            "neither layout fits: not spec: the checksum, size and end magic do not match; not "
            f"flat: {as_flat}",
            path=file.path,
            format=FORMAT,
        ) from None


def _is_spec(file: ByteSource, head: bytes) -> bool:
    """Whether the checksum of the header is right, or both its size and the end magic are."""
    if len(head) < HEADER.size:
        return False
    fields = HEADER.unpack(head)
    if zlib.crc32(head[:56]) == fields[13]:
        return True
    size_holds = fields[12] == file.nbytes
    ends = file.nbytes >= HEADER.size + FOOTER.size
    end_holds = ends and file.read(file.nbytes - 8, 4) == END_MAGIC
    return size_holds and end_holds


def _parse_spec(file: ByteSource, head: bytes) -> EmbdLayout:
    reader = FieldReader(file, FORMAT)
    fields = HEADER.unpack(head if len(head) == HEADER.size else reader.raw(HEADER.size, "header"))
    _, _, minor, flags, metadata_offset, metadata_nbytes, vocab_offset, vocab_nbytes = fields[:8]
    index_offset, n_tensors, data_offset, data_nbytes, total, checksum, _ = fields[8:]
    if flags & CHECKSUM_ENABLED and zlib.crc32(head[:56]) != checksum:
        where = reader.where("header_checksum", 56)
        raise ChecksumError("the checksum does not match the header", **where)
    if total != file.nbytes:
        raise TruncatedError(
            "the size of the file differs from its total_file_size",
            **reader.where("total_file_size", 48),
            found=f"{file.nbytes} bytes",
            expected=f"{total} bytes",
        )
    end = file.nbytes - FOOTER.size
    if end < HEADER.size or file.read(file.nbytes - 8, 4) != END_MAGIC:
        raise TruncatedError(
            "the file does not end with the end magic", **reader.where("magic_end", file.nbytes - 8)
        )
    if flags & COMPRESSED:
        raise UnsupportedError("embmap reads no compressed tensors", **reader.where("flags", 8))
    if flags & ~0xF:
        where = reader.where("flags", 8)
        raise UnsupportedError("the flags are not known", **where, found=hex(flags))
    for what, offset, nbytes in (
        ("metadata", metadata_offset, metadata_nbytes),
        ("vocabulary", vocab_offset, vocab_nbytes),
        ("tensor data", data_offset, data_nbytes),
    ):
        if nbytes and not HEADER.size <= offset <= end - nbytes:
            raise TruncatedError(
                f"the {what} section exceeds the file",
                **reader.where(what, offset),
                found=f"{nbytes} bytes",
            )
    warnings: list[tuple[str, int]] = []
    if minor:
        warnings.append((f"embmap knows minor version 0 of EMBD files, not {minor}", 6))
    metadata = _metadata(file, metadata_offset, metadata_nbytes, warnings)
    vocabulary, stated = None, None
    special: dict[str, int] = {}
    if flags & VOCAB_EMBEDDED and vocab_nbytes:
        vocabulary, stated, special = _vocabulary(file, vocab_offset, vocab_nbytes)
    index = FieldReader(file, FORMAT, index_offset, end)
    return EmbdLayout(
        dialect="spec",
        tensors=DescribedTensors(file, index, n_tensors, data=(data_offset, data_nbytes)),
        vocabulary=vocabulary,
        data_offset=data_offset,
        data_nbytes=data_nbytes,
        stated_nbytes=stated,
        special_tokens=special,
        metadata=metadata,
        flags=flags,
        warnings=tuple(warnings),
    )


def _metadata(
    file: ByteSource, offset: int, nbytes: int, warnings: list[tuple[str, int]]
) -> tuple[tuple[str, str], ...]:
    """Parse the metadata section; append to `warnings` if its size field is wrong."""
    if not nbytes:
        return ()
    reader = FieldReader(file, FORMAT, offset, offset + nbytes)
    n_entries, total = reader.u32("entry_count"), reader.u32("total_size")
    if 4 * n_entries > reader.remaining:
        raise TruncatedError(
            f"{n_entries} entries exceed the {reader.remaining} bytes of the section",
            **reader.where("entry_count", offset),
        )
    start = reader.offset
    block = file.read(start, min(reader.remaining, _AHEAD))
    entries = []
    for i in range(n_entries):
        at = reader.offset - start
        try:
            key_nbytes, value_nbytes = _LENGTHS(block, at)
            middle = at + 4 + key_nbytes
            end = middle + value_nbytes
            entry = block[at + 4 : middle].decode(), block[middle:end].decode()
        except (struct.error, UnicodeDecodeError):
            end = len(block) + 1
        if end <= len(block):
            reader.offset = start + end
        else:
            entry = _read_entry(reader, f"metadata entry {i}")
        entries.append(entry)
    if reader.offset - start != total:
        nbytes = reader.offset - start
        warnings.append((f"the total_size of the metadata must be {nbytes}, not {total}", offset))
    return tuple(entries)


def _read_entry(reader: FieldReader, field: str) -> tuple[str, str]:
    """Return the next key and value, read field by field."""
    lengths = reader.u32(field)
    key = reader.raw(lengths & 0xFFFF, field)
    name = reader.decode(key, reader.offset - len(key), field)
    value = reader.raw(lengths >> 16, field)
    return name, reader.decode(value, reader.offset - len(value), field)


def _vocabulary(file: ByteSource, offset: int, nbytes: int) -> tuple[Records, int, dict[str, int]]:
    """Parse the vocabulary section: its tokens, their stated size and the special tokens."""
    reader = FieldReader(file, FORMAT, offset, offset + nbytes)
    n_tokens = reader.u32("token_count")
    stated = reader.u32("total_size")
    special_offset = reader.u32("special_tokens")
    if 2 * n_tokens > reader.remaining:
        raise TruncatedError(
            f"{n_tokens} tokens exceed the {reader.remaining} bytes of the section",
            **reader.where("token_count", offset),
        )
    records = Records(
        reader.offset, offset + nbytes, n_tokens, FORMAT, noun="token", prefix=2, exact=False
    )
    special: dict[str, int] = {}
    if special_offset:
        end = offset + nbytes
        size = 4 * len(SPECIAL_TOKENS)
        if not offset <= special_offset <= end - size:
            # Some writers count from the start of the section.
            if offset + special_offset > end - size:
                raise TruncatedError(
                    "the special tokens exceed the vocabulary section",
                    **reader.where("special_tokens", offset + 8),
                    found=special_offset,
                )
            special_offset += offset
        numbers = FieldReader(file, FORMAT, special_offset, end)
        special = {name: numbers.u32(f"{name}_id") for name in SPECIAL_TOKENS}
    return records, stated, special


def _parse_flat(file: ByteSource) -> EmbdLayout:
    reader = FieldReader(file, FORMAT, 8)
    n_tensors = reader.u32("num_tensors")
    if 12 * n_tensors > reader.remaining:
        raise TruncatedError(
            f"{n_tensors} tensors exceed the {reader.remaining} bytes of the file",
            **reader.where("num_tensors", 8),
        )
    tensors = WalkedTensors(file, reader.offset, n_tensors)
    reader.offset = tensors.end
    n_tokens = reader.u32("vocab_size")
    records = Records(reader.offset, file.nbytes, n_tokens, FORMAT, noun="token")
    scan(file, records)  # only a vocabulary that ends with the file proves that the file is flat
    data_offset = tensors.describe(0).offset if tensors else reader.offset
    return EmbdLayout(
        dialect="flat",
        tensors=tensors,
        vocabulary=records if n_tokens else None,
        data_offset=data_offset,
        data_nbytes=reader.offset - data_offset,
    )
