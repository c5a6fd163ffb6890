"""Affine quantization: an unsigned byte is a multiple of a scale, added to a minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels

__all__ = ["AffineEncoder", "decode_affine", "encode_affine"]

_BLOCK = 1 << 18
_FEW = 4096
_SAFE = 3e38  # below this bound no float32 operation overflows


def decode_affine(
    codes: npt.NDArray[np.uint8],
    scale: float,
    minimum: float,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Return ``codes * scale + minimum``, rounded to float32 after each operation."""
    out = np.empty(codes.shape, np.float32) if out is None else out
    if abs(scale) * 255 + abs(minimum) < _SAFE:
        _decode(codes.reshape(-1), np.float32(scale), np.float32(minimum), out.reshape(-1))
    else:  # a damaged file may contain any scale and minimum, also infinity and NaN
        with np.errstate(over="ignore", invalid="ignore"):
            _decode(codes.reshape(-1), np.float32(scale), np.float32(minimum), out.reshape(-1))
    return out


def _decode(
    codes: npt.NDArray[np.uint8],
    scale: np.float32,
    minimum: np.float32,
    out: npt.NDArray[np.float32],
) -> None:
    kernel = None
    if codes.size >= _FEW:
        kernel = kernels.find("decode_affine", codes, scale, minimum, out)
    if kernel is None:
        _decode_in_blocks(codes, scale, minimum, out)
    else:
        kernel(codes, scale, minimum, out)


@kernels.counted
def _decode_in_blocks(
    codes: npt.NDArray[np.uint8],
    scale: np.float32,
    minimum: np.float32,
    out: npt.NDArray[np.float32],
) -> None:
    for start in range(0, codes.size, _BLOCK):
        values = out[start : start + _BLOCK]
        np.multiply(codes[start : start + _BLOCK], scale, out=values)
        np.add(values, minimum, out=values)


class AffineEncoder:
    """Quantizes values to bytes over their whole range, which a first pass determines.

    `lowest` and `highest` are the range so far, None before the first value.
    """

    def __init__(self) -> None:
        self.lowest: Any = None
        self.highest: Any = None

    def see(self, values: npt.NDArray[Any]) -> None:
        """Extend the range to some values; raise ValueError if one is not finite."""
        if not values.size:
            return
        lowest, highest = values.min(), values.max()
        if not (np.isfinite(lowest) and np.isfinite(highest)):
            raise ValueError("int8 cannot hold NaN or infinity")
        self.lowest = lowest if self.lowest is None else min(self.lowest, lowest)
        self.highest = highest if self.highest is None else max(self.highest, highest)

    def fit(self) -> tuple[np.float32, np.float32]:
        """Return the scale and the minimum for :func:`decode_affine`; 1 and 0 without values."""
        if self.lowest is None:
            return np.float32(1), np.float32(0)
        with np.errstate(over="ignore", invalid="ignore"):
            minimum, maximum = np.float32(self.lowest), np.float32(self.highest)
            scale = (maximum - minimum) / np.float32(255) or np.float32(1)
            greatest = np.float32(255) * scale + minimum  # the decoded value of the highest code
        if not np.isfinite([minimum, scale, greatest]).all():
            raise ValueError(f"int8 cannot span {self.lowest} to {self.highest} in float32")
        return scale, minimum


def encode_affine(
    values: npt.NDArray[Any], scale: np.float32, minimum: np.float32
) -> npt.NDArray[np.uint8]:
    """Return the uint8 codes of values: the nearest multiples of the scale, halves to even."""
    steps = values.astype(np.float32)
    steps -= minimum
    steps /= scale
    np.rint(steps, out=steps)
    return np.clip(steps, 0, 255, out=steps).astype(np.uint8)
