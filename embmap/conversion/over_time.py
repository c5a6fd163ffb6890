"""Several inputs as time steps: the words that all of them have, in the order of the first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embmap.conversion.words import Chosen
from embmap.errors import ArgumentError
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Selected
from embmap.words.table import WordTable

__all__ = ["align"]


def align(
    chosen: Sequence[Chosen | None], matrices: Sequence[Matrix]
) -> tuple[WordTable | None, list[Matrix]]:
    """Return the common words of all inputs, and a matrix with their rows for each input.

    Inputs without words must have equally many rows.
    """
    if len(matrices) < 2:
        raise ValueError("vectors over time need at least two time steps; give several inputs")
    dims = {matrix.shape[1] for matrix in matrices}
    if len(dims) > 1:
        raise ValueError(f"the inputs must have vectors of one length, not {sorted(dims)}")
    tables = [None if each is None else each.words for each in chosen]
    aligned, words = list(matrices), tables[0]
    lists = [list(table) for table in tables if table is not None]
    if lists and len(lists) < len(tables):
        raise ArgumentError("some of the inputs have words, others need {vocab}")
    if words is not None:
        common = set(lists[0]).intersection(*lists[1:])
        if not common:
            raise ValueError("the inputs have no word in common")
        kept = [word for word in lists[0] if word in common]
        for t, listed in enumerate(lists):
            if listed != kept:
                rows = {word: row for row, word in enumerate(listed)}
                numbers = np.fromiter(map(rows.__getitem__, kept), np.int64, len(kept))
                aligned[t] = Selected(aligned[t], numbers)
        words = words.select(np.flatnonzero([word in common for word in lists[0]]))
    if len({len(matrix) for matrix in aligned}) > 1:
        raise ValueError(f"the inputs have {[len(m) for m in aligned]} vectors, and no words")
    return words, aligned
