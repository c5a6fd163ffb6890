"""What is asked of words over time: dot products of integers and rankings by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["dot_products", "greatest", "greatest_changes", "scaled"]


def dot_products(a: npt.NDArray[np.int16], b: npt.NDArray[np.int16]) -> npt.NDArray[np.int32]:
    """Return dot products along the last axis, in int32, as the original program does.

    Sums beyond 31 bits wrap there and here: vectors of 100 dimensions may have values of up to
    4633 without that.
    """
    products: npt.NDArray[np.int32] = np.vecdot(a.astype(np.int32), b.astype(np.int32))
    return products


def scaled(
    integers: npt.NDArray[Any], scale: np.float32, out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Return integers as numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        numbers: npt.NDArray[np.float32] = np.multiply(integers, scale, out=out, dtype=np.float32)
    return numbers


def greatest(products: npt.NDArray[Any], n: int, target: int) -> npt.NDArray[np.int64]:
    """Return the rows of the greatest products, the smaller row first of equal ones."""
    if n == 0:
        return np.empty(0, np.int64)
    wanted = products.astype(np.int64)
    wanted[target] = np.iinfo(np.int64).min
    # Those that might be among them, in the order of their rows, then sorted without changing it.
    threshold = np.partition(wanted, wanted.size - n)[wanted.size - n]
    rows = np.flatnonzero(wanted >= threshold)
    return rows[np.argsort(-wanted[rows], kind="stable")[:n]]


def greatest_changes(
    changes: npt.NDArray[np.int64], n: int, min_increasing: int, min_decreasing: int, target: int
) -> npt.NDArray[np.int64]:
    """Return the rows that changed most, with some that increased and some that decreased.

    Those that increased most are taken first, then those that decreased most, then whatever changed
    most. All are sorted by how much they changed in the direction they were taken for.
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
