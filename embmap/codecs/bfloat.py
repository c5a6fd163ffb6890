"""Brain floating point: the upper half of a float32.

numpy has no such type. Arrays that a caller gets have the dtype ``ml_dtypes.bfloat16`` if that
package is installed, and otherwise uint16, which holds the bits. A shift converts either to float32
without loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "BFLOAT16",
    "as_bfloat16",
    "as_float32",
    "bfloat16_dtype",
    "dtype_of",
    "is_number",
    "name_dtype",
]

BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # bits that a writer stores


def bfloat16_dtype() -> np.dtype[Any]:
    """Return the dtype of bfloat16 arrays: ``ml_dtypes.bfloat16``, or uint16 without ml_dtypes."""
    return dtype_of("bfloat16")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return a dtype by its name in numpy, or in ml_dtypes if numpy lacks it.

    Without ml_dtypes, it is the unsigned integer that holds the bits.
    """
    if not name.startswith(("bfloat", "float8_")):
        return np.dtype(name)
    try:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):  # older versions lack some types
        dtype = np.dtype(np.uint16 if name == "bfloat16" else np.uint8)
    return dtype


def as_float32(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return bfloat16 numbers, or their bits as uint16, as float32, exactly."""
    wide = bits.view(np.uint16).astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def as_bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers rounded to the nearest bfloat16, ties to even; NaN stays NaN.

    FloatingPointError is raised for a finite number that becomes infinite.
    """
    wide = values.astype(np.result_type(values.dtype, np.float32), copy=False)
    single = wide.astype(np.float32)
    bits = single.view(np.uint32)
    if wide.dtype.itemsize > 4:
        # Rounding twice is right if the first result, where inexact, is odd and lies below.
        bits -= np.abs(single) > np.abs(wide)
        bits |= (single != wide) & ~np.isnan(single)
    is_nan = np.isnan(single)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    stored = np.where(is_nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)
    if (np.isinf(as_float32(stored)) & np.isfinite(single)).any():
        raise FloatingPointError("overflow in a cast to bfloat16")
    return stored.view(BFLOAT16)


def name_dtype(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype in arguments and reports."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether the elements of a vector may have a type: integers, floats, bfloat16."""
    return dtype.kind in "iuf" or dtype.name == "bfloat16"
