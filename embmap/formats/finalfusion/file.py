"""An open finalfusion file: words, vectors, subwords, norms and metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from embmap.vectors.verification import verify_vectors
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
    """A finalfusion file: words, vectors, subwords, norms and metadata.

    Rows are returned as they are stored. If the file has subwords, the vector of an unknown word is
    the sum of its subwords' rows, scaled to unit length.

    Parameters
    ----------
    file : ByteSource
        The bytes of the file.
    dialect : {"reference", "v0", "draft", "bare"}, optional
        How to read it; by default the bytes decide.
    index : str or path-like
        Which index over the words to use; see :func:`embmap.open`.
    vocab : path-like or sequence of str, optional
        Words for a file that holds only a matrix.

    Raises
    ------
    FormatError
        If it is not a valid finalfusion file.
    StaleIndexError
        If an index is required and does not match.
    ValueError
        If `vocab` is given for a file that has words, or its length differs from the matrix.
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
        """The chunks in order: id, name, offset and nbytes of each."""
        return self._offsets.chunks

    @property
    def norms(self) -> npt.NDArray[Any] | None:
        """The lengths of the words' vectors before they were scaled; None in a file without norms.

        Shape (n_words,), float32 or float64 as stored.
        """
        self._check_open()
        return None if self._norms is None else self._norms[:, 0]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata, parsed from TOML; empty in a file without metadata.

        Raises
        ------
        FormatError
            If they are not TOML, are longer than 1 MiB, are nested deeper than 32 levels, or
            contain more than 65536 keys and values, an integer of more than 64 bits, or a number
            that is not finite. :attr:`metadata_toml` still gives the text if it is short enough.
        """
        text = self.metadata_toml or ""
        try:
            return parse_toml(text)
        except ValueError as error:
            raise self._metadata_error(f"the metadata are not TOML: {error}") from None

    @property
    def metadata_toml(self) -> str | None:
        """The text of the metadata; None in a file without metadata.

        Raises
        ------
        FormatError
            If they are not UTF-8, or are longer than 1 MiB.
        """
        self._check_open()
        chunk = self._offsets.metadata
        if chunk is None:
            return None
        if chunk.nbytes > LONGEST_TOML:
            raise self._metadata_error(
                f"the metadata must have at most {LONGEST_TOML} bytes, not {chunk.nbytes}"
            )
        self._file.check_whole()
        data = self._file.read(chunk.data_offset, chunk.nbytes)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            message = f"the metadata are not UTF-8: {error.reason}"
            raise self._metadata_error(message, error.start) from None

    def _metadata_error(self, message: str, start: int = 0) -> FormatError:
        """Return an error about the metadata, at byte `start` of them."""
        offset = cast(Chunk, self._offsets.metadata).data_offset + start
        return FormatError(message, path=self.path, format=FORMAT, offset=offset, field="metadata")

    @property
    def subwords(self) -> SubwordIndexer | None:
        """The indexer that maps n-grams to rows; None in a file without subwords.

        Raises
        ------
        FormatError
            If the stored n-grams of an explicit vocabulary are damaged.
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
            names = ("n_buckets", "n_hashes", "seed", "bow", "eow")
            return FloretIndexer(*lengths, **{name: getattr(layout, name) for name in names})
        ngrams = self._ngrams(layout)
        n_rows = len(ngrams) if layout.n_buckets < 0 else layout.n_buckets
        return ExplicitIndexer(*lengths, ngrams, n_rows)

    def _ngrams(self, layout: VocabularyLayout) -> Vocabulary:
        """Return the stored n-grams; finding their start takes a scan of the words."""
        chunk = next(
            chunk for chunk in self.chunks if chunk.offset < layout.words.offset <= chunk.end
        )
        end = layout.words.offset + int(self._words.starts[-1])
        records = ngram_records(layout, end, chunk.end)
        return Vocabulary(self._file, records, self._words.finder.source, number=1)

    def _indexed_vocabularies(self) -> list[Vocabulary]:
        vocabularies = super()._indexed_vocabularies()
        if isinstance(self.subwords, ExplicitIndexer):
            vocabularies.append(self.subwords.vocabulary)
        return vocabularies

    def subword_rows(self, word: str) -> npt.NDArray[np.int64]:
        """Return the rows of a word's n-grams, whether the word is in the vocabulary or not.

        Parameters
        ----------
        word : str
            The word.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: for each position in the word the rows from its longest n-gram to
            its shortest; empty in a file without subwords.

        Raises
        ------
        FormatError
            If stored n-grams are damaged.
        """
        if self.subwords is None:
            return np.empty(0, np.int64)
        return self._subword_rows([word])[0]

    def _subword_rows(
        self, words: Sequence[str]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        rows, counts = cast(SubwordIndexer, self._subwords).buckets(words)
        # Parsing has checked that the storage has a row for every bucket.
        return rows + self._words.records.n, counts

    def _sums(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the sums of the words' subword rows, and which words have subwords."""
        if self._subwords is None and self.subwords is None:
            return super()._compose(words)
        matrix = self._stored_vectors()
        rows, counts = self._subword_rows(words)
        return segment_sums(matrix, rows, counts), counts > 0

    def _compose(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        indexer = self._subwords
        if isinstance(indexer, BucketIndexer):
            array = self._stored_vectors().mapped()
            if array is not None and array.dtype == np.float32 and array.flags.aligned:
                composed = indexer.compose(words, array, self._words.records.n)
                if composed is not None:
                    return composed
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
        """Return the vector of a word and the word's norm.

        Parameters
        ----------
        word : str
            The word.

        Returns
        -------
        vector : numpy.ndarray
            Shape (dim,): the stored row, or the sum of the subwords' rows scaled to unit length.
        norm : float
            The stored norm, or 1.0 in a file without norms; of a sum, its length before scaling.

        Raises
        ------
        UnknownWordError
            If the word has no vector.
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
            Shape (dim,): the stored row times its norm, or the sum of the subwords' rows.

        Raises
        ------
        UnknownWordError
            If the word has no vector.
        """
        row = self._row_of(word)
        if row >= 0:
            vector = self._rows[row]
            if self._norms is None:
                return vector
            with np.errstate(over="ignore", invalid="ignore"):  # of damaged rows and norms
                product: npt.NDArray[Any] = vector * self._norms.row(row)
            return product
        sums, known = self._sums([word])
        if not known[0]:
            raise UnknownWordError(word, path=self.path)
        return cast("npt.NDArray[Any]", sums[0])

    def _matrices(self) -> Iterator[tuple[tuple[str, ...], Matrix]]:
        yield from super()._matrices()
        if isinstance(self._matrix, ProductMatrix):
            yield ("vectors", "codes"), self._matrix.codes

    def info(self) -> dict[str, Any]:
        """Return what is known about the file without reading its data.

        Returns
        -------
        dict
            The keys of :meth:`EmbeddingFile.info`, and vocabulary, storage, norms and chunks.
        """
        info = super().info()
        layout = self._offsets
        vocabulary, storage = layout.vocabulary, layout.storage
        if vocabulary is not None:
            names = ("kind", "min_n", "max_n", "exponent", "n_hashes", "n_ngrams")
            values = {name: getattr(vocabulary, name) for name in names}
            info["vocabulary"] = {name: value for name, value in values.items() if value}
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
                f"the header lists the chunks {list(layout.listed)}, but the file has {found}", 8
            )
        for chunk in layout.chunks:
            if chunk.nbytes != chunk.stated_nbytes:
                report.warning(
                    f"the length of the {chunk.name} must be {chunk.nbytes}, "
                    f"not {chunk.stated_nbytes}",
                    chunk.offset,
                )
            if chunk.type is None:
                report.warning(f"the chunk identifier {chunk.id} is not known", chunk.offset)
        report.checked.append("chunks")
        report.attempt(lambda: self.metadata, what="metadata")
        report.attempt(self._verify_ngrams, report)
        report.checked.append("norms")
        norms = self.norms
        if norms is not None and not np.isfinite(norms).all():
            report.warning("a norm is not finite", cast(Norms, layout.norms).offset)
        report.attempt(verify_vectors, self._matrix, report, progress, what="vectors")

    def _verify_ngrams(self, report: Report) -> None:
        """Check that the stored n-grams use every subword row and no other."""
        indexer = self.subwords
        if not isinstance(indexer, ExplicitIndexer):
            return
        report.checked.append("n-gram rows")
        stored = indexer.stored_rows(np.arange(len(indexer.vocabulary)))
        n_used = np.unique(stored).size
        if self._matrix is not None and n_used != indexer.n_buckets:
            report.error(f"the n-grams use {n_used} rows, the storage has {indexer.n_buckets}")


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
