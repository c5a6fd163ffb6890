"""Products of vectors and matrices that BLAS computes in the calling thread.

BLAS shares a large product among threads of its own. Many threads that call it at once then get in
each other's way, and a child forked meanwhile waits for ever for a lock that one of them held.
Therefore large products are cut into pieces below the sizes from which BLAS uses threads;
:mod:`embmap.threads` distributes work that is worth it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.forking import delaying_forks

__all__ = ["multiply", "multiply_each", "vecdot"]

_PRODUCTS = 1 << 18  # multiplications up to which OpenBLAS multiplies matrices in one thread
_VECTOR_PRODUCTS = 1 << 13  # the same for a matrix and a vector: OpenBLAS takes 9215 in one thread
_CACHED = 6 << 10  # numbers of float32 that leave room in a first-level cache of 32 KiB
_LONGEST = 1 << 13  # elements of a dot product: OpenBLAS takes 10000 in one thread
_DEEPEST = 1 << 11  # columns of a piece: with more columns and fewer rows it would be slower
_FEW = 4  # rows on the left for which dot products are faster


def vecdot(
    left: npt.NDArray[Any], right: npt.NDArray[Any], *, dtype: npt.DTypeLike | None = None
) -> npt.NDArray[Any]:
    """Return the dot products of vectors along the last axis, as :func:`numpy.vecdot` does.

    Float32 or float64; `dtype` is the type to compute in, by default the vectors' own.
    """
    k = left.shape[-1]
    if k <= _LONGEST:
        products = np.vecdot(left, right, dtype=dtype)
    else:
        parts = [slice(first, first + _LONGEST) for first in range(0, k, _LONGEST)]
        products = sum(np.vecdot(left[..., part], right[..., part], dtype=dtype) for part in parts)
    return cast("npt.NDArray[Any]", products)


def multiply(
    left: npt.NDArray[Any], right: npt.NDArray[Any], *, out: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """Return ``left @ right.T`` for float matrices (m, k) and (n, k) of one dtype: shape (m, n)."""
    m, k = left.shape
    if m <= _FEW:
        products = vecdot(right, left[:, np.newaxis])
        if out is None:
            return products
        out[...] = products
        return out
    products = np.empty((m, len(right)), left.dtype) if out is None else out
    # A piece of four or five times as many rows on the left as on the right is multiplied fastest.
    room = _PRODUCTS // max(min(k, _DEEPEST), 1)
    n_pieces = -(-m // math.isqrt(5 * room))
    per_piece = -(-m // n_pieces)
    # BLAS takes a lock for its buffers, which the child of a fork would find locked.
    with delaying_forks():
        for first in range(0, m, per_piece):
            rows = slice(first, first + per_piece)
            _multiply(left[rows, :_DEEPEST], right[:, :_DEEPEST], products[rows])
            for column in range(_DEEPEST, k, _DEEPEST):
                part = slice(column, column + _DEEPEST)
                more = np.empty_like(products[rows])
                _multiply(left[rows, part], right[:, part], more)
                products[rows] += more
    return products


def multiply_each(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``left @ right.T``, where the bits of a row do not depend on the other rows.

    The order in which BLAS adds up depends on the shapes. Here every row on the left is a product
    of its own, by the same pieces of `right`.
    """
    m, (n, k) = len(left), right.shape
    per_piece = _choose_piece(n, k)
    if per_piece < 2 or m == 0:
        return vecdot(right, left[:, np.newaxis])
    products = np.empty((m, n), left.dtype)
    end = n // per_piece * per_piece
    columns = left[:, :, np.newaxis]
    with delaying_forks():  # as in multiply
        # One piece after the other, by all rows: it stays in the cache.
        stack = right[:end].reshape(-1, 1, per_piece, k)
        out = products[:, :end].reshape(m, -1, per_piece, 1).swapaxes(0, 1)
        # Pieces of many rows would push each other out of the cache: a buffer takes them in order.
        found = out if m == 1 else np.empty(out.shape, out.dtype)
        np.matmul(stack, columns, out=found)
        if found is not out:
            out[...] = found
        if end < n:
            np.matmul(right[end:], columns, out=products[:, end:, np.newaxis])
    return products


@lru_cache(16)
def _choose_piece(n: int, k: int) -> int:
    """Return how many of `n` rows of length `k` to multiply with a vector at a time."""
    most = min(_CACHED // max(k, 1), n)
    if most < 4:
        return min(4, _VECTOR_PRODUCTS // max(k, 1), n)
    # BLAS takes four rows at a time; a rest costs a call of its own.
    whole = [rows for rows in range(most, most // 2, -1) if n % rows == 0]
    return next((rows for rows in whole if rows % 4 == 0), (whole or [most - most % 4])[0])


def _multiply(left: npt.NDArray[Any], right: npt.NDArray[Any], products: npt.NDArray[Any]) -> None:
    """Multiply a few rows with all rows on the right, in pieces that stay in one thread."""
    m, k = left.shape
    at_once = max(_PRODUCTS // max(m * k, 1), 1)
    n_whole = len(right) // at_once
    end = n_whole * at_once
    # A stack of products, so that the loop over them is numpy's.
    stack = right[:end].reshape(n_whole, at_once, k).transpose(0, 2, 1)
    np.matmul(left, stack, out=products[:, :end].reshape(m, n_whole, at_once).swapaxes(0, 1))
    if end < len(right):
        np.matmul(left, right[end:].T, out=products[:, end:])
