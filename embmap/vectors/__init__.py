"""From a row to its numbers: every kind of matrix, blocks of rows, the quantizer."""
