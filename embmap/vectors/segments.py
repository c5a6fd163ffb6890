"""Sums of groups of rows: the vector of an unknown word is the sum of its subwords' rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels
from embmap.vectors.matrix import Matrix

__all__ = ["normalize", "segment_sums"]

_BLOCK_NBYTES = 1 << 20
_FEW = 16
_TINY = np.finfo(np.float32).tiny


def segment_sums(
    matrix: Matrix, rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return the sums (groups, columns) of consecutive groups of `counts` rows each."""
    array = matrix.mapped()
    if array is not None and array.dtype == np.float32 and array.flags.aligned:
        kernel = kernels.find("segment_sums", array, rows, counts)
        if kernel is not None:
            sums: npt.NDArray[Any] = kernel(array, rows, counts)
            return sums
        return kernels.counted(_segment_sums)(matrix, rows, counts)
    return _segment_sums(matrix, rows, counts)


@np.errstate(over="ignore", invalid="ignore")  # rows may hold infinities and NaN
def _segment_sums(
    matrix: Matrix, rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    columns = matrix.shape[1]
    dtype = np.result_type(matrix.dtype, np.float32)
    sums = np.zeros((counts.size, columns), dtype)
    ends = np.cumsum(counts)
    per_block = max(_BLOCK_NBYTES // max(columns * 4, 1), 1)
    first = 0
    while first < counts.size:  # as many groups as fit into a block, but at least one
        begin = int(ends[first] - counts[first])
        last = max(int(np.searchsorted(ends, begin + per_block, "right")), first + 1)
        if counts[first] > per_block:  # a group larger than a block is summed piece by piece
            for start in range(begin, int(ends[first]), per_block):
                piece = matrix.take(rows[start : min(start + per_block, int(ends[first]))])
                with_total = np.concatenate((sums[first : first + 1], piece))
                sums[first] = np.add.reduce(with_total, axis=0, dtype=dtype)
        else:
            values = matrix.take(rows[begin : int(ends[last - 1])])
            at = 0
            for group, count in enumerate(counts[first:last].tolist(), first):
                np.add.reduce(values[at : at + count], axis=0, dtype=dtype, out=sums[group])
                at += count
        first = last
    return sums


@np.errstate(over="ignore", invalid="ignore")  # as above
def normalize(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Scale rows to unit length, in place, and return the lengths; rows of zeros stay zeros."""
    # The squares of large and small float32 numbers need float64. They are added in their order, a
    # column of all vectors at a time. For few columns, numpy would add pairs first.
    squares = np.square(vectors.T, dtype=np.float64, order="C")
    few = squares.size > 0 and len(vectors) < _FEW
    totals = squares.cumsum(axis=0)[-1] if few else np.add.reduce(squares, axis=0)
    lengths: npt.NDArray[Any] = np.sqrt(totals).astype(vectors.dtype)
    # A row of zeros is divided by the smallest number instead of by 0.
    vectors /= np.maximum(lengths, _TINY)[:, np.newaxis]
    return lengths
