"""An open ``.npy`` file: the rows of one array."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, ClassVar, cast

from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError
from embmap.io.mapping import ByteSource
from embmap.io.npy import FORMAT, LONGEST_START, StoredArray, find_array
from embmap.progress import Progress
from embmap.vectors.foreign import array_matrix
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice

if TYPE_CHECKING:
    from embmap.report import Report

__all__ = ["NpyFile"]


class NpyFile(EmbeddingFile):
    """An array of numpy, a row for each word.

    Rows are views of the file if it is mapped, row by row and in the byte order of this machine.
    """

    format: ClassVar[str] = FORMAT

    def __init__(
        self,
        file: ByteSource,
        dialect: str | None = None,
        index: IndexChoice = "auto",
        vocab: Words | None = None,
    ) -> None:
        found = self._offsets = parse(file, dialect)
        shape = cast("tuple[int, int]", found.shape)
        matrix = array_matrix(file, found.offset, shape, found.dtype, found.order)
        words = words_of(file, None, vocab, len(matrix), FORMAT, index)
        super().__init__(file, found.version, words, matrix)

    def info(self) -> dict[str, Any]:
        """Add the order: "C" if rows are stored one after the other, "F" if columns are."""
        info, found = super().info(), self._offsets
        info["order"] = found.order
        info["chunks"] = [
            {
                "name": "array",
                "dtype": found.dtype.str.lstrip("<|"),
                "shape": list(found.shape),
                "offset": found.offset,
                "nbytes": found.nbytes,
            }
        ]
        return info

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        from embmap.vectors.verification import verify_vectors

        end = self._offsets.offset + self._offsets.nbytes
        if end < self._file.nbytes:
            report.warning(f"{self._file.nbytes - end} bytes follow the array", end)
        report.attempt(verify_vectors, self._matrix, report, progress, what="vectors")


def parse(file: ByteSource, dialect: str | None) -> StoredArray:
    """Find the array of a file, which must have the version `dialect` if one is given."""
    start = io.BytesIO(file.read(0, min(LONGEST_START, file.nbytes)))
    found = find_array(start, file.nbytes, file.path)
    if dialect not in (None, found.version):
        message = f"the file has version {found.version}, not {dialect}"
        raise FormatError(message, path=file.path, format=FORMAT, offset=6, field="version")
    return found
