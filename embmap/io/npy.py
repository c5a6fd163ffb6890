"""Arrays in ``.npy`` files: the header parsed within bounds, the numbers found.

numpy parses the header as a Python expression; here it has to match a pattern.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, TruncatedError

__all__ = [
    "FORMAT",
    "LONGEST_START",
    "StoredArray",
    "find_array",
    "map_npy",
    "map_stream",
    "parse_header",
]

FORMAT = "npy"
_NAMES = {0: "no", 2: "two", 3: "three"}
_LONGEST_HEADER = 10_000  # bytes; numpy has the same bound
LONGEST_START = 12 + _LONGEST_HEADER  # bytes before the numbers
# A dict of three keys. Python 2 wrote an L behind the numbers of a shape.
_FIELD = re.compile(
    r"\s*+'(?P<key>descr|fortran_order|shape)'\s*+:\s*+"
    r"(?P<value>'[<>=|]?[fiu][0-9]{1,2}'|True|False"
    r"|\((?:\s*+[0-9]{1,19}+L?\s*+(?:,|(?=\))))*+\s*+\))\s*+(?:,|(?=\}))"
)
_HEADER = re.compile(r"\s*+\{(?:" + re.sub(r"\?P<\w+>", "?:", _FIELD.pattern) + r")*+\s*+\}\s*+")


@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """Where an array is, how its numbers are stored, and the version of the format."""

    version: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the numbers in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def map_npy(path: Path, dimensions: Collection[int] = (2,)) -> npt.NDArray[Any]:
    """Map the array of a file: numbers of any dtype in a number of dimensions."""
    with path.open("rb") as stream:
        return map_stream(stream, path, dimensions)


def map_stream(
    stream: BinaryIO, path: Path, dimensions: Collection[int] = (2,)
) -> npt.NDArray[Any]:
    """Map the array in a stream; errors name `path`."""
    found = find_array(stream, os.fstat(stream.fileno()).st_size, path, dimensions)
    mapped = np.memmap(stream, found.dtype, "r", found.offset, found.shape, found.order)
    return mapped.view(np.ndarray)


def find_array(
    stream: IO[bytes], nbytes: int, path: Path | None, dimensions: Collection[int] = (2,)
) -> StoredArray:
    """Find the array in the start of a file of `nbytes` bytes."""
    try:
        found = parse_header(stream, dimensions)
    except ValueError as error:
        raise FormatError(str(error), path=path, format=FORMAT, offset=0) from None
    needed = found.offset + found.nbytes
    if needed > nbytes:
        raise TruncatedError(
            f"{found.dtype} of shape {found.shape} needs {needed} bytes, but the file has {nbytes}",
            path=path,
            format=FORMAT,
        )
    return found


def parse_header(stream: IO[bytes], dimensions: Collection[int] = (2,)) -> StoredArray:
    """Parse the header of an array; ValueError if it has other `dimensions`."""
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError("not an npy file of version 1, 2 or 3")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(
            f"the header of an npy file must have at most {_LONGEST_HEADER} bytes, not {length}"
        )
    text = stream.read(length).decode("latin-1")
    if len(text) < length or not _HEADER.fullmatch(text):
        raise ValueError(f"not the header of an npy file of numbers: {text[:100]!r}")
    fields = {found["key"]: found["value"] for found in _FIELD.finditer(text)}
    if len(fields) < 3 or (fields["descr"][:1], fields["shape"][:1]) != ("'", "("):
        raise ValueError(f"not the header of an npy file of numbers: {text[:100]!r}")
    try:
        dtype = np.dtype(fields["descr"][1:-1])
    except TypeError:
        raise ValueError(f"numpy has no dtype {fields['descr']}") from None
    shape = tuple(int(n) for n in re.findall("[0-9]+", fields["shape"]))
    if len(shape) not in dimensions or (shape and not 1 <= shape[-1] < 2**31):
        wanted = " or ".join(_NAMES[n] for n in dimensions)
        raise ValueError(
            f"vectors must be numbers in {wanted} dimensions, not {dtype} of shape {shape}"
        )
    return StoredArray(
        version=f"{magic[6]}.{magic[7]}",
        dtype=dtype,
        shape=shape,
        order="F" if fields["fortran_order"] == "True" else "C",
        offset=stream.tell(),
    )
