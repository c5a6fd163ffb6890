"""Product quantization: vectors stored as one byte for each of their parts.

A vector of d numbers is cut into q parts, and each part is replaced by the nearest of k centroids.
The file contains the centroids (the codebooks) and their numbers (the codes). Decoding looks the
centroids up, multiplies by the projection if there is one, and scales by the row's norm if there is
one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels
from embmap.codecs.products import multiply, multiply_each

__all__ = ["distance_tables", "reconstruct", "table_sums"]

_SUMMED_ROWS = 4096  # their codes as indices fit into the second-level cache
_BLOCK_ROWS = 256  # their parts and the output fit into the second-level cache


def reconstruct(
    codes: npt.NDArray[np.uint8],
    codebooks: npt.NDArray[np.float32],
    projection: npt.NDArray[np.float32] | None = None,
    norms: npt.NDArray[np.float32] | None = None,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Return the rows (n, d) of codes (n, q), float32; `out` must be contiguous.

    `codebooks` has the shape (q, k, d / q), `projection` (d, d), `norms` (n,). A row has the same
    bits whatever the other rows are. Raises IndexError for a code of k or more.
    """
    q, k, part = codebooks.shape
    if k < 256 and codes.size and int(codes.max()) >= k:
        raise IndexError(f"a code is {int(codes.max())}, but there are {k} centroids")
    centroids = codebooks.reshape(q * k, part)
    bases = _bases(q, k)
    if out is None and len(codes) <= _BLOCK_ROWS:
        out = centroids.take(codes + bases, axis=0).reshape(len(codes), q * part)
    else:
        out = np.empty((len(codes), q * part), np.float32) if out is None else out
        for start in range(0, len(codes), _BLOCK_ROWS):
            block = codes[start : start + _BLOCK_ROWS]
            rows = out[start : start + len(block)].reshape(len(block), q, part)
            centroids.take(block + bases, axis=0, out=rows, mode="clip")
    if projection is not None:
        for start in range(0, len(codes), _BLOCK_ROWS):
            turned = out[start : start + _BLOCK_ROWS]
            turned[...] = multiply_each(turned, projection)
    if norms is not None:
        out *= norms[:, np.newaxis]
    return out


@np.errstate(over="ignore", invalid="ignore")  # centroids may hold infinities and NaN
def distance_tables(
    vectors: npt.NDArray[Any],
    codebooks: npt.NDArray[np.float32],
    projection: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Return the dot products of the parts of vectors (n, d) with all centroids: (n, q, k) float32.

    The dot product of a vector with a row is the sum of the entries that the row's codes select.
    """
    q, k, part = codebooks.shape
    vectors = vectors.astype(np.float32, copy=False)
    if projection is not None:
        vectors = multiply(vectors, projection.T)
    parts = vectors.reshape(len(vectors), q, part)
    tables = np.empty((len(vectors), q, k), np.float32)
    for j, centroids in enumerate(codebooks):
        tables[:, j] = multiply(parts[:, j], centroids)
    return tables


def table_sums(
    codes: npt.NDArray[np.uint8], tables: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the sums (n, rows) of the entries of tables (n, q, k) that codes (rows, q) select.

    Entries are added from the first code to the last. Raises IndexError for a code of k or more.
    """
    n, _, k = tables.shape
    if k < 256 and codes.size and int(codes.max()) >= k:
        raise IndexError(f"a code is {int(codes.max())}, but there are {k} centroids")
    sums = np.zeros((n, len(codes)), np.float32)
    kernel = kernels.find("table_sums", codes, tables, sums)
    if kernel is None:
        _add_entries(codes, tables, sums)
    else:
        kernel(codes, tables, sums)
    return sums


@kernels.counted
def _add_entries(
    codes: npt.NDArray[np.uint8], tables: npt.NDArray[np.float32], sums: npt.NDArray[np.float32]
) -> None:
    for start in range(0, len(codes), _SUMMED_ROWS):
        columns = codes[start : start + _SUMMED_ROWS].T.astype(np.intp, order="C")
        entries = np.empty(columns.shape[1], np.float32)
        for table, out in zip(tables, sums[:, start : start + _SUMMED_ROWS], strict=True):
            for column, choices in zip(columns, table, strict=True):
                out += choices.take(column, out=entries, mode="clip")


@lru_cache(16)
def _bases(q: int, k: int) -> npt.NDArray[np.int64]:
    """Return the index of the first centroid of each part among all centroids: (q,)."""
    return np.arange(0, q * k, k)
