"""Brain floating point: the upper half of a float32.

numpy has no such type. Arrays have the dtype ``ml_dtypes.bfloat16`` if that package is installed,
and otherwise uint16, which holds the bits. A shift converts either to float32 without loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_float32", "bfloat16_dtype", "dtype_of", "is_number"]


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


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether the elements of a vector may have a type: integers, floats, bfloat16."""
    return dtype.kind in "iuf" or dtype.name == "bfloat16"
