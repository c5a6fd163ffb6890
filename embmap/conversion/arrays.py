"""Vectors without words: numpy's ``.npy`` and ``.npz``, and safetensors."""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np

from embmap.conversion.rows import ArrayMatrix
from embmap.errors import FormatError, TruncatedError
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_json
from embmap.vectors.bfloat import BFloat16Matrix
from embmap.vectors.dense import dense_matrix
from embmap.vectors.matrix import Matrix

__all__ = ["SAFETENSORS_DTYPES", "read_npy", "read_npz", "read_safetensors"]

SAFETENSORS_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
}
_QUOTED = 200  # characters of what zipfile says
_LONGEST_NPY_HEADER = 10_000  # bytes, as numpy has it
# A dict of three keys. Python 2 wrote an L behind the numbers of a shape.
_NPY_FIELD = re.compile(
    r"\s*+'(?P<key>descr|fortran_order|shape)'\s*+:\s*+"
    r"(?P<value>'[<>=|]?[fiu][0-9]{1,2}'|True|False"
    r"|\((?:\s*+[0-9]{1,19}+L?\s*+(?:,|(?=\))))*+\s*+\))\s*+(?:,|(?=\}))"
)
_NPY_HEADER = re.compile(
    r"\s*+\{(?:" + re.sub(r"\?P<\w+>", "?:", _NPY_FIELD.pattern) + r")*+\s*+\}\s*+"
)
_LONGEST_HEADER = 100_000_000  # the most that the safetensors library accepts


def read_npy(path: Path) -> Matrix:
    """Map an ``.npy`` file."""
    with path.open("rb") as stream:
        return _mapped(stream, path)


def _mapped(stream: BinaryIO, path: Path) -> Matrix:
    """Map the array in a stream, which errors call by a path."""
    try:
        dtype, shape, order = _npy_header(stream)
    except ValueError as error:
        raise FormatError(str(error), path=path, format="npy") from None
    needed = stream.tell() + math.prod(shape) * dtype.itemsize
    nbytes = os.fstat(stream.fileno()).st_size
    if needed > nbytes:
        raise TruncatedError(
            f"{dtype} of shape {shape} needs {needed} bytes, but the file has {nbytes}",
            path=path,
            format="npy",
        )
    array = np.memmap(stream, dtype, "r", stream.tell(), shape, order)
    return ArrayMatrix(array.view(np.ndarray))


def _npy_header(
    stream: IO[bytes],
) -> tuple[np.dtype[Any], tuple[int, int], Literal["C", "F"]]:
    """Return dtype, shape and order of an array of numbers in two dimensions; ValueError if none.

    numpy takes the header for a part of a Python program, and parses it as such.
    """
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError("not an npy file of version 1, 2 or 3")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _LONGEST_NPY_HEADER:
        raise ValueError(
            f"the header of an npy file has at most {_LONGEST_NPY_HEADER} bytes, not {length}"
        )
    text = stream.read(length).decode("latin-1")
    if len(text) < length or not _NPY_HEADER.fullmatch(text):
        raise ValueError(f"no header of an npy file of numbers: {text[:100]!r}")
    fields = {found["key"]: found["value"] for found in _NPY_FIELD.finditer(text)}
    if len(fields) < 3 or (fields["descr"][:1], fields["shape"][:1]) != ("'", "("):
        raise ValueError(f"no header of an npy file of numbers: {text[:100]!r}")
    try:
        dtype = np.dtype(fields["descr"][1:-1])
    except TypeError:
        raise ValueError(f"numpy has no numbers of type {fields['descr']}") from None
    shape = tuple(int(n) for n in re.findall("[0-9]+", fields["shape"]))
    if len(shape) != 2 or not 1 <= shape[1] < 2**31:
        raise ValueError(f"vectors are numbers in two dimensions, not {dtype} of shape {shape}")
    return dtype, (shape[0], shape[1]), "F" if fields["fortran_order"] == "True" else "C"


def read_npz(path: Path, name: str | None, spool: BinaryIO) -> Matrix:
    """Copy an array out of an ``.npz`` file and map the copy."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.namelist() if member.endswith(".npy")]
            if name is None:
                members = [member for member in members if _is_matrix(archive, member)]
            else:
                members = [member for member in members if member == f"{name}.npy"]
            if len(members) == 1:
                with archive.open(members[0]) as member:
                    shutil.copyfileobj(member, spool)
                spool.flush()
    except Exception as error:  # whatever zipfile makes of damaged archives
        # It seeks to offsets that the file gives, and the system refuses some.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        told = str(error)[:_QUOTED]  # zipfile quotes names of any length
        raise FormatError(f"not an npz file: {told}", path=path, format="npz") from None
    if len(members) != 1:
        raise ValueError(_which([each.removesuffix(".npy") for each in members], path, name))
    spool.seek(0)
    return _mapped(spool, path)


def _is_matrix(archive: zipfile.ZipFile, member: str) -> bool:
    with archive.open(member) as stream:
        try:
            _npy_header(stream)
        except ValueError:
            return False
    return True


def _which(names: list[str], path: Path, name: str | None) -> str:
    if name is not None:
        return f"{path} has no array {name!r}"
    if not names:
        return f"{path} has no array of numbers in two dimensions"
    return f"{path} has several arrays; choose one with tensor: {', '.join(names)}"


def read_safetensors(file: ByteSource, name: str | None) -> tuple[Matrix, Mapping[str, str]]:
    """Map a tensor of a safetensors file."""
    reader = FieldReader(file, "safetensors")
    nbytes = reader.u64("header length")
    if nbytes > _LONGEST_HEADER:
        raise reader.error("the header is too long", "header length", back=8, found=nbytes)
    raw = reader.raw(nbytes, "header")
    try:
        header = parse_json(raw)
    except ValueError as error:
        raise reader.error(f"not JSON: {error}", "header", back=nbytes) from None
    if not isinstance(header, dict):
        raise reader.error("the header is no JSON object", "header", back=nbytes)
    metadata = header.pop("__metadata__", {})
    metadata = metadata if isinstance(metadata, dict) else {}
    names = [key for key in header if name is None or key == name]
    if name is None:
        names = [key for key in names if len(_shape(header[key])) == 2]
    if len(names) != 1:
        choice = _which(names, Path(str(file.path)), name).replace("array", "tensor")
        raise ValueError(choice)
    return _tensor(file, header[names[0]], names[0], reader), metadata


def _shape(entry: Any) -> list[int]:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    return shape if whole and shape is not None else []


def _tensor(file: ByteSource, entry: Any, name: str, reader: FieldReader) -> Matrix:
    shape = _shape(entry)
    where: dict[str, Any] = {
        "path": file.path,
        "format": "safetensors",
        "field": f"tensor {name!r}",
    }
    if len(shape) != 2:
        raise FormatError("vectors have two dimensions", found=shape, **where)
    kind = entry.get("dtype")
    if not isinstance(kind, str) or kind not in SAFETENSORS_DTYPES:
        raise FormatError("numbers of this type are not read", found=kind, **where)
    dtype = np.dtype(SAFETENSORS_DTYPES[kind])
    offsets = entry.get("data_offsets")
    if not (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(n) is int for n in offsets)
        and 0 <= offsets[0] <= offsets[1] <= file.nbytes - reader.offset
        and offsets[1] - offsets[0] == math.prod(shape) * dtype.itemsize
    ):
        raise FormatError(
            f"{kind} of shape {shape} does not lie where the header says", found=offsets, **where
        )
    matrix = dense_matrix(file, reader.offset + offsets[0], (shape[0], shape[1]), dtype)
    return BFloat16Matrix(matrix) if kind == "BF16" else matrix
