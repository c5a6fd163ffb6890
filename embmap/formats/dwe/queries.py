"""Dot products of integer vectors, and rankings of words by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["dot_products", "greatest", "greatest_changes", "scaled"]


def dot_products(a: npt.NDArray[np.int16], b: npt.NDArray[np.int16]) -> npt.NDArray[np.int32]:
    """Return dot products along the last axis, in int32 as in the original program.

    Sums beyond 31 bits wrap, as they do there. Vectors of 100 dimensions cannot reach that with
    values of up to 4633.
    """
    products: npt.NDArray[np.int32] = np.vecdot(a.astype(np.int32), b.astype(np.int32))
    return products


def scaled(
    integers: npt.NDArray[Any], scale: np.float32, out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Return the products of integers and a scale, which may be infinite or NaN, in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        numbers: npt.NDArray[np.float32] = np.multiply(integers, scale, out=out, dtype=np.float32)
    return numbers


def greatest(products: npt.NDArray[Any], n: int, target: int) -> npt.NDArray[np.int64]:
    """Return the rows of the `n` greatest products; of equal products the smaller row is first.

    The row `target` is left out; `n` must be smaller than the number of rows.
    """
    if n == 0:
        return np.empty(0, np.int64)
    wanted = products.astype(np.int64)
    wanted[target] = np.iinfo(np.int64).min
    # Only candidates are sorted; the stable sort keeps equal products in the order of their rows.
    threshold = np.partition(wanted, wanted.size - n)[wanted.size - n]
    rows = np.flatnonzero(wanted >= threshold)
    return rows[np.argsort(-wanted[rows], kind="stable")[:n]]


def greatest_changes(
    changes: npt.NDArray[np.int64], n: int, min_increasing: int, min_decreasing: int, target: int
) -> npt.NDArray[np.int64]:
    """Return the `n` rows that changed most, without the row `target`.

    First come the `min_increasing` rows that increased most and the `min_decreasing` rows that
    decreased most, then the rows with the largest changes of either sign. All are sorted by the
    size of the change in the direction for which they were chosen; each row occurs once.
    """
    others = np.delete(np.arange(changes.size), target)
    rising = others[np.argsort(-changes[others], kind="stable")]
    falling = others[np.argsort(changes[others], kind="stable")]
    taken = np.concatenate((rising[:min_increasing], falling[:min_decreasing]))
    rest = np.concatenate((rising[min_increasing:], falling[min_decreasing:]))
    rises = np.arange(rest.size) < rising.size - min_increasing
    amounts = np.where(rises, changes[rest], -changes[rest])
    order = np.argsort(-amounts, kind="stable")
    rows = np.concatenate((taken, rest[order]))
    rises = np.concatenate((np.arange(taken.size) < min_increasing, rises[order]))
    _, first = np.unique(rows, return_index=True)
    chosen = np.sort(first)[:n]
    rows, rises = rows[chosen], rises[chosen]
    amounts = np.where(rises, changes[rows], -changes[rows])
    return rows[np.argsort(-amounts, kind="stable")]
