"""Affine quantization: unsigned bytes that stand for minimum plus a multiple of a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["decode_affine", "encode_affine"]

_BLOCK = 1 << 18


def decode_affine(
    codes: npt.NDArray[np.uint8],
    scale: float,
    minimum: float,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Return ``codes * scale + minimum`` in float32 with a rounding after each operation.

    Parameters
    ----------
    codes : numpy.ndarray
        Any shape, uint8.
    scale, minimum : float
        Rounded to float32 before they are used.
    out : numpy.ndarray, optional
        The same shape, float32, contiguous: where to put them.

    Returns
    -------
    numpy.ndarray
        The same shape, float32.
    """
    out = np.empty(codes.shape, np.float32) if out is None else out
    source, target = codes.reshape(-1), out.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):  # what a file says may be anything
        factor, offset = np.float32(scale), np.float32(minimum)
        for start in range(0, source.size, _BLOCK):
            values = target[start : start + _BLOCK]
            np.multiply(source[start : start + _BLOCK], factor, out=values)
            np.add(values, offset, out=values)
    return out


def encode_affine(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], float, float]:
    """Quantize values to bytes over their whole range.

    Parameters
    ----------
    values : numpy.ndarray
        Any shape, floating point.

    Returns
    -------
    codes : numpy.ndarray
        The same shape, uint8: the nearest multiple of the scale, halves to even.
    scale, minimum : float
        What :func:`decode_affine` needs; both exactly float32.

    Raises
    ------
    ValueError
        When a value is not finite.
    """
    if not np.isfinite(values).all():
        raise ValueError("int8 holds no NaN and no infinity")
    if not values.size:
        return values.astype(np.uint8), 1.0, 0.0
    minimum, maximum = np.float32(values.min()), np.float32(values.max())
    scale = np.float32((float(maximum) - float(minimum)) / 255) or np.float32(1)
    steps = np.rint((values.astype(np.float32) - minimum) / scale)
    return np.clip(steps, 0, 255).astype(np.uint8), float(scale), float(minimum)
