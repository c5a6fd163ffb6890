"""Reading KeyedVectors (``.kv``) that gensim saved, without gensim and without running anything.

Such a file is a pickle, which may name any function to be called. No function is called here: the
pickle is read as records, and an array is a view of its bytes once its dtype, shape and size have
been checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, UnsupportedError
from embmap.formats.format import WORD_COUNTS
from embmap.formats.gensim import FORMAT, TRAINING_STATE, name_part
from embmap.formats.gensim.pickled import Made, Named, Stored, read_pickle
from embmap.io.mapping import ByteSource
from embmap.io.npy import map_npy
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import ArrayMatrix
from embmap.words.subwords import FastTextIndexer

__all__ = ["KeyedVectors", "read_keyed_vectors"]

_OBJECTS = ("gensim.", "numpy.random.")  # a whole model holds its random state as well
_RECONSTRUCTOR = "copyreg._reconstructor"
_ENCODE = "_codecs.encode"
_RECONSTRUCT, _FROM_BUFFER, _SCALAR = (
    tuple(f"numpy.{core}.{name}" for core in ("core", "_core"))
    for name in ("multiarray._reconstruct", "numeric._frombuffer", "multiarray.scalar")
)
_ALLOWED = {
    *_RECONSTRUCT,
    *_FROM_BUFFER,
    *_SCALAR,
    _RECONSTRUCTOR,
    _ENCODE,
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.float32",
    "numpy.float64",
    "collections.OrderedDict",
    "collections.defaultdict",
    "builtins.bytearray",
    "builtins.bytes",
    "builtins.frozenset",
    "builtins.hash",
    "builtins.int",
    "builtins.list",
    "builtins.long",
    "builtins.object",
    "builtins.set",
}
_INNER = ("wv", "kv")  # where a whole model keeps its words and vectors
_UNCOMPOSED = "vectors_vocab"  # rows of words without their n-grams
_NGRAMS = ("vectors_ngrams", "syn0_ngrams", "syn0_all")  # today and in older versions
# Attributes of a model that are not read, and their names in reports.
_PARTS = {
    "dv": "document vectors",
    "docvecs": "document vectors",
    "wv": TRAINING_STATE,  # around the vectors is a model
    "kv": TRAINING_STATE,
    "syn1": TRAINING_STATE,
    "syn1neg": TRAINING_STATE,
    "vocab": WORD_COUNTS,  # an object for each word, in older versions
}
_FLOATS = re.compile("[<>=]?(f[248])")
_NUMBERS = re.compile("[<>=|]?([iu][1248]|f[248])")


@dataclass(frozen=True, kw_only=True)
class KeyedVectors:
    """What gensim saved: words, a row for each, and in fastText models a row for each bucket.

    If `composes` is true, the rows of the words lack their n-grams. `attributes` are further
    numbers of the words, by name. `left_out` names these and what is not read.
    """

    words: list[str]
    rows: Matrix
    composes: bool = False
    indexer: FastTextIndexer | None = None
    buckets: Matrix | None = None
    attributes: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def read_keyed_vectors(source: ByteSource, open_npz: Callable[[Path], Matrix]) -> KeyedVectors:
    """Read words and vectors that gensim saved; `open_npz` opens a compressed array beside them."""
    saved = read_pickle(source, FORMAT, lambda name: name in _ALLOWED or name.startswith(_OBJECTS))
    attributes, beside = _attributes(saved), str(source.path)
    if attributes is None:
        raise _error(source, "an object of gensim was expected")
    parts = _name_parts(attributes)
    for name in _INNER:
        inner = _attributes(attributes.get(name))
        if inner is not None:
            attributes, beside = inner, f"{beside}.{name}"
            parts += _name_parts(attributes)
            break
    words = attributes.get("index_to_key", attributes.get("index2word"))
    if not isinstance(words, list):
        raise _error(source, f"{_kind(saved)} holds no words with vectors", UnsupportedError)
    strange = next((word for word in words if not isinstance(word, str)), None)
    if strange is not None:
        raise _error(source, f"a word is {type(strange).__name__}")
    arrays = _Arrays(source, beside, attributes, open_npz)
    rows = arrays.find("vectors", "syn0", _UNCOMPOSED)
    if rows is None:
        raise _error(source, "there are no vectors")
    kept, unread = _read_attributes(source, attributes.get("expandos"), len(words))
    parts += [*map(name_part, kept), *unread]
    left_out = tuple(dict.fromkeys(parts))
    found = KeyedVectors(words=words, rows=rows, attributes=kept, left_out=left_out)
    if len(words) != len(found.rows):
        raise _error(source, f"{len(words)} words for {len(found.rows)} vectors")
    if any(arrays.has(name) for name in _NGRAMS):
        found = _add_buckets(found, source, arrays, attributes)
    return found


def _name_parts(attributes: dict[str, Any]) -> list[str]:
    """Return the names in reports of the attributes of an object that are not read."""
    apart = attributes.get("__numpys")
    held = {name for name, value in attributes.items() if value is not None and value != {}}
    held.update(apart if isinstance(apart, list) else ())
    return [part for name, part in _PARTS.items() if name in held]


def _read_attributes(
    source: ByteSource, expandos: Any, n: int
) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Return the numbers that belong to each of `n` words, and names of the rest."""
    found, unread = dict[str, npt.NDArray[Any]](), list[str]()
    for name, saved in expandos.items() if isinstance(expandos, dict) else ():
        array = _column(source, saved, n)
        if array is not None:
            found[name] = array
        else:
            unread.append(name_part(name, is_read=False))
    return found, unread


def _add_buckets(
    found: KeyedVectors, source: ByteSource, arrays: _Arrays, attributes: dict[str, Any]
) -> KeyedVectors:
    """Add the buckets of a fastText model if they are fastText's own."""
    sizes = [attributes.get(name, 0) for name in ("min_n", "max_n", "bucket")]
    if not all(type(size) is int and -(2**31) <= size < 2**31 for size in sizes):
        raise _error(source, "min_n, max_n and bucket must be integers of 32 bits")
    min_n, max_n, n_buckets = max(sizes[0], 1), sizes[1], sizes[2]
    composes = not any(arrays.has(name) for name in ("vectors", "syn0"))
    buckets = arrays.find("vectors_ngrams")
    if buckets is not None and (n_buckets < 1 or max_n < min_n):  # trained without n-grams
        return found
    hashes = attributes.get("compatible_hash") is True
    if buckets is None or not hashes or len(buckets) != n_buckets:
        if composes:
            raise _error(
                source,
                "the n-grams have rows in an order that only gensim before 4.0 knows; load the "
                "model with gensim 3.8.3 and save its words with save_word2vec_format",
                UnsupportedError,
            )
        return replace(found, left_out=(*found.left_out, "subwords"))
    if buckets.shape[1] != found.rows.shape[1]:
        raise _error(
            source,
            f"rows of {buckets.shape[1]} numbers for n-grams, {found.rows.shape[1]} for words",
        )
    indexer = FastTextIndexer(min_n, max_n, n_buckets)
    return replace(found, composes=composes, indexer=indexer, buckets=buckets)


def _error(source: ByteSource, message: str, kind: type[FormatError] = FormatError) -> FormatError:
    return kind(message, path=source.path, format=FORMAT)


def _kind(saved: Made) -> str:
    """Return the full name of the class of an object."""
    kind = saved.by
    if kind.name == _RECONSTRUCTOR and saved.arguments and isinstance(saved.arguments[0], Named):
        kind = saved.arguments[0]
    return kind.name


def _attributes(saved: Any) -> dict[str, Any] | None:
    """Return the attributes of a gensim object; None for anything else."""
    if not isinstance(saved, Made) or not isinstance(saved.state, dict):
        return None
    return saved.state if _kind(saved).startswith(_OBJECTS[0]) else None


class _Arrays:
    """The arrays of an object: in the pickle, or in files beside it, compressed or not."""

    def __init__(
        self,
        source: ByteSource,
        beside: str,
        attributes: dict[str, Any],
        open_npz: Callable[[Path], Matrix],
    ) -> None:
        self._source, self._beside = source, beside
        self._attributes = attributes
        self._open_npz = open_npz
        apart = attributes.get("__numpys")
        self._apart = apart if isinstance(apart, list) else []

    def has(self, name: str) -> bool:
        """Return whether an attribute was saved."""
        return self._attributes.get(name) is not None or name in self._apart

    def find(self, *names: str) -> Matrix | None:
        """Return the first of some attributes that is an array."""
        for name in names:
            if name in self._apart:
                compressed = Path(f"{self._beside}.{name}.npz")
                if compressed.exists():
                    return self._open_npz(compressed)
                return ArrayMatrix(map_npy(Path(f"{self._beside}.{name}.npy")))
            saved = self._attributes.get(name)
            if isinstance(saved, Made) and saved.by.name in (*_RECONSTRUCT, *_FROM_BUFFER):
                return ArrayMatrix(_array(self._source, saved))
        return None


def _array(source: ByteSource, saved: Made) -> npt.NDArray[Any]:
    """Return a two-dimensional array, if its parts fit each other."""
    stored, kind, shape, order = _parts_of(source, saved)
    dtype = _dtype(kind, _FLOATS)
    if dtype is None:
        raise _error(source, "the dtype of vectors must be float16, float32 or float64")
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(n) is int for n in shape)):
        raise _error(source, "vectors must have two dimensions")
    rows, dim = shape
    array = _stored(source, stored, dtype)
    if rows < 0 or not 1 <= dim < 2**31 or rows * dim != array.size:
        raise _error(source, f"an array of shape ({rows}, {dim}) cannot have {array.size} numbers")
    # The bytes may start anywhere in a pickle, but matrices need aligned numbers.
    whole = array.reshape((rows, dim), order=order)
    return np.require(whole, requirements="A")


def _column(source: ByteSource, saved: Any, n: int) -> npt.NDArray[Any] | None:
    """Return an array of `n` numbers; None for anything else."""
    if not isinstance(saved, Made) or saved.by.name not in (*_RECONSTRUCT, *_FROM_BUFFER):
        return None
    stored, kind, shape, _ = _parts_of(source, saved)
    dtype = _dtype(kind, _NUMBERS)
    if dtype is None or not isinstance(shape, tuple) or shape != (n,):
        return None
    array = _stored(source, stored, dtype)
    if array.size != n:
        raise _error(source, f"an array of shape ({n},) cannot have {array.size} numbers")
    return array


def _parts_of(source: ByteSource, saved: Made) -> tuple[Any, Any, Any, Literal["C", "F"]]:
    """Return the bytes, the dtype, the shape and the order of an array."""
    buffered = saved.by.name in _FROM_BUFFER
    parts = saved.arguments if buffered else saved.state
    if not isinstance(parts, tuple) or len(parts) != (4 if buffered else 5):
        raise _error(source, "the parts of an array are missing")
    if buffered:
        stored, kind, shape, order = parts
        return stored, kind, shape, "F" if order == "F" else "C"
    _, shape, kind, by_columns, stored = parts
    return stored, kind, shape, "F" if by_columns is True or by_columns == 1 else "C"


def _dtype(kind: Any, names: re.Pattern[str]) -> np.dtype[Any] | None:
    """Return a dtype of which the name matches; its state gives the byte order."""
    if isinstance(kind, Made) and kind.by.name == "numpy.dtype" and kind.arguments:
        name = kind.arguments[0]
        found = names.fullmatch(name) if isinstance(name, str) else None
        state = kind.state if isinstance(kind.state, tuple) else ()
        order = state[1] if len(state) > 1 else "="
        if found and isinstance(order, str) and order in ("<", ">", "=", "|"):
            return np.dtype(name if order in "=|" else order + found[1])
    return None


def _stored(source: ByteSource, stored: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return bytes as numbers; old protocols, which have no bytes, store them as text."""
    if isinstance(stored, Made) and stored.by.name == _ENCODE and len(stored.arguments) == 2:
        stored = stored.arguments[0]
    elif isinstance(stored, Made) and stored.by.name == "builtins.bytes" and not stored.arguments:
        stored = ""
    if isinstance(stored, Stored) and stored.nbytes % dtype.itemsize == 0:
        return source.array(stored.offset, dtype, stored.nbytes // dtype.itemsize)
    if isinstance(stored, str):
        try:
            data = stored.encode("latin-1")
            return np.frombuffer(data, dtype)
        except ValueError:
            pass
    raise _error(source, f"the bytes of an array must be a whole number of {dtype}")
