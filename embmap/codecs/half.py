"""Half precision: IEEE float16 to float32, exactly, for all 65,536 patterns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels

__all__ = ["decode_half", "encode_half"]

_BLOCK = 1 << 17  # items that fit into the cache and still keep threads from waiting often
_FEW = 4096
_PER_OPERATION = 6  # items that numpy decodes in the time of one operation of codecs.kernels
_SCALE = np.float32(2.0**112)
_SHIFT = np.int32(13)
_SIGN_AND_MAGNITUDE = np.int32(-0x70002000)  # bit 31, and the bits of a shifted half
_INFINITY = 0x7C00  # also the exponent of NaN
_SPECIAL = np.int32(0x7F800000)


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
    jit = kernels.jit_for(bits.size // _PER_OPERATION)
    if jit is not None:
        jit.decode_half(source, target.view(np.uint32))
    else:
        _decode(source, target)
    return out


def _decode(source: npt.NDArray[np.uint16], target: npt.NDArray[np.float32]) -> None:
    signed, patterns = source.view("<i2"), target.view(np.int32)
    for start in range(0, source.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        pattern = patterns[block]
        # In place, since temporary arrays would cost new memory. The sign fills the upper half.
        np.copyto(pattern, signed[block])
        np.left_shift(pattern, _SHIFT, out=pattern)
        np.bitwise_and(pattern, _SIGN_AND_MAGNITUDE, out=pattern)
        np.multiply(target[block], _SCALE, out=target[block])
        # The greatest positive and the greatest negative pattern show whether all are finite.
        if signed[block].max() >= _INFINITY or source[block].max() >= _INFINITY + 0x8000:
            pattern[source[block] & _INFINITY == _INFINITY] |= _SPECIAL


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
