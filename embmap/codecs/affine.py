"""Affine quantization: unsigned bytes that stand for minimum plus a multiple of a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels

__all__ = ["decode_affine", "encode_affine"]

_BLOCK = 1 << 18
_FEW = 4096
_PER_OPERATION = 12  # items that numpy decodes in the time of what kernels counts as an operation
_SAFE = 3e38  # below it no float32 operation overflows


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
    if abs(scale) * 255 + abs(minimum) < _SAFE:
        _decode(codes.reshape(-1), np.float32(scale), np.float32(minimum), out.reshape(-1))
    else:  # what a file says may be anything, infinities and NaN as well
        with np.errstate(over="ignore", invalid="ignore"):
            _decode(codes.reshape(-1), np.float32(scale), np.float32(minimum), out.reshape(-1))
    return out


def _decode(
    codes: npt.NDArray[np.uint8],
    scale: np.float32,
    minimum: np.float32,
    out: npt.NDArray[np.float32],
) -> None:
    jit = None if codes.size < _FEW else kernels.jit_for(codes.size // _PER_OPERATION)
    if jit is not None:
        jit.decode_affine(codes, scale, minimum, out)
        return
    for start in range(0, codes.size, _BLOCK):
        values = out[start : start + _BLOCK]
        np.multiply(codes[start : start + _BLOCK], scale, out=values)
        np.add(values, minimum, out=values)


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
        When a value is not finite, or the values lie too far apart for float32.
    """
    if not np.isfinite(values).all():
        raise ValueError("int8 holds no NaN and no infinity")
    if not values.size:
        return values.astype(np.uint8), 1.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        minimum, maximum = np.float32(values.min()), np.float32(values.max())
        scale = (maximum - minimum) / np.float32(255) or np.float32(1)
        greatest = np.float32(255) * scale + minimum  # what the highest code is decoded to
    if not np.isfinite([minimum, scale, greatest]).all():
        raise ValueError(f"int8 cannot span {values.min()} to {values.max()} in float32")
    steps = np.rint((values.astype(np.float32) - minimum) / scale)
    return np.clip(steps, 0, 255).astype(np.uint8), float(scale), float(minimum)
