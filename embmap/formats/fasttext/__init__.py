"""fastText's models: words, and the buckets of their n-grams."""

__all__ = ["FORMAT", "MAGIC"]

FORMAT = "fasttext"
MAGIC = (793712314).to_bytes(4, "little")
