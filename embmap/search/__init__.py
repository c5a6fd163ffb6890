"""Which rows are near a vector: exact and approximate search, similarity of words."""
