"""The binary form of word2vec: float32 rows with the words between them."""
