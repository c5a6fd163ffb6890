"""An open safetensors file: tensors by name, of which one may hold the vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from embmap.formats.tensors import (
    NamedTensors,
    StoredTensor,
    TensorFile,
    TensorTable,
    choose_by_name,
    is_matrix,
    tensor_matrix,
)
from embmap.io.mapping import ByteSource
from embmap.io.safetensors import FORMAT, Tensor, read_header
from embmap.progress import Progress
from embmap.report import Report
from embmap.vectors.verification import verify_vectors
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice

__all__ = ["DIALECT", "SafetensorsFile"]

DIALECT = "safetensors"  # the only one


class SafetensorsFile(TensorFile):
    """Tensors by name; the vectors are the only matrix, or the one with the name of an embedding.

    `vocab` gives the rows their words.
    """

    format: ClassVar[str] = FORMAT

    def __init__(
        self,
        file: ByteSource,
        dialect: str | None = None,
        index: IndexChoice = "auto",
        vocab: Words | None = None,
    ) -> None:
        header = read_header(file)
        tensors = _Listed(header.tensors)
        self._texts = dict(header.metadata)
        chosen = find_vectors(tensors)
        matrix = None if chosen is None else tensor_matrix(file, chosen)
        n_rows = 0 if matrix is None else len(matrix)
        words = words_of(file, None, vocab, n_rows, FORMAT, index)
        super().__init__(file, dialect or DIALECT, words, matrix)
        self._tensors = NamedTensors(file, FORMAT, tensors)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata: keys and values, all str."""
        self._check_open()
        return dict(self._texts)

    def info(self) -> dict[str, Any]:
        """Add a chunk for each tensor: name, dtype, shape, offset, alignment and nbytes."""
        return super().info() | {"chunks": self._list_tensors()}

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        report.skipped("checksums: safetensors files have none")
        report.attempt(verify_vectors, self._matrix, report, progress, what="vectors")


class _Listed(TensorTable[StoredTensor]):
    """The tensors of a header."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(list(tensors))
        self._tensors = list(tensors.values())

    def describe(self, number: int) -> StoredTensor:
        found = self._tensors[number]
        name = self.names[number]
        return StoredTensor(name=name, dtype=found.dtype, shape=found.shape, offset=found.offset)

    def find_matrices(self, n_rows: int | None = None) -> list[int]:
        shapes = enumerate(each.shape for each in self._tensors)
        return [i for i, shape in shapes if len(shape) == 2 and n_rows in (None, shape[0])]


def find_vectors(tensors: TensorTable[StoredTensor]) -> StoredTensor | None:
    """Return the tensor that holds the vectors; None if that is not certain."""
    matrices = tensors.find_matrices()
    chosen = tensors.describe(matrices[0]) if len(matrices) == 1 else choose_by_name(tensors)
    return chosen if chosen is not None and is_matrix(chosen) else None
