"""Writing EMBD files in both dialects.

The writer first collects shapes and dtypes, so that every offset is known before a byte is written.
Then it writes one tensor at a time in blocks, so that memory stays bounded. The file gets its name
only once it is complete.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import name_dtype
from embmap.formats.embd.fields import (
    CHECKSUM_ENABLED,
    DESCRIPTOR,
    DIALECTS,
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
from embmap.formats.embd.file import Tensors
from embmap.io.atomic_write import replacing

__all__ = ["TensorBlocks", "write", "write_copy"]

_DTYPE_IDS = {name.replace("<", ""): number for number, name in DTYPES.items()}
_SHORT = 0xFFFF
_BLOCK_NBYTES = 1 << 22


@runtime_checkable
class TensorBlocks(Protocol):
    """A tensor that is not in memory: a Matrix, or any object with a shape, a dtype and blocks."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the start and the values of a few rows at a time."""
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
        The file to create or replace; an existing file is kept until the new one is complete.
    tensors : mapping
        From names to arrays or matrices of one to four dimensions: float32, float16, bfloat16 (of
        ml_dtypes, or from another file's ``tensors``), int32, int16, int8, uint32, uint16 or uint8;
        only float32 in the flat layout. Each tensor is looked up twice.
    vocab : iterable of str, optional
        The tokens in order.
    special_tokens : mapping, optional
        The rows of the tokens "pad", "unk", "cls", "sep" and "mask", all five; by default the rows
        of "[PAD]", "[UNK]" and so on if the vocabulary has all of them.
    metadata : mapping, optional
        Keys and values, which are converted to str. The ten keys of the published text are
        required. By default they are derived from the tensors, or "unknown".
    align : int
        A power of two; the offset of every tensor is a multiple of it.
    checksums : bool
        Whether to write checksums.
    layout : {"spec", "flat"}
        The layout of the published text, or the layout that cpp_embedder reads, which has no
        metadata, special tokens, padding or checksums.

    Returns
    -------
    pathlib.Path
        The new file.

    Raises
    ------
    ValueError
        If an argument is out of range or a tensor cannot be stored. An existing file is then left
        unchanged.
    TypeError
        If a token or a name is not str.
    OSError
        If the file cannot be written.
    """
    if layout not in DIALECTS:
        raise ValueError(f"layout must be one of {', '.join(DIALECTS)}, not {layout!r}")
    if align < 1 or align & (align - 1):
        raise ValueError(f"align must be a power of two, not {align}")
    most = _SHORT if layout == "spec" else 0xFFFFFFFF  # bytes of a token or a name
    tokens = None if vocab is None else [_encode(token, "token", most) for token in vocab]
    plan = {name: _plan(tensors, name, most) for name in tensors}
    if layout == "flat":
        if metadata or special_tokens:
            raise ValueError("metadata and special_tokens must be empty in the flat layout")
        with replacing(path) as handle:
            _write_flat(_Output(handle), tensors, plan, tokens)
        return Path(os.fsdecode(path))
    special = _special_rows(special_tokens, tokens)
    if metadata is None:
        metadata = _derive_metadata(plan, len(tokens or ()))
    missing = [key for key in REQUIRED_METADATA if key not in map(str, metadata)]
    if missing:
        raise ValueError(f"metadata must have the keys {', '.join(missing)}")
    section = _metadata_section(metadata.items())
    with replacing(path) as handle:
        _write_spec(
            _Output(handle),
            tensors,
            plan,
            tokens=tokens,
            special=special,
            metadata=section,
            align=align,
            checksums=checksums,
        )
    return Path(os.fsdecode(path))


def write_copy(
    path: str | os.PathLike[str],
    tensors: Mapping[str, npt.ArrayLike | TensorBlocks],
    *,
    vocab: Iterable[str] | None,
    special: Sequence[int] | None,
    metadata: Iterable[tuple[str, str]],
    align: int,
    checksums: bool,
) -> None:
    """Write a file with the metadata and special tokens of another, even if they are not valid."""
    tokens = None if vocab is None else [_encode(token, "token") for token in vocab]
    plan = {name: _plan(tensors, name, _SHORT) for name in tensors}
    entries = list(metadata)
    with replacing(path) as handle:
        _write_spec(
            _Output(handle),
            tensors,
            plan,
            tokens=tokens,
            special=special,
            metadata=_metadata_section(entries) if entries else b"",
            align=align,
            checksums=checksums,
        )


def _encode(text: object, what: str, most: int = _SHORT) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"a {what} must be str, not {type(text).__name__}")
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the {what} {text!r} has no UTF-8: {error}") from None
    if len(data) > most:
        raise ValueError(f"a {what} must have at most {most} bytes, not {len(data)}")
    return data


def _special_rows(given: Mapping[str, int] | None, tokens: list[bytes] | None) -> list[int] | None:
    """Return the rows of the special tokens in the order of the file, or None."""
    n_tokens = len(tokens or ())
    if given is None:
        known = {token: number for number, token in reversed(list(enumerate(tokens or ())))}
        found = [known.get(f"[{name.upper()}]".encode(), -1) for name in SPECIAL_TOKENS]
        return None if -1 in found else found
    if set(given) != set(SPECIAL_TOKENS):
        raise ValueError(f"special_tokens must have the keys {', '.join(SPECIAL_TOKENS)}")
    for name, number in given.items():
        if not isinstance(number, int):
            raise TypeError(f"the special token {name!r} must be an integer, not {number!r}")
        if not 0 <= number < n_tokens:
            raise ValueError(
                f"the special token {name!r} must be below {n_tokens}, the number of tokens, "
                f"not {number}"
            )
    return [given[name] for name in SPECIAL_TOKENS]


@dataclass(frozen=True)
class _Planned:
    """A tensor to be written: its encoded name, its dtype as in the format, shape and size."""

    name: bytes
    kind: str
    shape: tuple[int, ...]
    nbytes: int


def _plan(tensors: Mapping[str, Any], name: str, most: int) -> _Planned:
    value = tensors[name]
    if not isinstance(value, TensorBlocks):
        value = np.asarray(value)
    shape, dtype = tuple(value.shape), np.dtype(value.dtype)
    kind = "bfloat16" if name_dtype(dtype) == "bfloat16" else dtype.str[1:]
    if isinstance(tensors, Tensors):  # without ml_dtypes it returns bfloat16 as uint16
        kind = tensors.layout(name).dtype.replace("<", "")
    if kind not in _DTYPE_IDS:
        kinds = ", ".join(_DTYPE_IDS)
        raise ValueError(f"tensor {name!r} must be one of {kinds}, not {dtype}")
    if not 1 <= len(shape) <= 4 or max(shape) > 0xFFFFFFFF:
        raise ValueError(
            f"tensor {name!r} must have 1 to 4 dimensions below 2**32, not the shape {shape}"
        )
    nbytes = math.prod(shape) * dtype.itemsize
    return _Planned(_encode(name, "tensor name", most), kind, shape, nbytes)


class _Output:
    """A file that is written from start to end, with the checksums of the file and a section."""

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
        """Write the data of a tensor; refuse a tensor whose size differs from the plan."""
        value = tensors[name]
        start = self.position
        for block in _blocks(value if isinstance(value, TensorBlocks) else np.asarray(value)):
            self.write(block)
        if self.position - start != planned.nbytes:
            raise ValueError(
                f"tensor {name!r} must have {planned.nbytes} bytes for its shape and dtype, "
                f"not {self.position - start}"
            )


def _blocks(value: Any) -> Iterator[Any]:
    """Yield the bytes of a tensor in row-major and little-endian order, in blocks."""
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
            raise ValueError(f"tensor {name!r} must be f4 in the flat layout, not {planned.kind}")
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
    *,
    tokens: list[bytes] | None,
    special: Sequence[int] | None,
    metadata: bytes,
    align: int,
    checksums: bool,
) -> None:
    vocab_offset = HEADER.size + len(metadata)
    vocabulary = b"" if tokens is None else _vocabulary_section(tokens, special, vocab_offset)
    index_offset = vocab_offset + len(vocabulary)
    names = b"".join(planned.name for planned in plan.values())
    index_end = index_offset + DESCRIPTOR.size * len(plan) + len(names)
    data_offset = position = _aligned(index_end, align)
    _check_offset(data_offset)
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


def _derive_metadata(plan: Mapping[str, _Planned], n_tokens: int) -> dict[str, str]:
    """Return the required metadata; what the tensors do not show is "unknown"."""
    entries = dict.fromkeys(REQUIRED_METADATA, "unknown")
    matrices = [planned.shape for planned in plan.values() if len(planned.shape) == 2]
    widths = {shape[1] for shape in matrices if n_tokens and shape[0] == n_tokens}
    if len(widths) == 1:
        entries["embedding_dim"] = str(widths.pop())
    entries["vocab_size"] = str(n_tokens)
    entries["created_at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return entries


def _metadata_section(entries: Iterable[tuple[object, object]]) -> bytes:
    parts = []
    for key, value in entries:
        data, text = _encode(str(key), "metadata key"), _encode(str(value), "metadata value")
        parts.append(struct.pack("<HH", len(data), len(text)) + data + text)
    body = b"".join(parts)
    return struct.pack("<II", len(parts), len(body)) + body


def _vocabulary_section(tokens: list[bytes], special: Sequence[int] | None, offset: int) -> bytes:
    """Return the vocabulary section, which starts at an offset in the file."""
    body = b"".join(struct.pack("<H", len(token)) + token for token in tokens)
    if special is None:
        return struct.pack("<III", len(tokens), len(body), 0) + body
    special_offset = offset + 12 + len(body)
    _check_offset(special_offset)
    head = struct.pack("<III", len(tokens), len(body), special_offset)
    return head + body + struct.pack(f"<{len(special)}I", *special)


def _check_offset(offset: int) -> None:
    if offset >= 2**32:
        raise ValueError("metadata, vocabulary and tensor index must end below 4 GiB")


def _aligned(position: int, align: int) -> int:
    return -(-position // align) * align
