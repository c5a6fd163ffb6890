"""A local file of any format: its words and vectors, read when they are asked for.

:class:`EmbeddingFile` adds to the common face what files have: paths, indexes, verification,
closing and pickling. A format gives it a vocabulary and a matrix, and may compose vectors for words
that are not in the vocabulary.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, cast

import numpy as np
import numpy.typing as npt

from embmap.absent import Closed, NoRows, no_words
from embmap.embeddings import Embeddings, Key, Missing
from embmap.errors import ClosedError, FormatError, UnknownWordError
from embmap.exchange import Exchangeable
from embmap.forking import process_lock
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.search.queries import Neighbor, Options, Queries, UnknownSectionError
from embmap.vectors.matrix import Matrix, check_out
from embmap.words.time_labels import TimeStep
from embmap.words.vocabulary import Vocabulary

if TYPE_CHECKING:
    from embmap.report import Report
    from embmap.search.approximate import ApproximateSource
    from embmap.search.similarity import Similarity

__all__ = ["EmbeddingFile"]

_creating = process_lock()


class EmbeddingFile(Exchangeable, Embeddings):
    """An open embedding file: lazy views of its words and vectors.

    Parameters
    ----------
    file : ByteSource
        The open file.
    dialect : str
        The dialect of the format.
    vocabulary : Vocabulary or None
        The words.
    matrix : Matrix or None
        The vectors.
    """

    format: ClassVar[str]
    _parts: ClassVar[tuple[str, ...]] = ()  # attributes of a format that close() also replaces

    def __init__(
        self,
        file: ByteSource,
        dialect: str,
        vocabulary: Vocabulary | None,
        matrix: Matrix | None,
    ) -> None:
        self._file = file
        self._path = cast(Path, file.path)
        self._dialect = dialect
        self._vocabulary = vocabulary
        self._matrix = matrix
        self._words = no_words(file, self.format) if vocabulary is None else vocabulary
        self._rows = NoRows(self._stored_vectors) if matrix is None else matrix.rows()
        self._search: Similarity | None = None
        self.closed = False

    # What the file is

    @property
    def mapped_files(self) -> tuple[ByteSource, ...]:
        """The open files: this one and, if the words were given separately, their file."""
        self._check_open()
        words = self._words.file
        return (self._file,) if words is self._file else (self._file, words)

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._path

    @property
    def layout(self) -> str:
        """The dialect of the format."""
        return self._dialect

    @property
    def vocab(self) -> Vocabulary | None:
        """The words in order; None in a file without words."""
        self._check_open()
        return self._vocabulary

    @property
    def vectors(self) -> Matrix | None:
        """The vectors by row; None in a file without vectors."""
        self._check_open()
        return self._matrix

    @property
    def shape(self) -> tuple[int, ...]:  # noqa: D102  documented in Embeddings, as others below
        return (0, 0) if self._matrix is None else self._matrix.shape

    @property
    def dtype(self) -> np.dtype[Any]:  # noqa: D102
        return np.dtype(np.float32) if self._matrix is None else self._matrix.dtype

    def at(self, t: TimeStep | None = None) -> EmbeddingFile:  # noqa: D102
        self._check_open()
        return cast(EmbeddingFile, super().at(t))

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata in the file; empty in a file without metadata."""
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

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._words.finder.find_row(word) >= 0

    def __iter__(self) -> Iterator[str]:
        """Return the words in order."""
        self._check_open()
        if self._vocabulary is None:
            raise TypeError(f"{self.path} has no words; iterate over .vectors for its rows")
        return iter(self._vocabulary)

    # Looking up

    def __getitem__(self, key: Key) -> npt.NDArray[Any]:
        # The hot path: a known word costs a type check, a look-up and a subscript.
        if type(key) is str:
            finder = self._words.finder
            row = (finder.find_in_index or finder.find_row)(key)
            return self._rows[row] if row >= 0 else self._compose_one(key)
        return super().__getitem__(key)

    def _compose_one(self, word: str) -> npt.NDArray[Any]:
        vectors, known = self._compose([word])
        if not known[0]:
            self._refuse(word)
        return cast("npt.NDArray[Any]", vectors[0])

    def _compose(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return vectors (n, dim) for words outside the vocabulary, and which words have one.

        The rows of the other words are undefined.
        """
        nothing = np.zeros((), np.result_type(self.dtype, np.float32))
        shape = (len(words), *self.shape[1:])
        return np.broadcast_to(nothing, shape), np.zeros(len(words), np.bool_)

    def _find_rows(self, words: Sequence[str]) -> npt.NDArray[np.int64]:
        return self._words.find(words)

    def _take_words(
        self, words: Sequence[str], out: npt.NDArray[Any] | None, missing: Missing
    ) -> npt.NDArray[Any]:
        rows = self._words.find(words)
        matrix = self._stored_vectors()
        absent = np.flatnonzero(rows < 0)
        if not absent.size:
            return matrix.take(rows, out)
        composed, known = self._compose([words[i] for i in absent.tolist()])
        # Composed vectors are fractions, whatever type the rows have.
        dtype = np.result_type(self.dtype, composed.dtype) if known.any() else self.dtype
        unknown = absent[~known]
        filling = self._filling(words, unknown, missing, dtype)
        if out is None and not unknown.size and absent.size == rows.size:
            return composed
        out = check_out(out, (len(words), *self.shape[1:]), dtype)
        out[rows >= 0] = matrix.take(rows[rows >= 0])
        out[absent] = composed
        out[unknown] = filling
        return out

    def _stored_vectors(self) -> Matrix:
        self._check_open()
        if self._matrix is None:
            raise FormatError("the file holds no vectors", path=self.path, format=self.format)
        return self._matrix

    def _refuse(self, word: str, n_unknown: int = 1) -> NoReturn:
        wordless = self._vocabulary is None
        raise UnknownWordError(word, path=self.path, n_unknown=n_unknown, wordless=wordless)

    # Searching

    def _nearest(self, queries: Queries, options: Options) -> list[list[Neighbor]]:
        if isinstance(options.among, dict):
            rows = np.unique(self._find_sections(options.among))
            if not rows.size:
                message = f"among must not be empty: no section matches {options.among}"
                raise UnknownSectionError(message)
            from dataclasses import replace

            options = replace(options, among=rows)
        return self._searched().nearest(self, queries, options)

    def _rank(self, word: str, other: str) -> int:
        return self._searched().rank(self, word, other)

    def _find_sections(self, match: dict[str, Any]) -> npt.NDArray[np.int64]:
        """Return the rows of the sections whose metadata match; only CVC files have sections."""
        raise UnknownSectionError(
            f"among must be words, rows or a mask: {self.format} files have no sections {match}"
        )

    def build_ann(
        self, path: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
    ) -> Path:
        """Write an index for approximate search beside the file and use it.

        The index is mapped if the file is. With ``backend="read"`` it is read into memory, about as
        many bytes as the vectors have in half precision and 150 for each row.

        Parameters
        ----------
        path : path-like, optional
            The index file; by default FILE.usearch, where ``most_similar`` looks for it, or
            FILE.t.usearch for time step t of a DWE file.
        progress : callable, optional
            Called as ``progress(what, done, total)``.

        Returns
        -------
        pathlib.Path
            The index file.

        Raises
        ------
        ImportError
            If usearch is not installed.
        ValueError
            If the file has no words, or if `path` is the data file.
        OSError
            If the index cannot be written.
        """
        file = self.at()
        return file._searched().build_ann(file, path, progress)

    def build_sketch(
        self, path: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
    ) -> Path:
        """Write a sketch of the vectors beside the file, for quicker exact searches, and use it.

        A sketch takes a byte for each number and about 12 for each row. Searches read it in place
        of the vectors and give the same answers. They use it if numba is installed.

        Parameters
        ----------
        path : path-like, optional
            The sketch; by default FILE.sketch, where searches look for it, or FILE.t.sketch for
            time step t of a DWE file.
        progress : callable, optional
            Called as ``progress(what, done, total)``.

        Returns
        -------
        pathlib.Path
            The sketch.

        Raises
        ------
        ValueError
            If the file has no words, if its vectors are quantized, or if `path` is the data file.
        OSError
            If the sketch cannot be written.
        """
        file = self.at()
        return file._searched().build_sketch(file, path, progress)

    def _beside(self, suffix: str) -> Path:
        """Return the path of an index over the vectors: FILE.usearch for FILE."""
        return self._path.with_name(self._path.name + suffix)

    def _searched(self) -> Similarity:
        from embmap.search.similarity import Similarity

        matrix = self._stored_vectors()
        found = self._search
        if found is None:
            with _creating:  # all threads use the same, which keeps its indexes
                found = self._search
                if found is None:
                    found = Similarity(self._vocabulary, matrix, self._file, self._beside)
                    self._search = found
        return found

    @property
    def approximate(self) -> ApproximateSource:
        """Where searches with ``approximate=True`` find their index; a server gives its own."""
        return self._searched().approximate

    # The whole file

    def info(self) -> dict[str, Any]:
        """Return the facts about the file that are known without reading its data.

        Returns
        -------
        dict
            Fit for JSON: path, format, layout, nbytes, backend, shape, dtype, n_words, index,
            index_file, metadata, and chunks: a dict for each part of the file, with its name,
            offset and nbytes. Formats add further keys.
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
            "index": None if words is None else words.finder.state,
            "index_file": None if words is None else words.finder.source.existing_path(),
            "metadata": self._described_metadata(),
            "chunks": [],
        }

    def _described_metadata(self) -> Any:
        from embmap.io.parsing import jsonable

        try:
            return jsonable(self.metadata)
        except FormatError as error:  # the other facts are still known
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
        from embmap.report import Report
        from embmap.words.verification import verify_words

        self._check_open()
        report = Report()
        if self._vocabulary is not None:
            report.attempt(verify_words, self._vocabulary, report, progress)
        # N-grams follow the words in the file, so damaged words hide them.
        for ngrams in (report.attempt(self._indexed_vocabularies) or [])[1:]:
            report.attempt(verify_words, ngrams, report, progress)
        required = self._words.finder.source.required
        report.attempt(self.check_index, severity="error" if required else "warning")
        if self._matrix is not None and self._matrix.ndim == 2:
            report.attempt(self._searched().check_sketch, severity="warning")
        self._verify_data(report, progress)
        return report

    @abstractmethod
    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        """Check everything in the file but its words."""

    def check_index(self) -> None:
        """Check the whole index file, if one is in use, against its checksums and the words.

        Raises
        ------
        StaleIndexError
            If the index does not match.
        """
        self._check_open()
        # A table that is missing counts only if the index is required: words are found without it.
        if self._words.finder.source.required:
            self._indexed_vocabularies()
        self._words.finder.source.check_all()

    def _indexed_vocabularies(self) -> list[Vocabulary]:
        """Return the vocabularies that an index file covers, in the order of its tables."""
        return [] if self._vocabulary is None else [self._vocabulary]

    def build_index(
        self, path: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
    ) -> Path:
        """Write a word index beside the file and use it.

        Parameters
        ----------
        path : path-like, optional
            The index file; by default FILE.embx, where ``open`` looks for it.
        progress : callable, optional
            Called as ``progress(what, done, total)``.

        Returns
        -------
        pathlib.Path
            The index file.

        Raises
        ------
        FormatError
            If the vocabulary is damaged.
        ValueError
            If the file has no words, or if `path` is the data file.
        OSError
            If the index cannot be written.
        """
        from embmap.indexing import build_word_index

        self._check_open()
        return build_word_index(self._indexed_vocabularies(), self.path, path, progress)

    def prefetch(self, rows: npt.ArrayLike | None = None) -> None:
        """Ask the operating system to read vectors ahead, as batches do; waits for none of them.

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
        """Close the file. Later calls raise ClosedError; arrays already returned stay valid."""
        self.closed = True
        gone = Closed(self._path)
        # None would mean "no words" or "no vectors" to a thread in the middle of an answer.
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

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.path} is closed")
