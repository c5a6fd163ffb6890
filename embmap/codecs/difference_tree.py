"""A tree of differences over time.

Every step except the first and the last is stored as its difference from the mean of two steps
around it, so that restoring a step needs only its ancestors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["Node", "ancestry", "differences", "preorder", "restore", "restore_all"]

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


def restore_all(steps: npt.NDArray[np.int16]) -> None:
    """Restore all steps, (T, numbers), in place from what is stored for them."""
    order, places, levels = _plan(len(steps))
    width = max(_BLOCK // len(steps), 1)
    for start in range(0, steps.shape[1], width):
        block = steps[:, start : start + width]
        values = block.take(order, axis=0)
        for first, last, left, right in levels:
            values[first:last] += _mean(values.take(left, axis=0), values.take(right, axis=0))
        block[:] = values.take(places, axis=0)


_Level = tuple[int, int, npt.NDArray[np.int64], npt.NDArray[np.int64]]


@lru_cache(maxsize=4)
def _plan(
    n_steps: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], tuple[_Level, ...]]:
    """Return the steps from the root down, their places in this order, and the levels.

    The steps of a level lie together. A level has their range, and the places of the steps to the
    left and to the right of each.
    """
    spans = np.array([[0, n_steps - 1]])
    order, around = [spans[0]], []
    while (spans := spans[spans[:, 1] - spans[:, 0] > 1]).size:
        middle = spans.sum(axis=1) // 2
        order.append(middle)
        around.append(spans)
        spans = np.column_stack((spans[:, 0], middle, middle, spans[:, 1])).reshape(-1, 2)
    steps = np.concatenate(order)
    places = np.argsort(steps)
    ends = np.cumsum([each.size for each in order]).tolist()
    levels = tuple(
        (first, last, *places[each].T.copy())
        for first, last, each in zip(ends, ends[1:], around, strict=False)
    )
    return steps, places, levels


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
