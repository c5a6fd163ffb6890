"""An open safetensors file: tensors by name, of which one may hold the vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

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
from embmap.io.safetensors import FORMAT, Header, read_header
from embmap.progress import Progress
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice

if TYPE_CHECKING:
    from embmap.report import Report

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
        tensors = _Listed(header)
        self._texts = dict(header.metadata)
        chosen = find_vectors(tensors)
        matrix = None if chosen is None else tensor_matrix(file, chosen)
        n_rows = 0 if matrix is None else len(matrix)
        words = words_of(file, None, vocab, n_rows, FORMAT, index)
        super().__init__(file, dialect or DIALECT, words, matrix)
        self._tensors = NamedTensors(file, FORMAT, tensors)
        self.vectors_name = None if chosen is None else chosen.name

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata: keys and values, all str."""
        self._check_open()
        return dict(self._texts)

    def info(self) -> dict[str, Any]:
        """Add a chunk for each tensor: name, dtype, shape, offset, alignment and nbytes."""
        return super().info() | {"chunks": self._list_tensors()}

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        from embmap.vectors.verification import verify_vectors

        report.skipped("checksums: safetensors files have none")
        report.attempt(verify_vectors, self._matrix, report, progress, what="vectors")


class _Listed(TensorTable[StoredTensor]):
    """The tensors of a header."""

    def __init__(self, header: Header) -> None:
        super().__init__(list(header.numbers), header.numbers)
        self._header = header

    def describe(self, number: int) -> StoredTensor:
        found = self._header.tensor(number)
        name = self.names[number]
        return StoredTensor(name=name, dtype=found.dtype, shape=found.shape, offset=found.offset)

    def find_matrix(self, n_rows: int | None = None) -> StoredTensor | None:
        described = self._header.described
        shapes = {key: shape for key, (_, shape, _) in described.items() if len(shape) == 2}
        if n_rows is not None:
            shapes = {key: shape for key, shape in shapes.items() if shape[0] == n_rows}
        fitting = (number for number, key in enumerate(self._header.kinds) if key in shapes)
        found = next(fitting, None)
        return None if found is None or next(fitting, None) is not None else self.describe(found)


def find_vectors(tensors: TensorTable[StoredTensor]) -> StoredTensor | None:
    """Return the tensor that holds the vectors; None if that is not certain."""
    chosen = tensors.find_matrix() or choose_by_name(tensors)
    return chosen if chosen is not None and is_matrix(chosen) else None
