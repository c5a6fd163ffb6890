"""Lengths of vectors and cosines, whatever the size of their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.products import vecdot

__all__ = ["HIGH", "LOW", "SMALLER", "cosines", "lengths_of", "measure_lengths", "scale_to_units"]

LOW, HIGH = 1e-15, 1e15
"""The range of lengths whose squares and products fit into float32."""
SMALLER = 2.0**-600
"""Times this, float64 numbers can be squared and added up without overflow."""


def measure_lengths(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the Euclidean lengths of rows: infinity on overflow, NaN for infinite rows."""
    with np.errstate(all="ignore"):
        return lengths_of(vecdot(vectors, vectors), vectors.__getitem__)


def lengths_of(
    squares: npt.NDArray[Any], take: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Return the lengths whose squares are known; a function returns the rows of some of them."""
    with np.errstate(all="ignore"):
        lengths = np.sqrt(squares)
        # Squares of small or large numbers may vanish or overflow although the length does not.
        wrong = np.flatnonzero(~((squares > LOW**2) & (squares < HIGH**2)))
        if wrong.size:
            rows = take(wrong).astype(np.float64)
            largest = np.abs(rows).max(axis=1, initial=0)
            scaled = rows / np.where(largest > 0, largest, 1)[:, np.newaxis]
            lengths[wrong] = np.sqrt(vecdot(scaled, scaled)) * largest
    return cast("npt.NDArray[Any]", lengths)


def scale_to_units(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return rows scaled to unit length; rows of zeros stay zeros."""
    vectors, lengths = _shortened(vectors)
    units: npt.NDArray[np.float64] = vectors / np.where(lengths == 0, 1, lengths)[:, np.newaxis]
    return units


def cosines(
    vectors: npt.NDArray[np.float64], units: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the cosines of vectors with unit vectors: 0 for vectors of length 0."""
    vectors, lengths = _shortened(vectors)
    cosines = vecdot(vectors, units) / np.where(lengths == 0, 1, lengths)
    return cast("npt.NDArray[np.float64]", np.clip(cosines, -1, 1))


def _shortened(
    vectors: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return rows and their lengths; rows whose length overflows float64 are scaled down."""
    lengths = measure_lengths(vectors)
    beyond = np.isinf(lengths)
    if beyond.any():
        vectors = np.where(beyond[:, np.newaxis], vectors * SMALLER, vectors)
        lengths = measure_lengths(vectors)
    return vectors, lengths
