"""gensim's saved KeyedVectors (``.kv``), read without gensim and without running what they hold.

Such a file is a pickle, which may name any function to be called. Here only what saved vectors need
is made: numpy arrays and plain containers; objects of gensim become empty shells with attributes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embmap.conversion.arrays import read_npy
from embmap.conversion.rows import ArrayMatrix
from embmap.errors import EmbmapError, FormatError, UnsupportedError
from embmap.matrix import Matrix

__all__ = ["looks_like_gensim", "read_keyed_vectors"]

_FORMAT = "gensim"
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("builtins", "hash"),
    ("builtins", "int"),
    ("builtins", "list"),
    ("builtins", "set"),
    ("_codecs", "encode"),
    ("copyreg", "_reconstructor"),
    ("builtins", "object"),
}
_NUMPY = (
    "numpy.core.multiarray",
    "numpy._core.multiarray",
    "numpy.core.numeric",
    "numpy._core.numeric",
)
_NUMPY_NAMES = ("_reconstruct", "scalar", "_frombuffer")


class _Shell:
    """Stands for an object of gensim's: what it was saved with, and nothing that it could do."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Unpickler(pickle.Unpickler):
    """Makes what saved vectors are made of, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        # A whole model holds its random numbers, too.
        if module.startswith(("gensim.", "numpy.random.")):
            return type(name, (_Shell,), {})
        if (module, name) in _ALLOWED or (module in _NUMPY and name in _NUMPY_NAMES):
            return super().find_class(module, name)
        raise UnsupportedError(
            f"the file wants {module}.{name}, which saved vectors have no need of"
        )


def looks_like_gensim(start: bytes) -> bool:
    """Whether a file that starts like this is an object that gensim saved.

    Parameters
    ----------
    start : bytes
        The first bytes of the file.

    Returns
    -------
    bool
        Never unpickles anything.
    """
    return start[:1] == b"\x80" and b"gensim" in start[:100]


def read_keyed_vectors(path: Path) -> tuple[list[str], Matrix]:
    """Read words and vectors that gensim saved.

    Parameters
    ----------
    path : pathlib.Path
        The file; large arrays stand in others beside it, which are mapped.

    Returns
    -------
    words : list of str
        The words.
    vectors : Matrix
        A row for each.

    Raises
    ------
    FormatError
        When it holds no such vectors.
    OSError
        When a file cannot be read.
    """
    where: dict[str, Any] = {"path": path, "format": _FORMAT}
    try:
        with path.open("rb") as handle:
            saved = _Unpickler(handle).load()
    except UnsupportedError as error:
        raise UnsupportedError(error.message, **where) from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise FormatError(f"not a file that gensim saved: {error}", **where) from None
    try:
        beside, attributes = _keyed_vectors(path, saved)
        words = list(_words(attributes))
        vectors = _vectors(beside, attributes)
    except (EmbmapError, OSError):
        raise
    except Exception as error:
        raise FormatError(f"gensim's vectors are damaged: {error}", **where) from None
    if len(words) != len(vectors):
        raise FormatError(f"{len(words)} words for {len(vectors)} vectors", **where)
    return words, vectors


def _keyed_vectors(path: Path, saved: Any) -> tuple[str, dict[str, Any]]:
    """Return the attributes of saved vectors, of a whole model too, and where arrays stand."""
    if not isinstance(saved, _Shell):
        raise TypeError("an object of gensim was expected")
    attributes = vars(saved)
    if isinstance(attributes.get("wv"), _Shell):
        return f"{path}.wv", vars(attributes["wv"])
    return str(path), attributes


def _words(attributes: dict[str, Any]) -> Iterator[str]:
    found = attributes.get("index_to_key", attributes.get("index2word"))
    if not isinstance(found, list):
        raise TypeError("there are no words")
    for word in found:
        if not isinstance(word, str):
            raise TypeError(f"a word is {type(word).__name__}")
        yield word


def _vectors(beside: str, attributes: dict[str, Any]) -> Matrix:
    for name in ("vectors", "syn0"):
        if name in attributes.get("__numpys", ()):
            return read_npy(Path(f"{beside}.{name}.npy"))
        array = attributes.get(name)
        if isinstance(array, np.ndarray) and array.ndim == 2 and array.dtype.kind == "f":
            return ArrayMatrix(array)
    raise TypeError("there are no vectors")
