"""Writing EMBD files in both layouts.

Shapes and types are asked for first, so that every offset is known before a byte is written. Then
tensors are taken one at a time and written in blocks, so that memory stays bounded, and the file
appears under its name only once it is whole.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from embmap.formats.embd.file import Tensors
from embmap.formats.embd.layout import (
    CHECKSUM_ENABLED,
    DESCRIPTOR,
    DTYPES,
    END_MAGIC,
    FOOTER,
    HEADER,
    MAGIC,
    REQUIRED_METADATA,
    SPECIAL_TOKENS,
    TENSORS_ALIGNED,
    VOCAB_EMBEDDED,
    fnv1a,
)
from embmap.io.atomic_write import replacing

__all__ = ["TensorBlocks", "write"]

_DTYPE_IDS = {name.replace("<", ""): number for number, name in DTYPES.items()}
_SHORT = 0xFFFF
_BLOCK_NBYTES = 1 << 22


@runtime_checkable
class TensorBlocks(Protocol):
    """A tensor that is not in memory: a Matrix, or anything with a shape, a dtype and blocks."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Return the tensor a few entries of its first dimension at a time."""
        ...


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, npt.ArrayLike | TensorBlocks],
    *,
    vocab: Iterable[str] | None = None,
    special_tokens: Mapping[str, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    align: int = 64,
    checksums: bool = True,
    layout: str = "spec",
) -> Path:
    """Write an EMBD file.

    Parameters
    ----------
    path : path-like
        The file to create or replace; it is replaced only when everything has been written.
    tensors : mapping
        From names to arrays of one to four dimensions: float32, float16, bfloat16 (of ml_dtypes, or
        out of another file's ``tensors``), int32, int16, int8, uint32, uint16 or uint8; float32
        alone in the flat layout. Each is asked for twice. A Matrix is an array, too.
    vocab : iterable of str, optional
        The tokens in the order of their numbers.
    special_tokens : mapping, optional
        The numbers of the tokens "pad", "unk", "cls", "sep" and "mask", all five; by default those
        of "[PAD]", "[UNK]" and so on when the vocabulary has them all.
    metadata : mapping, optional
        Keys and values, which become str. The ten keys of the published text are required; without
        metadata they are derived from the tensors, and "unknown" where that cannot be.
    align : int
        Tensors start at multiples of it: a power of two.
    checksums : bool
        Whether to write checksums.
    layout : {"spec", "flat"}
        The published text's layout, or the one that cpp_embedder reads, which has no metadata,
        special tokens, padding or checksums.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    ValueError
        When something does not fit the layout; the old file, if there was one, is left as it was.
    TypeError
        When a token or name is no str.
    OSError
        When the file cannot be written.
    """
    if layout not in ("spec", "flat"):
        raise ValueError(f"layout must be 'spec' or 'flat', not {layout!r}")
    if align < 1 or align & (align - 1):
        raise ValueError(f"align must be a power of two, not {align}")
    most = _SHORT if layout == "spec" else 0xFFFFFFFF  # bytes of a token or a name
    tokens = None if vocab is None else [_utf8(token, "token", most) for token in vocab]
    plan = {name: _planned(tensors, name, most) for name in tensors}
    if layout == "flat":
        if metadata or special_tokens:
            raise ValueError("the flat layout holds neither metadata nor special tokens")
        with replacing(path) as handle:
            _write_flat(_Output(handle), tensors, plan, tokens)
        return Path(os.fsdecode(path))
    special = _special(special_tokens, tokens)
    entries = _derived(plan, len(tokens or ())) if metadata is None else _given(metadata)
    section = _metadata(entries)
    with replacing(path) as handle:
        out = _Output(handle)
        _write_spec(out, tensors, plan, tokens, special, section, align, checksums)
    return Path(os.fsdecode(path))


def _utf8(text: object, what: str, most: int = _SHORT) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"a {what} is a str, not {type(text).__name__}")
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the {what} {text!r} has no UTF-8: {error}") from None
    if len(data) > most:
        raise ValueError(f"a {what} has at most {most} bytes, not {len(data)}")
    return data


def _special(given: Mapping[str, int] | None, tokens: list[bytes] | None) -> list[int] | None:
    """Return the numbers of the special tokens in the order of the file."""
    n_tokens = len(tokens or ())
    if given is None:
        known = {token: number for number, token in reversed(list(enumerate(tokens or ())))}
        found = [known.get(f"[{name.upper()}]".encode(), -1) for name in SPECIAL_TOKENS]
        return None if -1 in found else found
    if set(given) != set(SPECIAL_TOKENS):
        raise ValueError(f"special_tokens must name {', '.join(SPECIAL_TOKENS)}")
    for name, number in given.items():
        if not isinstance(number, int):
            raise TypeError(f"the special token {name!r} is a number, not {number!r}")
        if not 0 <= number < n_tokens:
            raise ValueError(f"the special token {name!r} is {number}, of {n_tokens} tokens")
    return [given[name] for name in SPECIAL_TOKENS]


@dataclass(frozen=True)
class _Planned:
    """A tensor to be written: its name, what the format calls its type, its shape and size."""

    name: bytes
    kind: str
    shape: tuple[int, ...]
    nbytes: int


def _planned(tensors: Mapping[str, Any], name: str, most: int) -> _Planned:
    value = tensors[name]
    if not isinstance(value, TensorBlocks):
        value = np.asarray(value)
    shape, dtype = tuple(value.shape), np.dtype(value.dtype)
    kind = dtype.name if dtype.name == "bfloat16" else dtype.str[1:]
    if isinstance(tensors, Tensors):  # which hands bfloat16 out as uint16 without ml_dtypes
        kind = tensors.layout(name).dtype.replace("<", "")
    if kind not in _DTYPE_IDS:
        raise ValueError(f"tensor {name!r} is {dtype}; EMBD files hold {', '.join(_DTYPE_IDS)}")
    if not 1 <= len(shape) <= 4 or max(shape) > 0xFFFFFFFF:
        raise ValueError(f"tensor {name!r} has the shape {shape}; one to four dimensions are held")
    nbytes = math.prod(shape) * dtype.itemsize
    return _Planned(_utf8(name, "tensor name", most), kind, shape, nbytes)


class _Output:
    """A file being written front to back, with the checksums of all of it and of a section."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.position = self.of_file = self.of_section = 0

    def write(self, data: Any) -> None:
        self._handle.write(data)
        self.position += len(data)
        self.of_file = zlib.crc32(data, self.of_file)
        self.of_section = zlib.crc32(data, self.of_section)

    def pad_to(self, position: int) -> None:
        """Write zeros up to a position."""
        self.write(bytes(position - self.position))

    def write_tensor(self, tensors: Mapping[str, Any], name: str, planned: _Planned) -> None:
        """Write a tensor's data, refusing one that is not what was planned."""
        value = tensors[name]
        start = self.position
        for block in _blocks(value if isinstance(value, TensorBlocks) else np.asarray(value)):
            self.write(block)
        if self.position - start != planned.nbytes:
            raise ValueError(
                f"tensor {name!r} gave {self.position - start} bytes where its shape and type "
                f"need {planned.nbytes}"
            )


def _blocks(value: Any) -> Iterator[Any]:
    """Return the bytes of a tensor, row-major and little-endian, in blocks."""
    if isinstance(value, np.ndarray):
        rows = max(_BLOCK_NBYTES // max(value[:1].nbytes, 1), 1)
        blocks: Iterable[Any] = (value[i : i + rows] for i in range(0, len(value), rows))
    else:
        blocks = (block for _, block in value.blocks())
    for block in blocks:
        if block.size:
            little = block.astype(block.dtype.newbyteorder("<"), order="C", copy=False)
            yield little.reshape(-1).view(np.uint8).data


def _write_flat(
    out: _Output,
    tensors: Mapping[str, Any],
    plan: dict[str, _Planned],
    tokens: list[bytes] | None,
) -> None:
    out.write(MAGIC + struct.pack("<II", 1, len(plan)))
    for name, planned in plan.items():
        if planned.kind != "f4":
            raise ValueError(f"tensor {name!r} is {planned.kind}; the flat layout holds f4 alone")
        out.write(struct.pack("<I", len(planned.name)) + planned.name)
        out.write(struct.pack(f"<I{len(planned.shape)}I", len(planned.shape), *planned.shape))
        out.write_tensor(tensors, name, planned)
    out.write(struct.pack("<I", len(tokens or ())))
    for token in tokens or ():
        out.write(struct.pack("<I", len(token)) + token)


def _write_spec(
    out: _Output,
    tensors: Mapping[str, Any],
    plan: dict[str, _Planned],
    tokens: list[bytes] | None,
    special: list[int] | None,
    metadata: bytes,
    align: int,
    checksums: bool,
) -> None:
    vocab_offset = HEADER.size + len(metadata)
    vocabulary = b"" if tokens is None else _vocabulary(tokens, special, vocab_offset)
    index_offset = vocab_offset + len(vocabulary)
    names = b"".join(planned.name for planned in plan.values())
    index_end = index_offset + DESCRIPTOR.size * len(plan) + len(names)
    data_offset = position = _aligned(index_end, align)
    if data_offset >= 2**32:
        raise ValueError("metadata, vocabulary and tensor index must end below 4 GiB")
    positions = {}
    descriptors = []
    for name, planned in plan.items():
        positions[name] = position = _aligned(position, align)
        descriptors.append(
            DESCRIPTOR.pack(
                fnv1a(planned.name),
                _DTYPE_IDS[planned.kind],
                len(planned.shape),
                len(planned.name),
                *[*planned.shape, 0, 0, 0][:4],
                position - data_offset,
            )
        )
        position += planned.nbytes
    flags = VOCAB_EMBEDDED if tokens is not None else 0
    flags |= TENSORS_ALIGNED if align % 64 == 0 else 0
    flags |= CHECKSUM_ENABLED if checksums else 0
    head = HEADER.pack(
        MAGIC,
        1,
        0,
        flags,
        HEADER.size,
        len(metadata),
        vocab_offset if tokens is not None else 0,
        len(vocabulary),
        index_offset,
        len(plan),
        data_offset,
        position - data_offset,
        position + FOOTER.size,
        0,
        0,
    )[:56]
    out.write(head + struct.pack("<II", zlib.crc32(head) if checksums else 0, 0))
    out.write(metadata + vocabulary + b"".join(descriptors) + names)
    out.pad_to(data_offset)
    out.of_section = 0
    for name, planned in plan.items():
        out.pad_to(positions[name])
        out.write_tensor(tensors, name, planned)
    sums = (out.of_section, out.of_file) if checksums else (0, 0)
    out.write(FOOTER.pack(*sums, END_MAGIC, 0))


def _given(metadata: Mapping[str, Any]) -> dict[str, str]:
    entries = {str(key): str(value) for key, value in metadata.items()}
    missing = [key for key in REQUIRED_METADATA if key not in entries]
    if missing:
        raise ValueError(f"the metadata must have {', '.join(missing)}")
    return entries


def _derived(plan: Mapping[str, _Planned], n_tokens: int) -> dict[str, str]:
    """Return the required metadata as far as the tensors tell."""
    entries = dict.fromkeys(REQUIRED_METADATA, "unknown")
    matrices = [planned.shape for planned in plan.values() if len(planned.shape) == 2]
    widths = {shape[1] for shape in matrices if n_tokens and shape[0] == n_tokens}
    if len(widths) == 1:
        entries["embedding_dim"] = str(widths.pop())
    entries["vocab_size"] = str(n_tokens)
    entries["created_at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return entries


def _metadata(entries: Mapping[str, str]) -> bytes:
    parts = []
    for key, value in entries.items():
        data, text = _utf8(key, "metadata key"), _utf8(value, "metadata value")
        parts.append(struct.pack("<HH", len(data), len(text)) + data + text)
    body = b"".join(parts)
    return struct.pack("<II", len(parts), len(body)) + body


def _vocabulary(tokens: list[bytes], special: list[int] | None, offset: int) -> bytes:
    """Return the vocabulary section that stands at an offset."""
    body = b"".join(struct.pack("<H", len(token)) + token for token in tokens)
    if special is None:
        return struct.pack("<III", len(tokens), len(body), 0) + body
    special_offset = offset + 12 + len(body)
    if special_offset >= 2**32:
        raise ValueError("metadata, vocabulary and tensor index must end below 4 GiB")
    head = struct.pack("<III", len(tokens), len(body), special_offset)
    return head + body + struct.pack(f"<{len(special)}I", *special)


def _aligned(position: int, align: int) -> int:
    return -(-position // align) * align
