"""Codecs: pure functions from stored values to vectors, and the lazy matrices that apply them."""
