"""From a row to its numbers: matrices of every kind, blocks of rows, the quantizer."""
