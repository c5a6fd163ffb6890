"""From a word to its row: vocabularies, the word index, given word lists, subwords."""
