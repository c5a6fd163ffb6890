"""Affine quantization: unsigned bytes that stand for minimum plus a multiple of a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels

__all__ = ["AffineEncoder", "decode_affine", "encode_affine"]

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
    """Return ``codes * scale + minimum`` in float32 with a rounding after each operation."""
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


class AffineEncoder:
    """Quantizes values to bytes over their whole range, which a first pass over them finds.

    Attributes
    ----------
    lowest, highest : float or None
        Least and greatest of the values seen; None before there are any.
    """

    def __init__(self) -> None:
        self.lowest: Any = None
        self.highest: Any = None

    def see(self, values: npt.NDArray[Any]) -> None:
        """Take notice of some of the values."""
        if not values.size:
            return
        lowest, highest = values.min(), values.max()
        if not (np.isfinite(lowest) and np.isfinite(highest)):
            raise ValueError("int8 holds no NaN and no infinity")
        self.lowest = lowest if self.lowest is None else min(self.lowest, lowest)
        self.highest = highest if self.highest is None else max(self.highest, highest)

    def fit(self) -> tuple[np.float32, np.float32]:
        """Return scale and minimum of all values seen, as :func:`decode_affine` takes them."""
        if self.lowest is None:
            return np.float32(1), np.float32(0)
        with np.errstate(over="ignore", invalid="ignore"):
            minimum, maximum = np.float32(self.lowest), np.float32(self.highest)
            scale = (maximum - minimum) / np.float32(255) or np.float32(1)
            greatest = np.float32(255) * scale + minimum  # what the highest code is decoded to
        if not np.isfinite([minimum, scale, greatest]).all():
            raise ValueError(f"int8 cannot span {self.lowest} to {self.highest} in float32")
        return scale, minimum


def encode_affine(
    values: npt.NDArray[Any], scale: np.float32, minimum: np.float32
) -> npt.NDArray[np.uint8]:
    """Return the bytes that stand for values."""
    steps = values.astype(np.float32)
    steps -= minimum
    steps /= scale
    np.rint(steps, out=steps)
    return np.clip(steps, 0, 255, out=steps).astype(np.uint8)
