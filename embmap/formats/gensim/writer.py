"""Writing KeyedVectors (``.kv``) that gensim loads: one pickle, with the arrays in it.

gensim keeps large arrays in files beside a pickle. Here they are in it, so that the file is
replaced as a whole. They start at multiples of 64 bytes, so that embmap reads them without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import islice
from typing import Any, BinaryIO, cast

from embmap.formats.composed import FastTextRows
from embmap.formats.format import FLOATS, Output, Writer
from embmap.io.atomic_write import replacing
from embmap.vectors.matrix import Matrix
from embmap.words.subwords import FastTextIndexer

__all__ = ["GensimWriter"]

_BATCH = 1000  # items that are added to a list or dict at once, as Python's pickler does
_ALIGNMENT = 64
_ARRAY = ("numpy.core.multiarray", "_reconstruct")  # by a name that every numpy has
_PLAIN = ("gensim.models.keyedvectors", "KeyedVectors")
_FASTTEXT = ("gensim.models.fasttext", "FastTextKeyedVectors")


class GensimWriter(Writer):
    """Writes KeyedVectors, or FastTextKeyedVectors for words with fastText's buckets."""

    dtypes = FLOATS
    subwords = frozenset({"fasttext"})

    def write(self, output: Output) -> None:
        rows, dim = output.vectors.shape
        attributes: dict[str, Any] = {
            "vector_size": dim,
            "index_to_key": (),
            "next_index": rows,
            "key_to_index": {},
            "norms": None,
            "expandos": {},
            "mapfile_path": None,
        }
        indexer, words = output.subwords, output.words
        if isinstance(indexer, FastTextIndexer) and words is not None:
            buckets = cast(Matrix, output.buckets)
            attributes |= {
                "min_n": indexer.min_n,
                "max_n": indexer.max_n,
                "bucket": indexer.n_buckets,
                "buckets_word": None,
                "compatible_hash": True,
                "vectors": None,  # gensim composes them
                "vectors_vocab": FastTextRows.of(words, output.vectors, buckets, indexer),
                "vectors_ngrams": buckets,
            }
        else:
            attributes["vectors"] = output.vectors
        with replacing(output.path) as out:
            pickle = _Pickle(out, output)
            pickle.begin(_PLAIN if indexer is None else _FASTTEXT)
            for name, value in attributes.items():
                pickle.add(name)
                if name == "index_to_key":
                    pickle.add_words(words.encoded() if words is not None else ())
                elif name == "key_to_index":
                    pickle.add_numbers(rows)
                else:
                    pickle.add(value)
            pickle.end()


class _Pickle:
    """A pickle of protocol 4 that is written from start to end: an object with its attributes."""

    def __init__(self, out: BinaryIO, output: Output) -> None:
        self._out = out
        self._output = output

    def begin(self, name: tuple[str, str]) -> None:
        """Write the head of an object of a class, of which :meth:`add` then adds the attributes."""
        self._out.write(b"\x80\x04")
        self._name(name)
        self._out.write(b")\x81}(")  # called without arguments; a dict of its attributes

    def end(self) -> None:
        self._out.write(b"ub.")

    def add(self, value: Any) -> None:
        """Write a name or a value."""
        if isinstance(value, Matrix):
            self._array(value)
        elif isinstance(value, str):
            self._out.write(_text(value.encode()))
        elif isinstance(value, dict):
            self._out.write(b"}")
        elif isinstance(value, bool | None):
            self._out.write({None: b"N", True: b"\x88", False: b"\x89"}[value])
        else:
            self._out.write(b"\x8a\x08" + struct.pack("<q", value))

    def add_words(self, words: Iterable[bytes]) -> None:
        """Write a list of words; the pickle numbers them."""
        self._out.write(b"]")
        left = iter(words)
        while batch := list(islice(left, _BATCH)):
            self._out.write(b"(" + b"".join(_text(word) + b"\x94" for word in batch) + b"e")

    def add_numbers(self, n: int) -> None:
        """Write a dict from the words of the list to their numbers."""
        self._out.write(b"}")
        for start in range(0, n, _BATCH):
            stop = min(start + _BATCH, n)
            pairs = (struct.pack("<cIci", b"j", i, b"J", i) for i in range(start, stop))
            self._out.write(b"(" + b"".join(pairs) + b"u")

    def _array(self, matrix: Matrix) -> None:
        dtype = matrix.dtype.newbyteorder("<")
        self._name(_ARRAY)
        self._name(("numpy", "ndarray"))
        self._out.write(b"K\0\x85C\1b\x87R")  # of shape (0,) and bytes, before it gets its state
        self._out.write(b"(K\1")
        for size in matrix.shape:
            self.add(size)
        self._out.write(b"\x86")
        self._name(("numpy", "dtype"))
        self._out.write(_text(dtype.str[1:].encode()) + b"\x89\x88\x87R")
        self._out.write(b"(K\3" + _text(b"<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89")
        # Bytes that are dropped at once move the numbers to a multiple of the alignment.
        padding = -(self._out.tell() + 12) % _ALIGNMENT
        self._out.write(b"C" + bytes([padding]) + bytes(padding) + b"0")
        self._out.write(b"\x8e" + struct.pack("<Q", matrix.nbytes))
        self._output.write_rows(self._out, matrix)
        self._out.write(b"tb")

    def _name(self, name: tuple[str, str]) -> None:
        self._out.write(b"".join(_text(part.encode()) for part in name) + b"\x93")


def _text(data: bytes) -> bytes:
    if len(data) < 256:
        return b"\x8c" + bytes([len(data)]) + data
    return b"X" + struct.pack("<I", len(data)) + data
