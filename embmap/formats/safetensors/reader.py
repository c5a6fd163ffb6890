"""Reading one tensor of a safetensors file."""

from __future__ import annotations

from typing import Any

from embmap.errors import FormatError, UnsupportedError
from embmap.io.mapping import ByteSource
from embmap.io.safetensors import FORMAT, Header, read_header
from embmap.vectors.bfloat import BFloat16Matrix
from embmap.vectors.dense import dense_matrix
from embmap.vectors.matrix import Matrix

__all__ = ["read_safetensors"]


def read_safetensors(
    data: ByteSource, name: str | None, *, optional: bool = False
) -> tuple[Matrix | None, Header]:
    """Map a tensor and return it with the header; without a name, the only matrix.

    If `optional` is true, a file that does not have exactly one readable matrix gives None.
    """
    header = read_header(data)
    if optional:
        found = [each for each in header.tensors.values() if len(each.shape) == 2]
        if len(found) != 1 or (found[0].dtype is None and found[0].kind != "BF16"):
            return None, header
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
    return BFloat16Matrix(matrix) if tensor.kind == "BF16" else matrix, header
