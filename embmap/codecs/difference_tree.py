"""A tree of differences over time.

Every step except the first and the last is stored as its difference from the mean of two steps
around it, so that restoring a step needs only its ancestors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Node", "ancestry", "differences", "levels", "preorder", "restore"]

_BLOCK = 1 << 16  # numbers whose intermediate results fit into the second-level cache

Node = tuple[int, int, int]
"""The step to the left, the step itself, the step to the right."""


def ancestry(n_steps: int, t: int) -> list[Node]:
    """Return the nodes from the root to a step, in order; none for the first and the last step."""
    left, right = 0, n_steps - 1
    nodes = []
    while left < t < right:
        middle = (left + right) // 2
        nodes.append((left, middle, right))
        if t <= middle:
            right = middle
        if t >= middle:
            left = middle
    return nodes


def levels(n_steps: int) -> list[npt.NDArray[np.int64]]:
    """Return all nodes, an array (nodes, 3) of left, step and right for each depth."""
    spans = np.array([[0, n_steps - 1]])
    found: list[npt.NDArray[np.int64]] = []
    while True:
        spans = spans[spans[:, 1] - spans[:, 0] > 1]
        if not len(spans):
            return found
        middle = spans.sum(axis=1) // 2
        found.append(np.column_stack((spans[:, 0], middle, spans[:, 1])))
        below = np.column_stack((spans[:, 0], middle, middle, spans[:, 1]))
        spans = below.reshape(-1, 2)


def preorder(n_steps: int) -> list[Node]:
    """Return all nodes in the order of writing: parents before children, left before right."""
    nodes = []
    waiting = [(0, n_steps - 1)]
    while waiting:
        left, right = waiting.pop()
        if right - left > 1:
            middle = (left + right) // 2
            nodes.append((left, middle, right))
            waiting += [(middle, right), (left, middle)]
    return nodes


def restore(
    left: npt.NDArray[np.int16], difference: npt.NDArray[np.int16], right: npt.NDArray[np.int16]
) -> npt.NDArray[np.int16]:
    """Return a step, given the two around it and its stored difference; int16 sums wrap."""
    restored = np.empty(difference.shape, np.int16)
    flat = [array.reshape(-1) for array in (left, difference, right, restored)]
    for start in range(0, restored.size, _BLOCK):
        before, change, after, out = (array[start : start + _BLOCK] for array in flat)
        np.add(_mean(before, after), change, out=out)
    return restored


def differences(
    left: npt.NDArray[np.int16],
    step: npt.NDArray[np.int16],
    right: npt.NDArray[np.int16],
    *,
    wrap: bool = False,
) -> npt.NDArray[np.int16]:
    """Return the difference to store for a step, the inverse of :func:`restore`.

    A difference beyond 16 bits raises ValueError, or wraps if `wrap` is true.
    """
    exact = step.astype(np.int32) - _mean(left, right)
    if not wrap and exact.size and (exact.min() < -(1 << 15) or exact.max() >= 1 << 15):
        worst = exact.flat[np.abs(exact).argmax()]
        raise ValueError(f"a difference of {worst} does not fit into 16 bits")
    return exact.astype(np.int16)


def _mean(left: npt.NDArray[np.int16], right: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Return means truncated toward zero, without leaving 16 bits."""
    unequal = left ^ right
    mean = (unequal >> 1) + (left & right)  # rounded down
    unequal &= mean >> 15  # ... and so one too low for odd negative sums
    unequal &= 1
    mean += unequal
    return mean
