"""Writing KeyedVectors (``.kv``) that gensim loads: one pickle, with the arrays in it.

gensim keeps large arrays in files beside a pickle. Here they are in it, so that the file is
replaced as a whole. They start at multiples of 64 bytes, so that embmap reads them without a copy.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from embmap.formats.composed import take_apart
from embmap.formats.exchange import Output
from embmap.formats.format import FLOATS, Writer
from embmap.formats.gensim import name_part
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

    def find_kept(self, output: Output) -> frozenset[str]:
        return self.holds.union(name_part(name) for name in _choose_attributes(output))

    def write(self, output: Output) -> None:
        rows, dim = output.vectors.shape
        attributes: dict[str, Any] = {
            "vector_size": dim,
            "index_to_key": (),
            "next_index": rows,
            "key_to_index": {},
            "norms": None,
            "expandos": _choose_attributes(output),
            "mapfile_path": None,
        }
        indexer, words = output.subwords, output.words
        if isinstance(indexer, FastTextIndexer):
            attributes |= {
                "min_n": indexer.min_n,
                "max_n": indexer.max_n,
                "bucket": indexer.n_buckets,
                "buckets_word": None,
                "compatible_hash": True,
                "vectors": None,  # gensim composes them
                "vectors_vocab": take_apart(output),
                "vectors_ngrams": cast(Matrix, output.buckets),
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


def _choose_attributes(output: Output) -> dict[str, npt.NDArray[Any]]:
    """Return the attributes of the words that are written, in files of gensim's own."""
    original = output.original
    if original is None:
        return {}
    attributes, rows = original.source.attributes, original.rows
    return {name: each if rows is None else each[rows] for name, each in attributes.items()}


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
            self._array(value.shape, value.dtype, lambda: self._output.write_rows(self._out, value))
        elif isinstance(value, np.ndarray):
            little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
            self._array(value.shape, value.dtype, lambda: self._out.write(little.data))
        elif isinstance(value, str):
            self._out.write(_text(value.encode("utf-8", "surrogatepass")))
        elif isinstance(value, dict):
            self._out.write(b"}(")
            for part in chain.from_iterable(value.items()):
                self.add(part)
            self._out.write(b"u")
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

    def _array(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], write: Callable[[], object]
    ) -> None:
        self._name(_ARRAY)
        self._name(("numpy", "ndarray"))
        self._out.write(b"K\0\x85C\1b\x87R")  # of shape (0,) and bytes, before it gets its state
        self._out.write(b"(K\1")
        for size in shape:
            self.add(size)
        self._out.write(b"\x85" if len(shape) == 1 else b"\x86")
        self._name(("numpy", "dtype"))
        self._out.write(_text(dtype.newbyteorder("<").str[1:].encode()) + b"\x89\x88\x87R")
        order = _text(b"|" if dtype.itemsize == 1 else b"<")
        self._out.write(b"(K\3" + order + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89")
        # Bytes that are dropped at once move the numbers to a multiple of the alignment.
        padding = -(self._out.tell() + 12) % _ALIGNMENT
        self._out.write(b"C" + bytes([padding]) + bytes(padding) + b"0")
        nbytes = math.prod(shape) * dtype.itemsize
        self._out.write(b"\x8e" + struct.pack("<Q", nbytes))
        write()
        self._out.write(b"tb")

    def _name(self, name: tuple[str, str]) -> None:
        self._out.write(b"".join(_text(part.encode()) for part in name) + b"\x93")


def _text(data: bytes) -> bytes:
    if len(data) < 256:
        return b"\x8c" + bytes([len(data)]) + data
    return b"X" + struct.pack("<I", len(data)) + data
