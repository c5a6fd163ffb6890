"""The rows of a matrix as tensors of one dtype, and the checks of what callers ask for."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from embmap.embeddings import Embeddings
from embmap.vectors.matrix import Matrix

__all__ = ["RowTable", "Source", "fill", "matrix_of"]

Source = Embeddings | Matrix
_NARROW = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


class RowTable:
    """The rows of a matrix as tensors of one dtype; by default the dtype of the matrix.

    float16 and bfloat16 numbers that the file stores are handed out as they are; others are
    converted. Tables pickle if their matrix does.
    """

    def __init__(self, matrix: Matrix, dtype: torch.dtype | None = None) -> None:
        if not isinstance(dtype, torch.dtype | None):
            raise TypeError(f"dtype must be a dtype of torch, not {dtype!r}")
        own = _find_dtype(matrix.dtype)
        self.dtype = own if dtype is None else dtype
        narrow = matrix.stored_as(_NARROW[self.dtype]) if self.dtype in _NARROW else None
        self._source = matrix
        self._matrix = matrix if narrow is None else narrow
        self._has_bits = narrow is not None and self.dtype == torch.bfloat16
        self.is_stored = narrow is not None or self.dtype == own
        self.is_narrow = narrow is not None and narrow is not matrix
        self.shape = matrix.shape
        self.reads_views = matrix.zero_copy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the matrix by the path of its file."""
        return RowTable, (self._source, self.dtype)

    def row_numbers(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the numbers of rows that exist, none of them negative."""
        return self._source.row_numbers(rows)

    def whole(self) -> torch.Tensor:
        """Return all rows, over copy-on-write memory if the file is mapped."""
        return self._converted(torch.from_dlpack(self._matrix))

    def part(self, rows: Any) -> torch.Tensor:
        """Return a copy of a row or of a slice."""
        found = self._matrix[rows]
        return self._converted(torch.from_numpy(found if found.flags.writeable else found.copy()))

    def take(self, rows: npt.ArrayLike, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return a copy of some rows: a new tensor, or `out` on the CPU of this dtype."""
        if out is None or not self.is_stored:
            found = self._converted(torch.from_numpy(self._matrix.take(rows)))
            return found if out is None else fill(out, found)
        bits = out.detach().view(torch.uint16) if self._has_bits else out.detach()
        self._matrix.take(rows, bits.numpy())
        return out

    def _converted(self, found: torch.Tensor) -> torch.Tensor:
        if self.is_stored:
            return found.view(torch.bfloat16) if self._has_bits else found
        return found.to(self.dtype)


@cache
def _find_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def fill(out: torch.Tensor, found: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
    """Copy a tensor to `out`; raise ValueError if the shapes differ."""
    if out.shape != found.shape:
        raise ValueError(f"out must have the shape {tuple(found.shape)}, not {tuple(out.shape)}")
    out.detach().copy_(found, non_blocking=non_blocking)
    return out


def matrix_of(source: Source) -> Matrix:
    """Return the vectors of a file, or a matrix itself."""
    if isinstance(source, Matrix):
        return source
    if not isinstance(source, Embeddings):
        raise TypeError(f"source must be an open file or its vectors, not {type(source).__name__}")
    return source._stored_vectors()
