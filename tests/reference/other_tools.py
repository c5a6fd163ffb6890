"""Slow decoders of word2vec's and fastText's binary files, as their own programs read them."""

import re
import struct

import numpy as np

__all__ = ["decode_fasttext", "decode_word2vec"]


def decode_word2vec(data):
    """The words, as bytes, and the rows of a file; None if it ends too early."""
    head = re.match(rb"[ \t]*(\d+)[ \t]+(\d+)[ \t]*\r?\n", data)
    if head is None:
        return None
    n, dim, at = int(head[1]), int(head[2]), head.end()
    words, rows = [], []
    while len(words) < n:
        end = data.find(b" ", at)
        row = data[end + 1 : end + 1 + 4 * dim]
        if end < 0 or len(row) < 4 * dim:
            return None
        words.append(data[at:end].lstrip(b"\n"))  # the newline after the row before
        rows.append(np.frombuffer(row, "<f4"))
        at = end + 1 + 4 * dim
    return words, np.array(rows).reshape(n, dim)


def decode_fasttext(data):
    """The words, as bytes, and the rows of the input matrix; None if it ends too early."""
    try:
        return _decode_fasttext(data)
    except (struct.error, ValueError):
        return None


def _decode_fasttext(data):
    is_new = data[:4] == struct.pack("<i", 793712314)
    at = 8 if is_new else 0
    dim = struct.unpack_from("<i", data, at)[0]
    at += 12 * 4 + 8
    _, n_words, n_labels, _ = struct.unpack_from("<iiiq", data, at)
    at += 20
    if is_new:
        at += 8  # how many n-grams are pruned
    entries = []
    for _ in range(n_words + n_labels):
        end = data.index(b"\0", at)
        struct.unpack_from("<qb", data, end + 1)
        entries.append(data[at:end])
        at = end + 10
    at += is_new  # whether the matrix is quantized
    rows, columns = struct.unpack_from("<qq", data, at)
    matrix = data[at + 16 : at + 16 + 4 * rows * columns]
    if columns != dim or len(matrix) < 4 * rows * columns:
        return None
    return entries[:n_words], np.frombuffer(matrix, "<f4").reshape(rows, columns)
