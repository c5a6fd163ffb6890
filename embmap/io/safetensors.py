"""The header of a safetensors file: its tensors and metadata, checked before a number is read.

As in the safetensors library, the tensors must fill the data without gaps or overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, TruncatedError
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_json

__all__ = [
    "FORMAT",
    "Header",
    "Tensor",
    "describe_tensors",
    "find_data",
    "parse_plain",
    "read_header",
]

FORMAT = "safetensors"
_READ = 1 << 22
_LONGEST_HEADER = 100_000_000  # bytes, the bound of the safetensors library
_METADATA = '{"__metadata__":'
_QUOTES = 10  # quotation marks of a tensor in the header
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


class Tensor(NamedTuple):
    """Where a tensor is; `kind` is its dtype in the file, such as "F32"."""

    kind: str
    shape: tuple[int, ...]
    offset: int

    @property
    def dtype(self) -> str:
        """The dtype as numpy spells it, or ml_dtypes for kinds that numpy lacks."""
        return _KINDS[self.kind][1]


Described = tuple[str, tuple[int, ...], int]  # kind, shape and bytes


class Header(NamedTuple):
    """The tensors in the order of their data, and the metadata.

    `numbers` has the number of each tensor by its name, `kinds` the key of each in `described`, and
    `bounds` where each starts and the last one ends, counted from `offset`.
    """

    numbers: dict[str, int]
    kinds: list[Any]
    described: Mapping[Any, Described]
    bounds: list[int]
    offset: int
    metadata: Mapping[str, str]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: self.tensor(number) for name, number in self.numbers.items()}

    def tensor(self, number: int) -> Tensor:
        """Return a tensor by its number."""
        kind, shape, _ = self.described[self.kinds[number]]
        return Tensor(kind, shape, self.offset + self.bounds[number])


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
    header = parse_plain(raw, reader.offset)
    if header is None:
        header = _parse(data, reader, raw)
    end = header.offset + header.bounds[-1]
    if end > data.nbytes:
        raise TruncatedError(
            f"the tensors end at byte {end} of a file of {data.nbytes} bytes",
            path=data.path,
            format=FORMAT,
        )
    if end < data.nbytes:
        raise FormatError(
            f"{data.nbytes - end} bytes follow the last tensor",
            path=data.path,
            format=FORMAT,
            offset=end,
        )
    return header


def parse_plain(raw: bytes, offset: int) -> Header | None:
    """Parse a header that is spelled as the safetensors library does; None for any other header.

    The parts are cut out at the quotation marks, and a header is written of them. If it is the same
    text, the parts are right. The data start at `offset`.
    """
    chars = np.frombuffer(raw, np.uint8)
    if not raw.isascii() or b"\\" in raw or not chars.size or chars.min() < ord(" "):
        return None
    metadata: dict[str, Any] = {}
    text, begin = raw.decode("ascii"), 1
    if text.startswith(_METADATA):
        import json

        try:
            metadata, begin = json.JSONDecoder().raw_decode(text, len(_METADATA))
        except (ValueError, RecursionError):
            return None
        begin += 1  # a comma
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            return None
    quotes = np.flatnonzero(chars[begin:] == ord('"')) + begin
    if not quotes.size or quotes.size % _QUOTES:
        return None
    places = quotes.reshape(-1, _QUOTES)
    names = _cut(text, places[:, 0] + 1, places[:, 1])
    kinds = _cut(text, places[:, 4] + 1, places[:, 8] - 2)
    known: dict[str, Described] = {}
    for each in set(kinds):
        described = _describe_plain(each)
        if described is None:
            return None
        known[each] = described
    sizes = {each: nbytes for each, (_, _, nbytes) in known.items()}
    bounds = list(accumulate([sizes[each] for each in kinds], initial=0))
    entries = [
        f'"{name}":{{"dtype":"{kind}],"data_offsets":[{start},{stop}]}}'
        for name, kind, (start, stop) in zip(names, kinds, pairwise(map(str, bounds)), strict=True)
    ]
    start = f"{text[: begin - 1]}," if metadata or begin > 1 else "{"
    if text.rstrip(" ") != f"{start}{','.join(entries)}}}":
        return None
    numbers = dict(zip(names, range(len(names)), strict=True))
    if len(numbers) < len(names) or "__metadata__" in numbers:
        return None
    return Header(numbers, kinds, known, bounds, offset, metadata)


def _cut(text: str, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> list[str]:
    return [text[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _describe_plain(text: str) -> Described | None:
    """Return kind, shape and size for text as in ``F32","shape":[2,3``; None if it is not so."""
    kind, _, listed = text.partition('","shape":[')
    sizes = listed.split(",") if listed else []
    if kind not in _KINDS or not all(size.isdecimal() and len(size) < 20 for size in sizes):
        return None
    shape = tuple(map(int, sizes))
    nbits = math.prod(shape) * _KINDS[kind][0]
    # Tensors without bytes are sorted by their names where they start at the same place.
    is_plain = nbits > 0 and nbits % 8 == 0 and ",".join(map(str, shape)) == listed
    return (kind, shape, nbits // 8) if is_plain else None


def _parse(data: ByteSource, reader: FieldReader, raw: bytes) -> Header:
    """Parse any header, and name what is wrong with it."""
    try:
        header = parse_json(raw)
    except ValueError as error:
        raise reader.error(f"not JSON: {error}", "header", back=len(raw)) from None
    if not isinstance(header, dict):
        raise reader.error("the header must be a JSON object", "header", back=len(raw))
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise reader.error("the metadata must be text by name", "__metadata__", back=len(raw))
    spans = [(*_offsets(data, name, entry), name) for name, entry in header.items()]
    names, kinds, bounds = [], [], [0]
    for start, stop, name in sorted(spans):
        where = _where(data, name)
        if start != bounds[-1]:
            raise FormatError(
                "the data must start where the data before it end",
                found=start,
                expected=bounds[-1],
                **where,
            )
        names.append(name)
        kinds.append(_describe(header[name], stop - start, where))
        bounds.append(stop)
    numbers = {name: number for number, name in enumerate(names)}
    described = {each: each for each in kinds}
    return Header(numbers, kinds, described, bounds, reader.offset, metadata)


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


def _describe(entry: dict[str, Any], nbytes: int, where: dict[str, Any]) -> Described:
    kind, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise FormatError("the dtype is unknown", found=kind, **where)
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise FormatError("the shape must be a list of sizes", found=shape, **where)
    if math.prod(shape) * _KINDS[kind][0] != 8 * nbytes:
        raise FormatError(f"{kind} of shape {shape} cannot have {nbytes} bytes", **where)
    return kind, tuple(shape), nbytes
