"""The compiled loops of searches; exact scores decide afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.jit_support import compiled

__all__ = ["code_bounds"]


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
