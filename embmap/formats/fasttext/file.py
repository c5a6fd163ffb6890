"""An open model of fastText: words and unknown words, composed from rows of words and n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.formats.composed import FastTextWords
from embmap.formats.fasttext import FORMAT, LABELS, OUTPUT_MATRIX
from embmap.formats.fasttext.layout import check_types, find_rows, has_output_matrix, parse
from embmap.formats.format import WORD_COUNTS
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.report import Report
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Stacked
from embmap.vectors.verification import verify_vectors
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice
from embmap.words.records import scan
from embmap.words.subwords import FastTextIndexer
from embmap.words.vocabulary import Vocabulary

__all__ = ["FastTextFile"]


class FastTextFile(EmbeddingFile):
    """A model of fastText.

    The vector of a word is the mean of its row and the rows of its n-grams, and the vector of an
    unknown word the mean of the rows of its n-grams. The first look-up finds words and rows, which
    takes a scan of the dictionary.
    """

    format: ClassVar[str] = FORMAT

    def __init__(
        self,
        file: ByteSource,
        dialect: str | None = None,
        index: IndexChoice = "auto",
        vocab: Words | None = None,
    ) -> None:
        layout = self._offsets = parse(file, dialect)
        words = cast(Vocabulary, words_of(file, layout.words, vocab, 0, FORMAT, index))

        def decode(start: int, stop: int) -> list[str]:
            return [word.decode(errors="replace") for _, word in words.encoded(start, stop)]

        def find() -> tuple[Matrix, Matrix]:
            return find_rows(file, layout, _measure(words))

        shape = (layout.words.n, layout.dim)
        self._composed = FastTextWords(
            shape, np.float32, decode=decode, find_rows=find, indexer=layout.indexer
        )
        super().__init__(file, layout.dialect, words, self._composed)

    @property
    def subwords(self) -> FastTextIndexer | None:
        """The indexer that maps n-grams to rows; None in a model without n-grams."""
        self._check_open()
        return self._offsets.indexer

    @property
    def stored(self) -> tuple[Matrix, Matrix]:
        """The rows of words and the rows of buckets, as they are stored."""
        self._check_open()
        return self._composed.stored

    @property
    def metadata(self) -> dict[str, Any]:
        """The arguments of the training, by the names that finalfusion gives them."""
        self._check_open()
        return dict(self._offsets.metadata)

    @property
    def parts(self) -> tuple[str, ...]:
        """What the file holds beyond words and vectors, as reports of conversions name it."""
        self._check_open()
        layout = self._offsets
        has_output = has_output_matrix(self._file, layout, _measure(self._words))
        held = {WORD_COUNTS: layout.words.n, LABELS: layout.n_labels, OUTPUT_MATRIX: has_output}
        return tuple(part for part, is_held in held.items() if is_held)

    def _compose(self, words: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        self._check_open()
        return self._composed.compose(words)

    def info(self) -> dict[str, Any]:
        """Add the n-grams, and a chunk with the dictionary and the matrices after it."""
        info, layout = super().info(), self._offsets
        if layout.indexer is not None:
            indexer = layout.indexer
            names = ("kind", "min_n", "max_n", "n_buckets")
            info["vocabulary"] = {name: getattr(indexer, name) for name in names}
        records = layout.words
        chunk = {"name": "dictionary and matrices", "offset": records.offset}
        return info | {"chunks": [chunk | {"nbytes": records.nbytes}]}

    def check_types(self) -> None:
        """Raise FormatError if a label comes before a word in the dictionary."""
        check_types(self._file, self._offsets, scan(self._file, self._offsets.words))

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        report.attempt(self.check_types, what="types of entries")
        stored = report.attempt(lambda: self.stored, what="matrix")
        if stored is not None:
            report.attempt(verify_vectors, Stacked(*stored), report, progress, what="vectors")


def _measure(words: Vocabulary) -> int:
    """Return how many bytes the words take in the dictionary."""
    n = words.records.n
    return int(words.finder.bounds(n, n)[0])
