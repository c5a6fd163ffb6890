"""From buckets to n-grams: the rows that the vocabulary's n-grams use, and no others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embmap.conversion.words import WordTable
from embmap.words.subwords import ExplicitIndexer, SubwordIndexer

__all__ = ["explicit"]

_BATCH = 1 << 14


def explicit(
    indexer: SubwordIndexer, words: WordTable
) -> tuple[ExplicitIndexer, npt.NDArray[np.int64]]:
    """Return the n-grams of words as stored n-grams.

    N-grams that share a bucket share a row, as they did.
    """
    if indexer.kind not in ("bucket", "fasttext"):
        raise ValueError(f"{indexer.kind} subwords cannot become explicit ones")
    known: dict[str, int] = {}
    rows: dict[int, int] = {}
    for start in range(0, len(words), _BATCH):
        batch = words.decoded(start, start + _BATCH)
        buckets, _ = indexer.buckets(batch)
        ngrams = [ngram for word in batch for ngram in indexer.ngrams(word)]
        if len(buckets):  # none at all where there are no buckets
            for ngram, bucket in zip(ngrams, buckets.tolist(), strict=True):
                if ngram not in known:
                    known[ngram] = rows.setdefault(bucket, len(rows))
    found = ExplicitIndexer.of(
        list(known), list(known.values()), min_n=indexer.min_n, max_n=indexer.max_n
    )
    return found, np.fromiter(rows, np.int64, len(rows))
