"""KeyedVectors as gensim saves them, read without gensim."""

__all__ = ["FORMAT"]

FORMAT = "gensim"
