"""The compiled loops of searches; exact scores decide afterwards."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.jit_support import compiled, prefetch

__all__ = ["code_bounds", "gathered_products"]


@compiled
def code_bounds(
    codes: npt.NDArray[np.int8], numbers: npt.NDArray[np.int16], terms: Any, out: npt.NDArray[Any]
) -> None:
    """Compute the upper bounds of :class:`embmap.search.sketch.Asked` for rows of a sketch."""
    (scales, errors, lengths), (steps, bases, rests), (low, high) = terms
    n_rows, width = codes.shape
    for i in range(n_rows):
        row = codes[i]
        length = lengths[i]
        unknown = (length > 0) & ~((length >= low) & (length <= high))
        for q in range(numbers.shape[0]):
            asked = numbers[q]
            total = np.int32(0)
            for j in range(width):
                total = np.int32(total + np.int32(row[j]) * np.int32(asked[j]))
            about = length * bases[q] + scales[i] * (steps[q] * total + rests[q])
            out[q, i] = np.inf if unknown else about + errors[i]


@partial(compiled, fastmath={"reassoc", "contract"})
def gathered_products(
    array: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int64],
    units: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    squares: npt.NDArray[np.float32],
) -> None:
    """Compute products (m, n) of units (m, dim) with rows of an array, and the rows' squares (n,).

    The caller has checked that the rows exist. Sums are added in any order. No squares are computed
    for an empty array.
    """
    width = array.shape[1]
    flat = array.reshape(array.size)
    for i in range(rows.size):
        # Rows are far apart. The processor waits for several at a time if it is told of them.
        if i + 4 < rows.size:
            for j in range(0, width, 16):
                prefetch(flat, rows[i + 4] * width + j)
        row = array[rows[i]]
        for q in range(units.shape[0]):
            unit = units[q]
            total = np.float32(0)
            for j in range(width):
                total += row[j] * unit[j]
            out[q, i] = total
        if squares.size:
            total = np.float32(0)
            for j in range(width):
                total += row[j] * row[j]
            squares[i] = total
