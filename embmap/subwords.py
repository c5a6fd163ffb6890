"""Subword indexers by their public name: ``embmap.subwords.BucketIndexer`` and its siblings."""

from embmap.words.subwords import (
    BucketIndexer,
    ExplicitIndexer,
    FastTextIndexer,
    FloretIndexer,
    SubwordIndexer,
)

__all__ = [
    "BucketIndexer",
    "ExplicitIndexer",
    "FastTextIndexer",
    "FloretIndexer",
    "SubwordIndexer",
]
