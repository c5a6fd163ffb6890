"""An open finalfusion file: its offsets as views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError, UnknownWordError
from embmap.formats.finalfusion.chunks import FORMAT, Chunk
from embmap.formats.finalfusion.layout import parse
from embmap.formats.finalfusion.storage_chunk import Dense, Norms, Product
from embmap.formats.finalfusion.vocabulary_chunk import VocabularyLayout, ngram_records
from embmap.io.mapping import ByteSource
from embmap.io.parsing import LONGEST_TOML, parse_toml
from embmap.progress import Progress
from embmap.report import Report
from embmap.vectors.dense import dense_matrix
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix
from embmap.vectors.segments import normalize, segment_sums
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice
from embmap.words.subwords import (
    BucketIndexer,
    ExplicitIndexer,
    FastTextIndexer,
    FloretIndexer,
    SubwordIndexer,
)
from embmap.words.vocabulary import Vocabulary

__all__ = ["FinalfusionFile"]


class FinalfusionFile(EmbeddingFile):
    """A finalfusion file: words and vectors, subwords, norms, metadata.

    Rows are handed out as they are stored. A word that is not in the vocabulary gets the sum of
    the rows of its subwords, scaled to unit length, where the file has subwords.

    Parameters
    ----------
    file : ByteSource
        The open file.
    dialect : str, optional
        Read it as "reference", "v0", "draft" or "bare".
    index : str or path-like
        Where an index over its words comes from; see :func:`embmap.open`.
    vocab : path-like or sequence of str, optional
        Words for a file that holds only a matrix.

    Raises
    ------
    FormatError
        When it is no finalfusion file.
    StaleIndexError
        When an index is required and does not match.
    ValueError
        When `vocab` is given for a file that has words, or does not fit.
    """

    format: ClassVar[str] = FORMAT
    _parts = ("_norms", "_subwords")

    def __init__(
        self,
        file: ByteSource,
        dialect: str | None = None,
        index: IndexChoice = "auto",
        vocab: Words | None = None,
    ) -> None:
        layout = self._offsets = parse(file, dialect)
        self._subwords: SubwordIndexer | None = None
        matrix = None if layout.storage is None else _matrix(file, layout.storage)
        records = None if layout.vocabulary is None else layout.vocabulary.words
        n_rows = 0 if matrix is None else len(matrix)
        words = words_of(file, records, vocab, n_rows, FORMAT, index)
        super().__init__(file, layout.dialect, words, matrix)
        norms = layout.norms
        self._norms: Matrix | None = None
        if norms is not None:
            self._norms = dense_matrix(file, norms.offset, (norms.n, 1), norms.dtype)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """What the file holds, in order: id, name, offset and nbytes of each chunk."""
        return self._offsets.chunks

    @property
    def norms(self) -> npt.NDArray[Any] | None:
        """The lengths the words' rows had before they were scaled: shape (n_words,), float32.

        None in a file without norms.
        """
        self._check_open()
        return None if self._norms is None else self._norms[:, 0]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as TOML values; empty when there are none.

        Raises
        ------
        FormatError
            When they are not TOML, are longer than 1 MiB, are nested deeper than 32 levels, have
            more than 65536 keys and values, an integer of more than 64 bits, or a number that is
            not finite. ``metadata_toml`` has them as they are, unless they are too long.
        """
        text = self.metadata_toml or ""
        try:
            return parse_toml(text)
        except ValueError as error:
            raise self._metadata_error(f"not TOML: {error}") from None

    @property
    def metadata_toml(self) -> str | None:
        """The metadata as they stand in the file; None when there are none.

        Raises
        ------
        FormatError
            When they are not UTF-8, or longer than 1 MiB.
        """
        self._check_open()
        chunk = self._offsets.metadata
        if chunk is None:
            return None
        if chunk.nbytes > LONGEST_TOML:
            raise self._metadata_error(
                f"metadata have {chunk.nbytes} bytes, more than {LONGEST_TOML}"
            )
        self._file.check_whole()
        data = self._file.read(chunk.data_offset, chunk.nbytes)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._metadata_error(f"not UTF-8: {error.reason}", error.start) from None

    def _metadata_error(self, message: str, start: int = 0) -> FormatError:
        """Return an error about the metadata, from a byte of theirs on."""
        offset = cast(Chunk, self._offsets.metadata).data_offset + start
        return FormatError(message, path=self.path, format=FORMAT, offset=offset, field="metadata")

    @property
    def subwords(self) -> SubwordIndexer | None:
        """The indexer that gives n-grams their rows; None in a file without subwords.

        Raises
        ------
        FormatError
            When the stored n-grams of an explicit vocabulary are damaged.
        """
        self._check_open()
        layout = self._offsets.vocabulary
        if self._subwords is None and layout is not None and layout.kind != "simple":
            self._subwords = self._indexer(layout)
        return self._subwords

    def _indexer(self, layout: VocabularyLayout) -> SubwordIndexer:
        lengths = layout.min_n, layout.max_n
        if layout.kind == "bucket":
            return BucketIndexer(*lengths, layout.exponent)
        if layout.kind == "fasttext":
            return FastTextIndexer(*lengths, layout.n_buckets)
        if layout.kind == "floret":
            return FloretIndexer(
                *lengths, layout.n_buckets, layout.n_hashes, layout.seed, layout.bow, layout.eow
            )
        ngrams = self._ngrams(layout)
        n_rows = len(ngrams) if layout.n_buckets < 0 else layout.n_buckets
        return ExplicitIndexer(*lengths, ngrams, n_rows)

    def _ngrams(self, layout: VocabularyLayout) -> Vocabulary:
        """Return the stored n-grams; where they start is known once the words have been walked."""
        chunk = next(
            chunk for chunk in self.chunks if chunk.offset < layout.words.offset <= chunk.end
        )
        end = layout.words.offset + int(self._words.starts[-1])
        records = ngram_records(layout, end, chunk.end)
        return Vocabulary(self._file, records, self._words.finder.source, number=1)

    def _indexed_vocabularies(self) -> list[Vocabulary]:
        vocabularies = super()._indexed_vocabularies()
        # Of an explicit vocabulary; those given from elsewhere come without n-grams.
        if isinstance(self.subwords, ExplicitIndexer):
            vocabularies.append(self.subwords.vocabulary)
        return vocabularies

    def subword_rows(self, word: str) -> npt.NDArray[np.int64]:
        """Return the rows of a word's n-grams, whether it is in the vocabulary or not.

        Parameters
        ----------
        word : str
            The word.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: for each start from the longest to the shortest; empty in a file
            without subwords.

        Raises
        ------
        FormatError
            When stored n-grams are damaged.
        """
        if self.subwords is None:
            return np.empty(0, np.int64)
        return self._subword_rows([word])[0]

    def _subword_rows(
        self, words: Sequence[str]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        rows, counts = cast(SubwordIndexer, self._subwords).buckets(words)
        # The layout has made sure that there is a row for every bucket.
        return rows + self._words.records.n, counts

    def _sums(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the sums of the words' subword rows, and which words have any."""
        if self._subwords is None and self.subwords is None:
            return super()._compose(words)
        matrix = self._stored_vectors()
        rows, counts = self._subword_rows(words)
        return segment_sums(matrix, rows, counts), counts > 0

    def _compose(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        vectors, known = self._sums(words)
        if known.any():
            normalize(vectors)
        return vectors, known

    def _row_of(self, word: str) -> int:
        self._check_open()
        if not isinstance(word, str):
            raise TypeError(f"a word is a str, not {type(word).__name__}")
        return self._words.finder.find_row(word)

    def embedding_with_norm(self, word: str) -> tuple[npt.NDArray[Any], float]:
        """Return the vector of a word and its norm.

        Parameters
        ----------
        word : str
            The word.

        Returns
        -------
        vector : numpy.ndarray
            Shape (dim,): the stored row, or the composed vector scaled to unit length.
        norm : float
            The stored norm, 1.0 where the file has none; for a composed vector its length before
            it was scaled.

        Raises
        ------
        UnknownWordError
            When the word has no vector.
        """
        row = self._row_of(word)
        if row >= 0:
            return self._rows[row], 1.0 if self._norms is None else float(self._norms.row(row)[0])
        sums, known = self._sums([word])
        if not known[0]:
            raise UnknownWordError(word, path=self.path)
        norm = float(normalize(sums)[0])
        return sums[0], norm

    def unnormalized(self, word: str) -> npt.NDArray[Any]:
        """Return the vector of a word before it was scaled to unit length.

        Parameters
        ----------
        word : str
            The word.

        Returns
        -------
        numpy.ndarray
            Shape (dim,): the stored row times its norm, or the sum of the subword rows.

        Raises
        ------
        UnknownWordError
            When the word has no vector.
        """
        row = self._row_of(word)
        if row >= 0:
            vector = self._rows[row]
            return vector if self._norms is None else vector * self._norms.row(row)
        sums, known = self._sums([word])
        if not known[0]:
            raise UnknownWordError(word, path=self.path)
        return cast("npt.NDArray[Any]", sums[0])

    def info(self) -> dict[str, Any]:
        """Return what is known about the file without reading its data.

        Returns
        -------
        dict
            As of :meth:`EmbeddingFile.info`, with vocabulary, storage, norms and chunks.
        """
        info = super().info()
        layout = self._offsets
        vocabulary, storage = layout.vocabulary, layout.storage
        if vocabulary is not None:
            names = ("min_n", "max_n", "exponent", "n_hashes", "n_ngrams")
            values = {name: getattr(vocabulary, name) for name in names}
            info["vocabulary"] = {
                "kind": vocabulary.kind,
                **{name: value for name, value in values.items() if value},
            }
            if vocabulary.kind != "simple" and vocabulary.n_buckets >= 0:
                info["vocabulary"]["n_buckets"] = vocabulary.n_buckets
        if isinstance(storage, Product):
            info["storage"] = {
                "kind": "quantized",
                "codes": storage.q,
                "centroids": storage.k,
                "projection": storage.projection is not None,
                "norms": storage.norms is not None,
            }
        elif storage is not None:
            info["storage"] = {"kind": "ndarray", "offset": storage.offset}
        info["norms"] = layout.norms is not None
        info["chunks"] = [
            {"id": chunk.id, "name": chunk.name, "offset": chunk.offset, "nbytes": chunk.nbytes}
            for chunk in layout.chunks
        ]
        return info

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        layout = self._offsets
        found = [chunk.id for chunk in layout.chunks]
        if layout.dialect != "bare" and list(layout.listed) != found:
            report.warning(
                f"the header lists chunks {list(layout.listed)}, the file has {found}", 8
            )
        for chunk in layout.chunks:
            if chunk.nbytes != chunk.stated_nbytes:
                report.warning(
                    f"the {chunk.name} states {chunk.stated_nbytes} bytes and has {chunk.nbytes}",
                    chunk.offset,
                )
            if chunk.name == "unknown":
                report.warning(f"chunk {chunk.id} is not known", chunk.offset)
        report.checked += ["chunks", "metadata", "norms", "vectors"]
        self._attempt(report, lambda: self.metadata)
        self._attempt(report, lambda: self._verify_ngrams(report))
        norms = self.norms
        if norms is not None and not np.isfinite(norms).all():
            report.warning("a norm is not finite", cast(Norms, layout.norms).offset)
        self._attempt(report, lambda: self._verify_vectors(report, progress))

    @staticmethod
    def _attempt(report: Report, check: Any) -> None:
        try:
            check()
        except FormatError as error:
            report.error(str(error), error.offset)

    def _verify_ngrams(self, report: Report) -> None:
        """Check that the rows of stored n-grams exist and that all are used."""
        indexer = self.subwords
        if not isinstance(indexer, ExplicitIndexer):
            return
        report.checked.append("n-gram rows")
        stored = indexer.stored_rows(np.arange(len(indexer.vocabulary)))
        n_used = np.unique(stored).size
        if self._matrix is not None and n_used != indexer.n_buckets:
            report.error(f"n-grams use {n_used} rows, but the storage has {indexer.n_buckets}")

    def _verify_vectors(self, report: Report, progress: Progress | None) -> None:
        """Decode every row and look for values that are no numbers."""
        if self._matrix is None:
            return
        n = len(self._matrix)
        for start, block in self._matrix.blocks():
            if block.dtype.kind == "f" and not np.isfinite(block).all():
                wrong = start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
                report.warning(f"row {wrong} holds values that are not finite")
                return
            if progress is not None:
                progress("checking vectors", start + len(block), n)


def _matrix(file: ByteSource, storage: Dense | Product) -> Matrix:
    if isinstance(storage, Dense):
        shape = storage.rows, storage.columns
        return dense_matrix(file, storage.offset, shape, storage.dtype)
    rows, q, d, k = storage.rows, storage.q, storage.d, storage.k
    projection = norms = None
    if storage.projection is not None:
        projection = dense_matrix(file, storage.projection, (d, d), "<f4")
    if storage.norms is not None:
        norms = dense_matrix(file, storage.norms, (rows, 1), "<f4")
    return ProductMatrix(
        dense_matrix(file, storage.codes, (rows, q), "<u1"),
        dense_matrix(file, storage.codebooks, (q * k, d // q), "<f4"),
        k,
        projection,
        norms,
        {"path": file.path, "format": FORMAT, "offset": storage.codes, "field": "codes"},
    )
