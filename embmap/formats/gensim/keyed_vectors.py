"""Reading KeyedVectors (``.kv``) that gensim saved, without gensim and without running anything.

Such a file is a pickle, which may name any function to be called. No function is called here: the
pickle is read as records, and an array is a view of its bytes once its dtype, shape and size have
been checked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.formats.gensim import FORMAT
from embmap.formats.gensim.pickled import Made, Named, Stored, read_pickle
from embmap.io.mapping import ByteSource
from embmap.io.npy import map_npy
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import ArrayMatrix

__all__ = ["read_keyed_vectors"]

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
_FLOATS = re.compile("[<>=]?(f[248])")


def read_keyed_vectors(source: ByteSource) -> tuple[list[str], Matrix]:
    """Read words and vectors that gensim saved."""
    saved = read_pickle(source, FORMAT, lambda name: name in _ALLOWED or name.startswith(_OBJECTS))
    attributes, beside = _attributes(saved), str(source.path)
    if attributes is None:
        raise _error(source, "an object of gensim was expected")
    inner = _attributes(attributes.get("wv"))  # of a whole model
    if inner is not None:
        attributes, beside = inner, f"{beside}.wv"
    words = attributes.get("index_to_key", attributes.get("index2word"))
    if not isinstance(words, list):
        raise _error(source, "there are no words")
    strange = next((word for word in words if not isinstance(word, str)), None)
    if strange is not None:
        raise _error(source, f"a word is {type(strange).__name__}")
    vectors = _vectors(source, beside, attributes)
    if len(words) != len(vectors):
        raise _error(source, f"{len(words)} words for {len(vectors)} vectors")
    return words, vectors


def _error(source: ByteSource, message: str) -> FormatError:
    return FormatError(message, path=source.path, format=FORMAT)


def _attributes(saved: Any) -> dict[str, Any] | None:
    """Return the attributes of a gensim object; None for anything else."""
    if not isinstance(saved, Made) or not isinstance(saved.state, dict):
        return None
    kind = saved.by
    if kind.name == _RECONSTRUCTOR and saved.arguments and isinstance(saved.arguments[0], Named):
        kind = saved.arguments[0]
    return saved.state if kind.name.startswith(_OBJECTS[0]) else None


def _vectors(source: ByteSource, beside: str, attributes: dict[str, Any]) -> Matrix:
    apart = attributes.get("__numpys")
    for name in ("vectors", "syn0"):
        if isinstance(apart, list) and name in apart:
            return ArrayMatrix(map_npy(Path(f"{beside}.{name}.npy")))
        saved = attributes.get(name)
        if isinstance(saved, Made) and saved.by.name in (*_RECONSTRUCT, *_FROM_BUFFER):
            return ArrayMatrix(_array(source, saved))
    raise _error(source, "there are no vectors")


def _array(source: ByteSource, saved: Made) -> npt.NDArray[Any]:
    """Return a two-dimensional array, if its parts fit each other."""
    buffered = saved.by.name in _FROM_BUFFER
    parts = saved.arguments if buffered else saved.state
    if not isinstance(parts, tuple) or len(parts) != (4 if buffered else 5):
        raise _error(source, "the parts of an array are missing")
    if buffered:
        stored, kind, shape, order = parts
    else:
        _, shape, kind, by_columns, stored = parts
        order = "F" if by_columns is True or by_columns == 1 else "C"
    dtype = _dtype(source, kind)
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(type(n) is int for n in shape)):
        raise _error(source, "vectors must have two dimensions")
    rows, dim = shape
    array = _stored(source, stored, dtype)
    if rows < 0 or not 1 <= dim < 2**31 or rows * dim != array.size:
        raise _error(source, f"an array of shape ({rows}, {dim}) cannot have {array.size} numbers")
    # The bytes may start anywhere in a pickle, but matrices need aligned numbers.
    whole = array.reshape((rows, dim), order="F" if order == "F" else "C")
    return np.require(whole, requirements="A")


def _dtype(source: ByteSource, kind: Any) -> np.dtype[Any]:
    """Return a floating-point dtype; its state gives the byte order."""
    if isinstance(kind, Made) and kind.by.name == "numpy.dtype" and kind.arguments:
        name = kind.arguments[0]
        found = _FLOATS.fullmatch(name) if isinstance(name, str) else None
        state = kind.state if isinstance(kind.state, tuple) else ()
        order = state[1] if len(state) > 1 else "="
        if found and isinstance(order, str) and order in ("<", ">", "="):
            return np.dtype(name if order == "=" else order + found[1])
    raise _error(source, "the dtype of vectors must be float16, float32 or float64")


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
