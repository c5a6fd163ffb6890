"""The vectors of a spaCy pipeline out of an embedding file, which stays where it is.

The registered function ``embmap.Vectors.v1`` opens a file, so that a pipeline keeps its vectors
through its configuration: ``nlp.to_disk`` writes the path of the file and ``spacy.load`` opens it
again. Worker processes map the same file. Needs the extra ``spacy``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.formats.finalfusion.file import FinalfusionFile
from embmap.opening import open
from embmap.vectors.segments import segment_sums

try:
    from spacy.attrs import IDS
    from spacy.util import registry
    from spacy.vectors import BaseVectors
    from thinc.api import NumpyOps, Ops
except ImportError as error:
    message = "vectors of a spaCy pipeline need spaCy: pip install 'embmap[spacy]'"
    raise ImportError(message) from error

__all__ = ["FileVectors", "create_vectors", "set_vectors"]

_NAME = "embmap.Vectors.v1"
_SAVED = "embmap.json"


class FileVectors(BaseVectors):  # type: ignore[misc]
    """The vectors of a file, for spaCy: by text or by its hash, as float32.

    A word without a vector has zeros. Words that the file composes from subwords have a vector.
    Files of floret give the vectors that spaCy's own floret vectors give.

    Parameters
    ----------
    file : EmbeddingFile
        The open file; of a DWE file the last time step is used.
    attr : str
        The attribute of a token that is looked up: "ORTH" (its text), "LOWER", "NORM" and others.

    Attributes
    ----------
    file : EmbeddingFile
        The open file.
    mode : str
        "floret", or "default" for files with words.

    Raises
    ------
    ValueError
        If the file has no words and is not of floret, or `attr` is not an attribute of a token.
    FormatError
        If the file has no vectors.
    """

    def __init__(self, file: EmbeddingFile, *, attr: str = "ORTH") -> None:
        self.file = file = file.at()
        self._matrix = file._stored_vectors()
        indexer = file.subwords if isinstance(file, FinalfusionFile) else None
        is_floret = indexer is not None and indexer.kind == "floret" and not len(file)
        if file.vocab is None and not is_floret:
            raise ValueError(f"{file.path} has no words; name them with vocab")
        if attr not in IDS:
            raise ValueError(f"attr must be an attribute of a token such as ORTH, not {attr!r}")
        self._indexer = indexer if is_floret else None
        self._attr = attr
        self.attr = IDS[attr]
        self.mode = "floret" if is_floret else "default"
        self.name = file.path.name
        self.strings: Any = ()
        # Unpickling a vocabulary gives vectors a new store of strings, and itself the old one.
        self._carried: tuple[Any, ...] = ()
        self.to_ops(NumpyOps())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by path, with the strings of the pipeline."""
        return _reopened, (self.file, self._attr, (self.strings, *self._carried))

    def to_ops(self, ops: Ops) -> None:
        """Return vectors as arrays of a device from now on; the file stays where it is.

        Parameters
        ----------
        ops : thinc.api.Ops
            The operations of the device.
        """
        self._ops: Any = ops
        self.data = ops.xp.empty((0, self.file.dim), "f")  # spaCy asks which kind of array it is

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, dim) of the vectors."""
        return self._matrix.shape

    @property
    def size(self) -> int:
        """How many numbers the vectors have."""
        return len(self) * self.vectors_length

    @property
    def vectors_length(self) -> int:
        """Length of a vector."""
        return self.file.dim

    @property
    def is_full(self) -> bool:
        """Always True: no vector can be added."""
        return True

    @property
    def n_keys(self) -> int:
        """Number of words; -1 for floret, which has a vector for every text."""
        return -1 if self._indexer is not None else len(self.file)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._matrix)

    def __contains__(self, key: str | int) -> bool:
        """Whether a text, or the text of a hash, has a vector."""
        if self._indexer is not None:
            return True
        try:
            return self.file.get(self._text(key)) is not None
        except KeyError:
            return False

    def __getitem__(self, key: str | int) -> Any:
        """Return the vector of a text or of its hash: shape (dim,), float32."""
        if self._indexer is not None:
            return self.get_batch([key])[0]
        return self._ops.asarray(self.file[self._text(key)], dtype="f")

    def get_batch(self, keys: Iterable[str | int]) -> Any:
        """Return the vectors of texts or of their hashes.

        Parameters
        ----------
        keys : iterable of str or int
            The texts, or their hashes as in ``doc.to_array("ORTH")``.

        Returns
        -------
        numpy.ndarray
            Shape (n, dim), float32; an array of the device if the pipeline runs on one.
        """
        listed: list[str | int] = keys.tolist() if hasattr(keys, "tolist") else list(keys)
        numbers: dict[str | int, int] = {}
        places = [numbers.setdefault(key, len(numbers)) for key in listed]
        words = list(map(self._text, numbers))
        if self._indexer is not None:
            found = self._average(words)
        else:
            found = self.file.batch(words, missing="zero")
        return self._ops.asarray(found[places].astype(np.float32, copy=False))

    def _text(self, key: str | int) -> str:
        if isinstance(key, str):
            return key
        for strings in self._carried:
            if key in strings:
                return str(strings[key])
        return str(self.strings[key])

    def _average(self, words: list[str]) -> npt.NDArray[Any]:
        """Return the means of the rows of words and of their n-grams, zeros for empty text."""
        rows, counts = self._indexer.buckets(words)  # type: ignore[union-attr]
        sums = segment_sums(self._matrix, rows, counts)
        sums /= np.maximum(counts, 1)[:, np.newaxis]
        sums[[not word for word in words]] = 0
        return sums

    def __eq__(self, other: object) -> bool:
        """Whether other vectors come from the same file."""
        if not isinstance(other, FileVectors):
            return False
        return (self.file.path, self._attr) == (other.file.path, other._attr)

    def __hash__(self) -> int:
        """Return the hash of the path."""
        return hash(self.file.path)

    def add(self, *_: Any, **__: Any) -> int:
        """Raise TypeError: the vectors of a file stay as they are."""
        raise TypeError(f"no vector can be added to {self.file.path}; it stays as it is")

    def to_bytes(self, **_: Any) -> bytes:
        """Return what spaCy compares the vectors of pipelines by.

        Returns
        -------
        bytes
            The path and the shape, as JSON.
        """
        return json.dumps([str(self.file.path), *self.shape]).encode()

    def to_disk(self, path: str | Path, **_: Any) -> None:
        """Note the length of a vector; the configuration of the pipeline names the file.

        Parameters
        ----------
        path : path-like
            The folder of the vocabulary.
        """
        (Path(path) / _SAVED).write_text(json.dumps({"dim": self.vectors_length}), "utf-8")

    def from_disk(self, path: str | Path, **_: Any) -> FileVectors:
        """Check that the file has vectors of the length with which the pipeline was saved.

        Parameters
        ----------
        path : path-like
            The folder of the vocabulary.

        Returns
        -------
        FileVectors
            These vectors.

        Raises
        ------
        ValueError
            If the vectors have another length.
        """
        saved = Path(path) / _SAVED
        dim = json.loads(saved.read_text("utf-8"))["dim"] if saved.exists() else self.file.dim
        if dim != self.file.dim:
            raise ValueError(
                f"{self.file.path} has vectors of {self.file.dim} numbers; the pipeline was saved "
                f"with vectors of {dim}"
            )
        return self


def _reopened(file: EmbeddingFile, attr: str, strings: tuple[Any, ...]) -> FileVectors:
    vectors = FileVectors(file, attr=attr)
    vectors._carried = strings
    return vectors


@registry.vectors(_NAME)  # type: ignore[untyped-decorator,unused-ignore]
def create_vectors(
    path: str, vocab: str | None = None, backend: str = "mmap", attr: str = "ORTH"
) -> Callable[[Any], FileVectors]:
    """Return a function that makes the vectors of a pipeline, for its configuration.

    It is registered as ``embmap.Vectors.v1``.

    Parameters
    ----------
    path : str
        The embedding file.
    vocab : str, optional
        Words for a file that contains no words, as for :func:`embmap.open`.
    backend : {"mmap", "read"}
        Whether the file is mapped or read.
    attr : str
        The attribute of a token that is looked up: "ORTH" (its text), "LOWER", "NORM" and others.

    Returns
    -------
    callable
        Called with the vocabulary of a pipeline, it returns a :class:`FileVectors`.
    """

    def make(pipeline: Any) -> FileVectors:
        file = open(path, vocab=vocab, backend=backend)  # type: ignore[arg-type]
        vectors = FileVectors(file, attr=attr)
        vectors.strings = pipeline.strings
        if vectors.mode == "default":
            # Workers that are forked share the index that is made here.
            vectors.file.find(["", " "])
        return vectors

    return make


def set_vectors(nlp: Any, path: str, **options: Any) -> None:
    """Give a pipeline the vectors of a file, also in its configuration.

    Parameters
    ----------
    nlp : spacy.Language
        The pipeline. Components that were trained with other vectors need those.
    path : str
        The embedding file; its absolute path is noted.
    **options : object
        Further arguments of :func:`create_vectors`.

    Raises
    ------
    EmbmapError
        If the file is damaged.
    ValueError
        If the file has no words.
    OSError
        If the file cannot be opened.
    """
    path = str(Path(path).absolute())
    nlp.vocab.vectors = create_vectors(path, **options)(nlp.vocab)
    nlp.config["nlp"]["vectors"] = {"@vectors": _NAME, "path": path, **options}
