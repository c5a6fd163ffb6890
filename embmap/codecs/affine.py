"""Affine quantization: unsigned bytes that stand for minimum plus a multiple of a scale."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["decode_affine"]

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
