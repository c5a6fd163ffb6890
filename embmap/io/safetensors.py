"""The header of a safetensors file: its tensors and metadata, checked before a number is read.

As in the safetensors library, the tensors must fill the data without gaps or overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embmap.errors import FormatError, TruncatedError
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_json

__all__ = ["FORMAT", "Header", "Tensor", "describe_tensors", "find_data", "read_header"]

FORMAT = "safetensors"
_READ = 1 << 22
_LONGEST_HEADER = 100_000_000  # bytes, the bound of the safetensors library
# Bits of a number, and its dtype as numpy spells it, or ml_dtypes for kinds that numpy lacks.
_KINDS: dict[str, tuple[int, str]] = {
    "F64": (64, "<f8"),
    "F32": (32, "<f4"),
    "F16": (16, "<f2"),
    "BF16": (16, "bfloat16"),
    "I64": (64, "<i8"),
    "I32": (32, "<i4"),
    "I16": (16, "<i2"),
    "I8": (8, "i1"),
    "U64": (64, "<u8"),
    "U32": (32, "<u4"),
    "U16": (16, "<u2"),
    "U8": (8, "u1"),
    "BOOL": (8, "?"),
    "C64": (64, "<c8"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F6_E2M3": (6, "float6_e2m3fn"),
    "F6_E3M2": (6, "float6_e3m2fn"),
    "F4": (4, "float4_e2m1fn"),
}


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """Where a tensor is; `kind` is its dtype in the file, such as "F32"."""

    kind: str
    shape: tuple[int, ...]
    offset: int

    @property
    def dtype(self) -> str:
        """The dtype as numpy spells it, or ml_dtypes for kinds that numpy lacks."""
        return _KINDS[self.kind][1]


@dataclass(frozen=True)
class Header:
    """The tensors by name, in the order of their data, and the metadata."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_header(data: ByteSource) -> Header:
    """Parse the header of a file."""
    reader = FieldReader(data, FORMAT)
    nbytes = reader.u64("header length")
    if nbytes > _LONGEST_HEADER:
        raise reader.error(
            f"the header must have at most {_LONGEST_HEADER} bytes",
            "header length",
            back=8,
            found=nbytes,
        )
    raw = reader.raw(nbytes, "header")
    try:
        header = parse_json(raw)
    except ValueError as error:
        raise reader.error(f"not JSON: {error}", "header", back=nbytes) from None
    if not isinstance(header, dict):
        raise reader.error("the header must be a JSON object", "header", back=nbytes)
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise reader.error("the metadata must be text by name", "__metadata__", back=nbytes)
    spans = [(*_offsets(data, name, entry), name) for name, entry in header.items()]
    tensors: dict[str, Tensor] = {}
    position = 0
    for start, stop, name in sorted(spans):
        where = _where(data, name)
        if start != position:
            raise FormatError(
                "the data must start where the data before it end",
                found=start,
                expected=position,
                **where,
            )
        tensors[name] = _tensor(header[name], reader.offset + start, stop - start, where)
        position = stop
    if reader.offset + position > data.nbytes:
        raise TruncatedError(
            f"the tensors end at byte {reader.offset + position} of a file of {data.nbytes} bytes",
            path=data.path,
            format=FORMAT,
        )
    if reader.offset + position < data.nbytes:
        raise FormatError(
            f"{data.nbytes - reader.offset - position} bytes follow the last tensor",
            path=data.path,
            format=FORMAT,
            offset=reader.offset + position,
        )
    return Header(tensors, metadata)


def describe_tensors(data: ByteSource) -> dict[str, Any]:
    """Return the header's entries of all tensors of a file, in the order of their data."""
    start = find_data(data)
    return {
        name: {
            "dtype": tensor.kind,
            "shape": list(tensor.shape),
            "data_offsets": [
                tensor.offset - start,
                tensor.offset - start + math.prod(tensor.shape) * _KINDS[tensor.kind][0] // 8,
            ],
        }
        for name, tensor in read_header(data).tensors.items()
    }


def find_data(data: ByteSource) -> int:
    """Return where the data of the tensors start."""
    return 8 + int.from_bytes(data.read(0, 8), "little")


def _where(data: ByteSource, name: str) -> dict[str, Any]:
    return {"path": data.path, "format": FORMAT, "field": f"tensor {name!r}"}


def _offsets(data: ByteSource, name: str, entry: Any) -> tuple[int, int]:
    """Return where a tensor starts and stops, in bytes from the first tensor."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(n) is int for n in offsets)
        and 0 <= offsets[0] <= offsets[1]
    ):
        raise FormatError(
            "data_offsets must be two ascending numbers", found=offsets, **_where(data, name)
        )
    return offsets[0], offsets[1]


def _tensor(entry: dict[str, Any], offset: int, nbytes: int, where: dict[str, Any]) -> Tensor:
    kind, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise FormatError("the dtype is unknown", found=kind, **where)
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise FormatError("the shape must be a list of sizes", found=shape, **where)
    if math.prod(shape) * _KINDS[kind][0] != 8 * nbytes:
        raise FormatError(f"{kind} of shape {shape} cannot have {nbytes} bytes", **where)
    return Tensor(kind=kind, shape=tuple(shape), offset=offset)
