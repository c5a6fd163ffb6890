"""From buckets to stored n-grams: only the rows that n-grams of the vocabulary use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embmap.words.subwords import ExplicitIndexer, SubwordIndexer
from embmap.words.table import WordTable

__all__ = ["make_explicit"]

_BATCH = 1 << 14


def make_explicit(
    indexer: SubwordIndexer, words: WordTable
) -> tuple[ExplicitIndexer, npt.NDArray[np.int64]]:
    """Return an indexer of the n-grams of words, and the bucket of each of its rows.

    N-grams that share a bucket go on to share a row. The buckets have the shape (n_rows,), int64.
    """
    if indexer.kind not in ("bucket", "fasttext"):
        raise ValueError(f"{indexer.kind} subwords cannot become explicit ones")
    known: dict[str, int] = {}
    rows: dict[int, int] = {}
    for start in range(0, len(words), _BATCH):
        batch = words.decoded(start, start + _BATCH)
        buckets, _ = indexer.buckets(batch)
        ngrams = [ngram for word in batch for ngram in indexer.ngrams(word)]
        if len(buckets):  # an indexer without buckets returns an empty array
            for ngram, bucket in zip(ngrams, buckets.tolist(), strict=True):
                if ngram not in known:
                    known[ngram] = rows.setdefault(bucket, len(rows))
    found = ExplicitIndexer.of(
        list(known), list(known.values()), min_n=indexer.min_n, max_n=indexer.max_n
    )
    return found, np.fromiter(rows, np.int64, len(rows))
