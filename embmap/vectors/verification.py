"""The check of vectors that ``verify()`` makes for several formats."""

from __future__ import annotations

import numpy as np

from embmap.progress import Progress
from embmap.report import Report
from embmap.vectors.matrix import Matrix

__all__ = ["verify_vectors"]


def verify_vectors(matrix: Matrix | None, report: Report, progress: Progress | None) -> None:
    """Decode every row, and warn about the first value that is not finite."""
    if matrix is None:
        return
    for start, block in matrix.blocks():
        if block.dtype.kind == "f" and not np.isfinite(block).all():
            wrong = start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
            report.warning(f"row {wrong} has a value that is not finite")
            return
        if progress is not None:
            progress("checking vectors", start + len(block), len(matrix))
