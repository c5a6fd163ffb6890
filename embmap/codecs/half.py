"""Half precision: IEEE float16 to float32, exactly, for all 65,536 patterns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels

__all__ = ["decode_half", "encode_half"]

_BLOCK = 1 << 17  # items that fit into the cache and still keep threads from waiting often
_FEW = 4096
_SCALE = np.float32(2.0**112)


def decode_half(
    bits: npt.NDArray[np.uint16], out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Return half-precision numbers, given as uint16, as float32; NaN keeps its payload.

    The exponent and fraction of a half, shifted to their places in a float32, give the number times
    2**-112. A multiplication corrects this for every finite number, including subnormal ones.
    """
    out = np.empty(bits.shape, np.float32) if out is None else out
    if bits.size < _FEW:  # numpy gives the same bits, faster for a single row
        out[...] = bits.view(np.float16)
        return out
    source, target = bits.reshape(-1), out.reshape(-1)
    kernel = kernels.find("decode_half", source, target.view(np.uint32))
    if kernel is None:
        _decode(source, target)
    else:
        kernel(source, target.view(np.uint32))
    return out


@kernels.counted
def _decode(source: npt.NDArray[np.uint16], target: npt.NDArray[np.float32]) -> None:
    for start in range(0, source.size, _BLOCK):
        block = source[start : start + _BLOCK]
        wide = block.astype(np.uint32)
        sign = wide & np.uint32(0x8000)
        wide &= np.uint32(0x7FFF)
        special = int(wide.max(initial=0)) >= 0x7C00
        infinite = np.flatnonzero(wide >= np.uint32(0x7C00)) if special else None
        wide <<= np.uint32(13)
        values = target[start : start + _BLOCK]
        np.multiply(wide.view(np.float32), _SCALE, out=values)
        patterns = values.view(np.uint32)
        if infinite is not None:
            patterns[infinite] = wide[infinite] | np.uint32(0x7F800000)
        sign <<= np.uint32(16)
        patterns |= sign


def encode_half(
    values: npt.NDArray[Any], *, allow_overflow: bool = False
) -> npt.NDArray[np.float16]:
    """Round values to half precision, halves to even; raise ValueError for values too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype("<f2")
    if allow_overflow:
        return halves
    overflown = np.isinf(halves) & np.isfinite(values)
    if overflown.any():
        raise ValueError(f"fp16 cannot hold {values[overflown][0]}: its largest is 65504")
    return halves
