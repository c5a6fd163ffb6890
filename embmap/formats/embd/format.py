"""The EMBD format in the registry."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from embmap.embedding_file import EmbeddingFile
from embmap.formats.embd.file import EmbdFile
from embmap.formats.embd.layout import DIALECTS, FORMAT, MAGIC, REQUIRED_METADATA
from embmap.formats.embd.writer import write
from embmap.formats.format import FileFormat, Output, Request, Writer
from embmap.io.atomic_write import Part
from embmap.vectors.bfloat import BFloat16Matrix
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import ArrayMatrix
from embmap.words.beside_writer import with_words_beside

__all__ = ["EmbdFormat"]


class EmbdWriter(Writer):
    """Writes the vectors as the word embedding of a model, its tokens and its metadata."""

    dtypes = ("float32", "float16")
    holds = frozenset({"metadata"})
    needs_words = False

    def write(self, output: Output) -> None:
        given, dialect = output.texts(), output.dialect or "spec"
        metadata = None
        if dialect == "spec" and given:
            n, dim = output.vectors.shape
            metadata = dict.fromkeys(REQUIRED_METADATA, "unknown")
            metadata |= {
                "embedding_dim": str(dim),
                "vocab_size": str(n),
                "created_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            metadata |= given
        with contextlib.ExitStack() as stack:
            path: Path | Part = output.path
            if output.words is None:
                # A file without words takes those beside it; an older file must not leave any.
                path = stack.enter_context(with_words_beside(output.path, None))
            write(
                path,
                {output.tensor: output.vectors},
                vocab=output.words,
                metadata=metadata,
                layout=dialect,
            )


class EmbdFormat(FileFormat):
    """Named tensors of a model, its tokens, metadata."""

    name = FORMAT
    title = "EMBD"
    extensions = (".weights", ".embd")
    dialects = DIALECTS
    magic = MAGIC
    has_tensors = True
    file_class = EmbdFile
    writer = EmbdWriter()

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        name = request.tensor
        if name is None:
            return super().choose_matrix(file, request)
        tensors = cast(EmbdFile, file).tensors
        if name not in tensors:
            raise ValueError(f"{file.path} has no tensor {name!r}, but {', '.join(tensors)}")
        array = tensors[name]
        if array.ndim != 2:
            raise ValueError(f"{file.path}: tensor {name!r} has {array.ndim} dimensions, not 2")
        matrix = ArrayMatrix(array)
        return BFloat16Matrix(matrix) if tensors.layout(name).dtype == "bfloat16" else matrix
