"""The face that the files of all formats share.

:class:`EmbeddingFile` looks words up and hands out rows; a format gives it a vocabulary and a
matrix and may compose vectors for words it does not have. Nothing is read before it is asked for.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, NoReturn, Self, cast

import numpy as np
import numpy.typing as npt

from embmap.errors import ClosedError, FormatError, UnknownWordError
from embmap.io.mapping import ByteSource
from embmap.progress import Progress, named
from embmap.report import Report
from embmap.search.approximate import SUFFIX
from embmap.search.similarity import Metric, Similarity
from embmap.vectors.matrix import Matrix, fitting
from embmap.words.index_file import write_index
from embmap.words.index_source import IndexSource, default_index_path
from embmap.words.records import Records
from embmap.words.verification import verify_words
from embmap.words.vocabulary import Vocabulary
from embmap.words.word_index import WordIndex

__all__ = ["EmbeddingFile", "jsonable"]

Missing = Literal["raise", "zero", "nan"]


class EmbeddingFile(ABC):
    """An open embedding file: lazy views of its words and vectors.

    Look-ups by word take the words as they are stored; nothing is normalised on the way.

    Parameters
    ----------
    file : ByteSource
        The open file.
    layout : str
        Which dialect of the format it is.
    vocabulary : Vocabulary or None
        Its words.
    matrix : Matrix or None
        Its vectors.
    """

    format: ClassVar[str]
    _parts: ClassVar[tuple[str, ...]] = ()  # attributes of a format that close() lets go of

    def __init__(
        self,
        file: ByteSource,
        layout: str,
        vocabulary: Vocabulary | None,
        matrix: Matrix | None,
    ) -> None:
        self._file = file
        self._path = cast(Path, file.path)
        self._layout = layout
        self._vocabulary = vocabulary
        self._matrix = matrix
        self._words = _no_words(file, self.format) if vocabulary is None else vocabulary
        self._rows = _NoRows(self._no_vectors) if matrix is None else matrix.rows()
        self._reopen: Callable[[], EmbeddingFile] | None = None
        self._search: Similarity | None = None
        self.closed = False

    # What the file is

    @property
    def mapped_files(self) -> tuple[ByteSource, ...]:
        """The open files that are read: this one, and that of its words if they were given."""
        self._check_open()
        words = self._words.file
        return (self._file,) if words is self._file else (self._file, words)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def layout(self) -> str:
        """The dialect of the format."""
        return self._layout

    @property
    def vocab(self) -> Vocabulary | None:
        """The words in order; None in a file without any."""
        self._check_open()
        return self._vocabulary

    @property
    def vectors(self) -> Matrix | None:
        """The vectors; None in a file without any."""
        self._check_open()
        return self._matrix

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, dim) of the vectors, or (rows, T, dim); (0, 0) in a file without any."""
        return (0, 0) if self._matrix is None else self._matrix.shape

    @property
    def num_timesteps(self) -> int | None:
        """Number of time steps T; None in a file of another kind than DWE."""
        return None

    def at(self, t: int | None = None) -> EmbeddingFile:
        """Return the file at a time step, whose vectors have the shape (dim,).

        Parameters
        ----------
        t : int, optional
            The time step; negative ones count from the end. The last one by default.

        Returns
        -------
        EmbeddingFile
            This file where there are no time steps.

        Raises
        ------
        IndexError
            For a time step that does not exist.
        ValueError
            If `t` is given and the file has no time steps.
        """
        self._check_open()
        if t is not None:
            raise ValueError(f"t must be None, not {t}: {self.format} files have no time steps")
        return self

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.shape[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element of a vector."""
        return np.dtype(np.float32) if self._matrix is None else self._matrix.dtype

    @property
    def metadata(self) -> dict[str, Any]:
        """What the file says about itself; empty when it says nothing."""
        return {}

    def __repr__(self) -> str:
        """Name the file and its sizes; reads nothing."""
        if self.closed:
            return f"<{type(self).__name__} {str(self.path)!r}, closed>"
        words = "no words" if self._vocabulary is None else f"{len(self._vocabulary)} words"
        vectors = "no vectors"
        if self._matrix is not None:
            vectors = f"{' x '.join(map(str, self.shape))} {self.dtype}"
        name = type(self).__name__
        return f"<{name} {str(self.path)!r} ({self.layout}): {words}, {vectors}, not read>"

    def __len__(self) -> int:
        """Return the number of words, or of rows in a file without words."""
        self._check_open()
        return self.shape[0] if self._vocabulary is None else len(self._vocabulary)

    def __bool__(self) -> bool:
        """Return True, even for a file without words."""
        return True

    def __contains__(self, word: object) -> bool:
        """Whether a word is in the vocabulary; words composed from subwords are not."""
        return isinstance(word, str) and self._words.find_row(word) >= 0

    def __iter__(self) -> Iterator[str]:
        """Return the words in order."""
        self._check_open()
        if self._vocabulary is None:
            raise TypeError(f"{self.path} has no words; iterate over .vectors for its rows")
        return iter(self._vocabulary)

    # Looking up

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Return vectors, by word or by row.

        Parameters
        ----------
        key : str, sequence of str, int, slice, or array of int or bool
            A word, words, a row or rows.

        Returns
        -------
        numpy.ndarray
            Shape (dim,) for a word or a row, else (n, dim); read-only where it is a view.

        Raises
        ------
        UnknownWordError
            For a word that has no vector.
        IndexError
            For a row that does not exist.
        """
        if type(key) is str:
            row = self._words.find_row(key)
            if row >= 0:
                return self._rows[row]
            return self._unknown_word(key)
        return self._select(key)

    def _select(self, key: Any) -> npt.NDArray[Any]:
        """Answer everything but a plain word."""
        self._check_open()
        if isinstance(key, str):  # numpy.str_ and the like
            return self[str(key)]
        if hasattr(key, "__array__") and np.ndim(key):  # pandas has its own
            key = np.asarray(key)
            if key.dtype.kind in "UTO" and key.ndim == 1:
                return self.batch(key.tolist())
        elif isinstance(key, np.ndarray) and key.dtype.kind in "UTO":
            return self[key.item()]
        if key is None or isinstance(key, bytes | set | dict | frozenset):
            raise TypeError(f"look up a word, a row, or lists of them, not {type(key).__name__}")
        if isinstance(key, list | tuple) and any(isinstance(item, str) for item in key):
            return self.batch(key)
        if self._matrix is None:
            self._no_vectors()
        if isinstance(key, list) and not key:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return self._matrix[key]

    def _unknown_word(self, word: str) -> npt.NDArray[Any]:
        vectors, known = self._compose([word])
        if not known[0]:
            raise UnknownWordError(word, path=self.path, wordless=self._vocabulary is None)
        return cast("npt.NDArray[Any]", vectors[0])

    def _compose(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return vectors (n, dim) for words that are not in the vocabulary, and which have one.

        The rows of words that have none hold anything.
        """
        nothing = np.zeros((), np.result_type(self.dtype, np.float32))
        shape = (len(words), *self.shape[1:])
        return np.broadcast_to(nothing, shape), np.zeros(len(words), np.bool_)

    def get(self, word: str, default: Any = None) -> Any:
        """Return the vector of a word, or a default when it has none.

        Parameters
        ----------
        word : str
            The word.
        default : object, optional
            What to return for an unknown word.

        Returns
        -------
        numpy.ndarray or object
            Shape (dim,), or `default`.
        """
        if not isinstance(word, str):
            raise TypeError(f"a word is a str, not {type(word).__name__}")
        try:
            return self[word]
        except UnknownWordError:
            return default

    def find(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the rows of words.

        Parameters
        ----------
        words : iterable of str
            The words.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: rows, -1 for words that are not in the vocabulary.

        Raises
        ------
        FormatError
            When the vocabulary is damaged.
        """
        self._check_open()
        return self._words.find(words)

    def batch(
        self,
        words: Iterable[str],
        *,
        out: npt.NDArray[Any] | None = None,
        missing: Missing = "raise",
    ) -> npt.NDArray[Any]:
        """Return the vectors of many words.

        Parameters
        ----------
        words : iterable of str
            The words.
        out : numpy.ndarray, optional
            Where to put them: shape (n, dim) and this file's dtype.
        missing : {"raise", "zero", "nan"}
            What to do about words that have no vector.

        Returns
        -------
        numpy.ndarray
            Shape (n, dim): a new array, or `out`.

        Raises
        ------
        UnknownWordError
            For the first word without a vector, with ``missing="raise"``.
        ValueError
            When `out` does not fit, or integers are to be nan.
        """
        self._check_open()
        if missing not in ("raise", "zero", "nan"):
            raise ValueError(f"missing must be 'raise', 'zero' or 'nan', not {missing!r}")
        if isinstance(words, str):
            raise TypeError("batch takes a list of words; f[word] takes one")
        words = words if isinstance(words, Sequence) else list(words)
        rows = self._words.find(words)
        if self._matrix is None:
            self._no_vectors()
        absent = np.flatnonzero(rows < 0)
        if not absent.size:
            return self._matrix.take(rows, out)
        composed, known = self._compose([words[i] for i in absent.tolist()])
        if missing == "raise" and not known.all():
            unknown = absent[~known]
            first = words[int(unknown[0])]
            wordless = self._vocabulary is None
            raise UnknownWordError(first, path=self.path, n_unknown=unknown.size, wordless=wordless)
        dtype = self.dtype
        if known.any():  # composed vectors are fractions whatever the rows are
            dtype = np.result_type(self.dtype, composed.dtype)
        if missing == "nan" and dtype.kind != "f":
            raise ValueError(f"{dtype} has no nan; use missing='zero'")
        out = fitting(out, (len(words), *self.shape[1:]), dtype)
        present = np.flatnonzero(rows >= 0)
        out[present] = self._matrix.take(rows[present])
        out[absent[known]] = composed[known]
        out[absent[~known]] = 0 if missing == "zero" else np.nan
        return out

    # Searching

    def most_similar(
        self,
        query: Any,
        n: int = 10,
        metric: Metric = "cosine",
        *,
        exclude: Iterable[str | int] | None = None,
        approximate: bool = False,
    ) -> list[Any]:
        """Return the words whose vectors are nearest to that of a word, or to a vector.

        Every row is compared, in bounded memory; rows that belong to subwords are not.

        Parameters
        ----------
        query : str, array-like, or a list of either
            A word, also one composed from subwords; a vector of shape (dim,); or several: a list
            of words, or vectors of shape (m, dim), which costs less than asking one by one.
        n : int
            How many; all there are when there are fewer.
        metric : {"cosine", "dot", "euclidean"}
            What "near" means.
        exclude : iterable of str or int, optional
            Words and rows that are no answer; for a word by default the word itself.
        approximate : bool
            Look only at rows that the index of :meth:`build_ann` proposes. Their scores are exact.

        Returns
        -------
        list of Neighbor
            (row, word, score), by falling score, then rising row; a list of these lists for several
            queries. The score is the cosine (0 where a vector has no length), the dot product, or
            minus the distance. Rows with values that are not finite are never among them.

        Raises
        ------
        UnknownWordError
            For a word that has no vector.
        FormatError
            When a row cannot be decoded.
        StaleIndexError
            When there is no approximate index, or it belongs to other data.
        ValueError
            When a vector does not fit or is not finite, or `n` is negative.
        """
        file = self.at()
        return file._searched().most_similar(file, query, n, metric, exclude, approximate)

    def analogy(self, a: Any, b: Any, c: Any, n: int = 10) -> list[Any]:
        """Return the words that are to `c` as `b` is to `a`: those nearest to b - a + c.

        The three vectors are scaled to unit length first, and the three words are no answers.

        Parameters
        ----------
        a, b, c : str, or list of str
            Three words, or as many of each for several questions at once.
        n : int
            How many words; all there are when there are fewer.

        Returns
        -------
        list of Neighbor
            (row, word, cosine), as of :meth:`most_similar`; a list of these lists for several
            questions.

        Raises
        ------
        UnknownWordError
            For a word that has no vector.
        FormatError
            When a row cannot be decoded.
        ValueError
            When there are not as many of each, or `n` is negative.
        """
        file = self.at()
        return file._searched().analogy(file, a, b, c, n)

    def similarity(self, word1: str, word2: str) -> float:
        """Return the cosine of two words' vectors, at the last time step where there are any.

        Parameters
        ----------
        word1, word2 : str
            The words, also ones composed from subwords.

        Returns
        -------
        float
            Between -1 and 1; 0 where a vector has no length.

        Raises
        ------
        UnknownWordError
            For a word that has no vector.
        """
        file = self.at()
        return file._searched().similarity(file, word1, word2)

    def build_ann(
        self, path: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
    ) -> Path:
        """Write an index for approximate search beside the file and use it.

        Parameters
        ----------
        path : path-like, optional
            Where to write it; FILE.usearch by default, where ``most_similar`` looks for it. A time
            step t has FILE.t.usearch.
        progress : callable, optional
            Called as ``progress(what, done, total)``.

        Returns
        -------
        pathlib.Path
            The index file.

        Raises
        ------
        ImportError
            When usearch is not installed.
        ValueError
            When the file has no words, or `path` is the data file.
        OSError
            When the index cannot be written.
        """
        file = self.at()
        return file._searched().build_approximate(file, path, progress)

    def _beside(self, suffix: str) -> Path:
        """Return the path of an index over the vectors: FILE.usearch for FILE."""
        return self._path.with_name(self._path.name + suffix)

    def _searched(self) -> Similarity:
        self._check_open()
        if self._matrix is None:
            self._no_vectors()
        if self._search is None:
            self._search = Similarity(self._vocabulary, self._matrix, self._beside(SUFFIX))
        return self._search

    # The whole file

    def info(self) -> dict[str, Any]:
        """Return what is known about the file without reading its data.

        Returns
        -------
        dict
            JSON-able: path, format, layout, nbytes, shape, dtype, n_words, index,
            index_file, metadata.
        """
        self._check_open()
        words = self._vocabulary
        return {
            "path": str(self.path),
            "format": self.format,
            "layout": self.layout,
            "nbytes": self._file.nbytes,
            "backend": self._file.backend,
            "shape": list(self.shape),
            "dtype": None if self._matrix is None else str(self.dtype),
            "n_words": None if words is None else len(words),
            "index": None if words is None else words.index_state(),
            "index_file": None if words is None else words.source.existing_path(),
            "metadata": self._described_metadata(),
        }

    def _described_metadata(self) -> Any:
        try:
            return jsonable(self.metadata)
        except FormatError as error:  # the rest of the file can be told about all the same
            return {"error": str(error)}

    def verify(self, progress: Progress | None = None) -> Report:
        """Check everything that opening leaves unread.

        Parameters
        ----------
        progress : callable, optional
            Called as ``progress(what, done, total)``.

        Returns
        -------
        Report
            ``.ok`` and ``.problems``.
        """
        self._check_open()
        report = Report()
        if self._vocabulary is not None:
            report.attempt(verify_words, self._vocabulary, report, progress)
        # N-grams follow the words in the file, so damaged words hide them.
        for ngrams in (report.attempt(self._indexed_vocabularies) or [])[1:]:
            report.attempt(verify_words, ngrams, report, progress)
        required = self._words.source.required
        report.attempt(self.check_index, severity="error" if required else "warning")
        self._verify_data(report, progress)
        return report

    @abstractmethod
    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        """Check what a format has besides words."""

    def check_index(self) -> None:
        """Check the whole index file that is used, if one is, against its checksums and the words.

        Raises
        ------
        StaleIndexError
            When it does not hold.
        """
        self._check_open()
        if self._words.source.required:  # else the words would do without a table that is missing
            self._indexed_vocabularies()
        self._words.source.check_all()

    def _indexed_vocabularies(self) -> list[Vocabulary]:
        """Return what an index file covers, in the order of its tables."""
        return [] if self._vocabulary is None else [self._vocabulary]

    def build_index(
        self, path: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
    ) -> Path:
        """Write a word index beside the file and use it.

        Parameters
        ----------
        path : path-like, optional
            Where to write it; FILE.embx by default, where ``open`` looks for it.
        progress : callable, optional
            Called as ``progress(what, done, total)``.

        Returns
        -------
        pathlib.Path
            The index file.

        Raises
        ------
        FormatError
            When the vocabulary is damaged.
        ValueError
            When the file has no words, or `path` is the data file.
        OSError
            When the index cannot be written.
        """
        self._check_open()
        vocabularies = self._indexed_vocabularies()
        if not any(map(len, vocabularies)):
            raise ValueError(f"{self.path} has no words to index")
        file = vocabularies[0].file
        if file.path is None:
            raise ValueError("words given in memory have no file that an index could be about")
        target = default_index_path(file) if path is None else Path(os.fsdecode(path))
        target = cast(Path, target)
        for taken in (file.path, self.path):
            if target.exists() and target.samefile(taken):
                raise ValueError(f"{taken} holds the data; name another file for the index")
        tables = []

        def build() -> Iterator[WordIndex]:
            for words in vocabularies:
                step = None
                if progress is not None:
                    step = named(progress, f"hashing {words.records.noun}s")
                tables.append(words.build(step))
                yield tables[-1]

        written = write_index(target, file, build())
        for words, table in zip(vocabularies, tables, strict=True):
            words.adopt(table)
        return written

    def prefetch(self, rows: npt.ArrayLike | None = None) -> None:
        """Ask the operating system to read vectors ahead; a hint, which returns at once.

        Parameters
        ----------
        rows : array-like, optional
            Shape (n,), integers; every row by default.
        """
        self._check_open()
        if self._matrix is not None:
            self._matrix.prefetch(None if rows is None else self._matrix.row_numbers(rows))

    # Opening and closing

    def close(self) -> None:
        """Let go of the file. Arrays already handed out stay valid; further calls raise."""
        self.closed = True
        gone = _Closed(self._path)
        # Never None or empty: a thread in the middle of an answer would take it for what is there.
        for name in ("_file", "_words", "_vocabulary", "_matrix", "_rows", *self._parts):
            setattr(self, name, gone)
        self._search = None

    def __enter__(self) -> Self:
        """Return the file."""
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by path: the copy opens the file again and checks its size and time."""
        self._check_open()
        if self._reopen is None:
            raise TypeError(f"{self!r} was not opened by embmap.open and cannot be pickled")
        return _reopened, (self._reopen, self._file.nbytes, self._file.mtime_ns)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.path} is closed")

    def _no_vectors(self) -> NoReturn:
        raise FormatError("the file holds no vectors", path=self.path, format=self.format)


class _NoRows:
    """Stands where vectors would be in a file without any."""

    def __init__(self, refuse: Callable[[], NoReturn]) -> None:
        self._refuse = refuse

    def __getitem__(self, row: int) -> NoReturn:
        self._refuse()


class _Closed:
    """Stands where a file's parts were: any use raises ClosedError."""

    def __init__(self, path: Path | None) -> None:
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> NoReturn:
        self._raise()

    def __getitem__(self, item: object) -> NoReturn:
        self._raise()

    def __iter__(self) -> NoReturn:
        self._raise()

    def __len__(self) -> NoReturn:
        self._raise()

    def _raise(self) -> NoReturn:
        raise ClosedError(f"{self._path} is closed")


def _no_words(file: ByteSource, format: str) -> Vocabulary:
    return Vocabulary(file, Records(0, 0, 0, format), IndexSource(file, "memory"))


def jsonable(value: Any) -> Any:
    """Return a value that a file gives as JSON can hold it."""
    if isinstance(value, dict):
        return {jsonable(str(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, int | None) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value).encode(errors="replace").decode()


def _reopened(reopen: Callable[[], EmbeddingFile], nbytes: int, mtime_ns: int) -> EmbeddingFile:
    file = reopen()
    if (file._file.nbytes, file._file.mtime_ns) != (nbytes, mtime_ns):
        path = file.path
        file.close()
        raise FormatError("the file changed since it was pickled; pickle it again", path=path)
    return file
