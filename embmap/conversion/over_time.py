"""Several embeddings as the time steps of one DWE file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embmap.conversion.rows import Selected
from embmap.conversion.targets import with_words_beside
from embmap.conversion.words import Chosen
from embmap.formats.dwe.writer import quantize_blocks, write
from embmap.progress import Progress
from embmap.vectors.matrix import Matrix

__all__ = ["write_steps"]


def write_steps(
    path: Path,
    steps: Sequence[tuple[Chosen | None, Matrix]],
    *,
    bits: int = 8,
    layout: str = "blocks",
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write embeddings as time steps."""
    if len(steps) < 2:
        raise ValueError("a DWE file has two time steps at least; give several inputs")
    widths = {vectors.shape[1] for _, vectors in steps}
    if len(widths) > 1:
        raise ValueError(f"the inputs have vectors of different lengths: {sorted(widths)}")
    vocabularies = [list(chosen.words) for chosen, _ in steps if chosen is not None]
    words, n_dropped = None, 0
    matrices = [vectors for _, vectors in steps]
    if vocabularies and len(vocabularies) < len(steps):
        raise ValueError("some of the inputs have words and some have none; give all a vocab")
    if vocabularies:
        common = set(vocabularies[0]).intersection(*vocabularies[1:])
        if not common:
            raise ValueError("the inputs have no word in common")
        kept = [word for word in vocabularies[0] if word in common]
        n_dropped = len(vocabularies[0]) - len(kept)
        for t, listed in enumerate(vocabularies):
            if listed != kept:
                rows = {word: row for row, word in enumerate(listed)}
                numbers = np.fromiter(map(rows.__getitem__, kept), np.int64, len(kept))
                matrices[t] = Selected(matrices[t], numbers)
        first = steps[0][0]
        if first is not None:
            numbers = np.flatnonzero([word in common for word in vocabularies[0]])
            words = first.words.only(numbers)
    if len({len(matrix) for matrix in matrices}) > 1:
        raise ValueError(f"the inputs have {[len(m) for m in matrices]} vectors, and no words")
    quantized, scale = quantize_blocks(matrices, bits)
    with with_words_beside(path, words) as part:
        write(part, quantized, scale=scale, layout=layout, progress=progress)
    return len(matrices[0]), n_dropped
