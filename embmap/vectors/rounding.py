"""Rounding vectors over time to integers with one scale."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.vectors.blocks import split_blocks
from embmap.vectors.matrix import Matrix

__all__ = ["check_scale", "quantize", "quantize_blocks"]


def quantize(
    vectors: npt.ArrayLike | Sequence[npt.ArrayLike], bits: int = 8
) -> tuple[npt.NDArray[np.int16], float]:
    """Round vectors to integers with one scale.

    Parameters
    ----------
    vectors : array-like or sequence
        Shape (T, V, K), floating point, or T time steps of shape (V, K).
    bits : int
        Bits of an integer, including its sign: 2 to 16. With more than 11 bits, a time step may
        have more different symbols than a DWE file can store.

    Returns
    -------
    quantized : numpy.ndarray
        Shape (T, V, K), int16, from ``-(2 ** (bits - 1) - 1)`` to ``2 ** (bits - 1) - 1``.
    scale : float
        Factor from integers to numbers, exactly a float32. ``quantized * scale`` differs from the
        vectors by at most ``scale / 2``.

    Raises
    ------
    ValueError
        If a value is not finite, or `bits` is out of range.
    """
    steps = cast("Sequence[Any]", vectors if _subscriptable(vectors) else np.asarray(vectors))
    shape = (len(steps), *np.shape(steps[0])) if len(steps) else (0, 0, 0)
    rounded, scale = quantize_blocks(steps, bits)
    quantized = np.empty(shape, np.int16)
    for step, blocks in zip(quantized, rounded, strict=True):
        start = 0
        for block in blocks:
            step[start : start + len(block)] = block
            start += len(block)
    return quantized, scale


def quantize_blocks(
    steps: Sequence[Any], bits: int = 8
) -> tuple[list[Iterator[npt.NDArray[np.int16]]], float]:
    """Round T time steps as :func:`quantize` does, which reads each step twice.

    Return the blocks of rows of each step, int16, and the scale.
    """
    bits = operator.index(bits)
    if not 2 <= bits <= 16:
        raise ValueError(f"bits must be 2 to 16, not {bits}")
    greatest = 0.0
    for t in range(len(steps)):
        step = _as_rows(steps[t])
        if len(step.shape) != 2 or step.dtype.kind not in "fiu":
            raise ValueError(f"timestep {t} must be finite numbers in two dimensions")
        if step.shape != np.shape(steps[0]):
            shape = np.shape(steps[0])
            raise ValueError(f"timestep {t} must have the shape {shape}, not {step.shape}")
        for block in split_blocks(step):
            if block.size:
                lowest, highest = float(block.min()), float(block.max())
                if not (math.isfinite(lowest) and math.isfinite(highest)):
                    raise ValueError(f"timestep {t} must be finite numbers in two dimensions")
                greatest = max(greatest, highest, -lowest)
    limit = 2 ** (bits - 1) - 1
    with np.errstate(over="ignore"):
        scale = np.float32(greatest / limit)
    if not np.isfinite(scale) or (greatest and scale < np.finfo(np.float32).tiny):
        raise ValueError(f"float32 cannot represent the scale for values of up to {greatest}")
    factor = float(scale or np.float32(1))

    def rounded(step: Any) -> Iterator[npt.NDArray[np.int16]]:
        for block in split_blocks(_as_rows(step)):
            wide = np.rint(np.asarray(block, np.float64) / factor)
            yield np.clip(wide, -limit, limit).astype(np.int16)

    return [rounded(steps[t]) for t in range(len(steps))], factor


def _subscriptable(steps: object) -> bool:
    return hasattr(steps, "__getitem__") and hasattr(steps, "__len__")


def _as_rows(step: Any) -> Any:
    """Return a time step as an object with a shape and rows; array-likes become arrays."""
    return step if isinstance(step, np.ndarray | Matrix) else np.asarray(step)


def check_scale(scale: float) -> float:
    """Return a scale as float32 holds it; ValueError if it is not finite or is 0."""
    try:
        with np.errstate(over="ignore"):
            factor = float(np.float32(scale))
    except OverflowError:
        factor = math.inf
    if not math.isfinite(factor) or not factor:
        raise ValueError(f"scale must be finite and not 0 in float32, not {scale}")
    return factor
