"""Reading one tensor of a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embmap.errors import FormatError, UnsupportedError
from embmap.io.mapping import ByteSource
from embmap.io.safetensors import FORMAT, read_header
from embmap.vectors.bfloat import BFloat16Matrix
from embmap.vectors.dense import dense_matrix
from embmap.vectors.matrix import Matrix

__all__ = ["read_safetensors"]


def read_safetensors(data: ByteSource, name: str | None) -> tuple[Matrix, Mapping[str, str]]:
    """Map a tensor and return it with the metadata; without a name, the only matrix."""
    header = read_header(data)
    names = [each for each in header.tensors if name is None or each == name]
    if name is None:
        names = [each for each in names if len(header.tensors[each].shape) == 2]
    if name is not None and not names:
        raise ValueError(f"{data.path} has no tensor {name!r}")
    if not names:
        raise ValueError(f"{data.path} has no tensor of numbers in two dimensions")
    if len(names) > 1:
        raise ValueError(
            f"{data.path} has several tensors; choose one with tensor: {', '.join(names)}"
        )
    tensor = header.tensors[names[0]]
    where: dict[str, Any] = {
        "path": data.path,
        "format": FORMAT,
        "field": f"tensor {names[0]!r}",
    }
    if len(tensor.shape) != 2:
        raise FormatError("vectors must have two dimensions", found=tensor.shape, **where)
    rows, dim = tensor.shape
    dtype = "<u2" if tensor.kind == "BF16" else tensor.dtype
    if dtype is None:
        raise UnsupportedError("numbers of this dtype cannot be read", found=tensor.kind, **where)
    matrix = dense_matrix(data, tensor.offset, (rows, dim), dtype)
    return BFloat16Matrix(matrix) if tensor.kind == "BF16" else matrix, header.metadata
