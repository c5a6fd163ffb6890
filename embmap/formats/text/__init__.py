"""Vectors as text: word2vec's with a line of sizes, GloVe's without, floret's tables."""
