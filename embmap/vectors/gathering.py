"""Rows at random places of a large array, gathered in the order asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels
from embmap.threads import in_parallel, n_threads

__all__ = ["gather_rows"]

_FEW_NBYTES = 1 << 15  # up to this size, numpy takes no longer than the call of a compiled loop
_SHARE_NBYTES = 1 << 21  # what a thread gathers at least


def gather_rows(
    array: npt.NDArray[Any], rows: npt.NDArray[np.int64], out: npt.NDArray[Any]
) -> None:
    """Copy rows of a contiguous array, which exist, to a contiguous `out` of the same dtype."""
    kernel = None
    if out.nbytes > _FEW_NBYTES and out.flags.c_contiguous:
        source, target = array.view(np.uint8), out.view(np.uint8)
        kernel = kernels.find("gather_rows", source, rows, target)
    if kernel is None:
        _gather(array, rows, out)
        return

    def work(part: slice) -> None:
        kernel(source, rows[part], target[part])

    n_pieces = max(min(n_threads(), out.nbytes // _SHARE_NBYTES), 1)
    share = -(-rows.size // n_pieces)
    in_parallel(work, [slice(i, i + share) for i in range(0, rows.size, share)])


def _gather(array: npt.NDArray[Any], rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
    """Gather with numpy, which takes a quarter longer: too little to count as a reason to load."""
    if array.flags.aligned:
        # The rows exist; with mode="raise", take would buffer its output.
        np.take(array, rows, axis=0, out=out, mode="clip")
    else:  # take would first copy the whole array to align it
        out[...] = array[rows]
