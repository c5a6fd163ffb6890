"""Vectors without words: numpy's ``.npy`` and ``.npz``, and safetensors."""

from __future__ import annotations

import math
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embmap.codecs.bfloat import BFloat16Matrix
from embmap.conversion.rows import ArrayMatrix
from embmap.errors import FormatError
from embmap.fields import FieldReader
from embmap.mapping import MappedFile
from embmap.matrix import Matrix, dense_matrix
from embmap.parsing import parse_json

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
_LONGEST_HEADER = 100_000_000  # the most that the safetensors library accepts


def read_npy(path: Path, what: Path | None = None) -> Matrix:
    """Map an ``.npy`` file.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    what : pathlib.Path, optional
        What to call it in errors, when it is a copy of a part of that.

    Returns
    -------
    Matrix
        Of the array's shape and dtype.

    Raises
    ------
    FormatError
        When it is damaged, or no array of numbers in two dimensions.
    OSError
        When it cannot be read.
    """
    where: dict[str, Any] = {"path": what or path, "format": "npy"}
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        if error.errno is None:  # numpy's own, about the bytes
            raise FormatError(f"not an npy file: {error}", **where) from None
        raise
    except Exception as error:  # whatever numpy makes of damaged headers
        raise FormatError(f"not an npy file: {error}", **where) from None
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]:
        raise FormatError(
            "vectors are numbers in two dimensions",
            found=f"{array.dtype} of shape {array.shape}",
            **where,
        )
    return ArrayMatrix(array.view(np.ndarray))


def read_npz(path: Path, name: str | None, spool: Path) -> Matrix:
    """Copy an array out of an ``.npz`` file and map the copy.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    name : str or None
        Which array; None where it is the only one of numbers in two dimensions.
    spool : pathlib.Path
        The temporary file where the copy goes.

    Returns
    -------
    Matrix
        Of the array's shape and dtype.

    Raises
    ------
    FormatError
        When the file is damaged.
    ValueError
        When the array is not there, or several could be meant.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.namelist() if member.endswith(".npy")]
            if name is None:
                members = [member for member in members if _is_matrix(archive, member)]
            else:
                members = [member for member in members if member == f"{name}.npy"]
            if len(members) != 1:
                raise ValueError(_which([m.removesuffix(".npy") for m in members], path, name))
            with archive.open(members[0]) as member, spool.open("wb") as out:
                shutil.copyfileobj(member, out)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise FormatError(f"not an npz file: {error}", path=path, format="npz") from None
    except Exception as error:
        if isinstance(error, OSError | ValueError):
            raise
        raise FormatError(f"not an npz file: {error}", path=path, format="npz") from None
    return read_npy(spool, path)


def _is_matrix(archive: zipfile.ZipFile, member: str) -> bool:
    with archive.open(member) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
        except ValueError:
            return False
    return len(shape) == 2 and dtype.kind in "fiu"


def _which(names: list[str], path: Path, name: str | None) -> str:
    if name is not None:
        return f"{path} has no array {name!r}"
    if not names:
        return f"{path} has no array of numbers in two dimensions"
    return f"{path} has several arrays; choose one with tensor: {', '.join(names)}"


def read_safetensors(file: MappedFile, name: str | None) -> tuple[Matrix, Mapping[str, str]]:
    """Map a tensor of a safetensors file.

    Parameters
    ----------
    file : MappedFile
        The file.
    name : str or None
        Which tensor; None where it is the only one of two dimensions.

    Returns
    -------
    matrix : Matrix
        The tensor; of bfloat16 as float32.
    metadata : mapping
        What the file says about itself.

    Raises
    ------
    FormatError
        When the file is damaged.
    ValueError
        When the tensor is not there, or several could be meant.
    """
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


def _tensor(file: MappedFile, entry: Any, name: str, reader: FieldReader) -> Matrix:
    shape = _shape(entry)
    where: dict[str, Any] = {
        "path": file.path,
        "format": "safetensors",
        "field": f"tensor {name!r}",
    }
    if len(shape) != 2:
        raise FormatError("vectors have two dimensions", found=shape, **where)
    kind = entry.get("dtype")
    if kind not in SAFETENSORS_DTYPES:
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
