"""An open binary file of word2vec: words, each followed by its row."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError
from embmap.formats.word2vec.layout import FORMAT, parse
from embmap.io.mapping import ByteSource
from embmap.io.residency import sample
from embmap.progress import Progress
from embmap.report import Report
from embmap.vectors.streamed import Streamed
from embmap.vectors.verification import verify_vectors
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice
from embmap.words.vocabulary import Vocabulary

__all__ = ["Word2VecFile", "Word2VecMatrix"]


class Word2VecMatrix(Streamed):
    """Rows of float32 with words between them; where a row is follows from where words are."""

    def __init__(self, words: Vocabulary, dim: int) -> None:
        self.shape = (len(words), dim)
        self.dtype = np.dtype("<f4")
        self._words = words
        self._file = words.file
        # From the start of a row to the next word.
        self._nbytes = words.records.suffix - 1

    @property
    def random_access(self) -> bool:
        """Always True."""
        return True

    def row(self, i: int) -> npt.NDArray[Any]:
        """Return one row: a view if the file is mapped."""
        return self._file.array(int(self._places(i, i + 1)[0]), self.dtype, self.shape[1])

    def _places(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the offsets of a range of rows."""
        records = self._words.records
        return self._words.finder.bounds(start, stop)[1:] + (records.offset - self._nbytes)

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        places = self._places(start, stop)
        if not self._file.zero_copy or stop - start < 2:
            return self._read(places)
        # An index may be wrong; the rows of a right one lie together.
        first, last = int(places.min()), int(places.max()) + 4 * self.shape[1]
        self._file.check_whole()
        window = self._file.array(first, np.uint8, last - first).data
        data = b"".join(window[at : at + 4 * self.shape[1]] for at in (places - first).tolist())
        return np.frombuffer(data, self.dtype).reshape(places.size, self.shape[1])

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        places = [int(self._places(row, row + 1)[0]) for row in rows.tolist()]
        out[...] = self._read(np.array(places, np.int64))

    def _read(self, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the rows at some offsets, end to end."""
        nbytes = 4 * self.shape[1]
        if places.size:  # an index may be wrong
            self._file.check_range(int(places.min()), 0)
            self._file.check_range(int(places.max()), nbytes)
        self._file.check_whole()
        if self._file.lacks(sample(places)):
            self._file.prefetch(places, nbytes)
        # A mapped file would be indexed byte by byte.
        gather = ByteSource.gather if self._file.zero_copy else type(self._file).gather
        data = gather(self._file, places, np.full(places.size, nbytes))
        return data.view(self.dtype).reshape(places.size, self.shape[1])

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Ask the system to read the file ahead; where some rows are may not be known yet."""
        if rows is None:
            start = self._words.records.offset
            self._file.prefetch(np.array([start]), self._file.nbytes - start)


class Word2VecFile(EmbeddingFile):
    """A binary file of word2vec; the first look-up finds the words, which takes a scan of it."""

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
        super().__init__(file, layout.dialect, words, Word2VecMatrix(words, layout.dim))

    def info(self) -> dict[str, Any]:
        """Add the chunk of words and rows."""
        records = self._offsets.words
        chunk = {"name": "words and rows", "offset": records.offset, "nbytes": records.nbytes}
        return super().info() | {"chunks": [chunk]}

    def check_end(self) -> None:
        """Raise FormatError if more than newlines follows the last row."""
        records = self._offsets.words
        end = records.offset + int(self._words.starts[-1])
        n_left = self._file.nbytes - end
        if self._file.read(min(end, self._file.nbytes), min(16, max(n_left, 0))).strip(b"\r\n"):
            raise FormatError(
                f"{records.n} words end here, but {n_left} bytes follow",
                path=self.path,
                format=FORMAT,
                offset=end,
            )

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        report.attempt(self.check_end, what="end")
        report.attempt(verify_vectors, self._matrix, report, progress, what="vectors")
