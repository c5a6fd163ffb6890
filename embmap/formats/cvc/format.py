"""The CVC format in the registry."""

from __future__ import annotations

import json
from typing import cast

from embmap.embedding_file import EmbeddingFile
from embmap.formats.cvc.file import CvcFile
from embmap.formats.cvc.header import DIALECTS, FORMAT, MAGIC
from embmap.formats.cvc.layout import COMPRESSIONS
from embmap.formats.cvc.writer import write
from embmap.formats.format import FileFormat, Output, Request, Writer
from embmap.vectors.matrix import Matrix
from embmap.words.beside_writer import with_words_beside

__all__ = ["CvcFormat"]


class CvcWriter(Writer):
    """Writes one matrix in chunks."""

    holds = frozenset({"metadata"})
    needs_words = False
    words_beside = True
    compressions = COMPRESSIONS["1.0"]

    def write(self, output: Output) -> None:
        compression = output.compression or "fp16"
        # 0.1 is what most readers know; only 1.0 has lossless chunks.
        layout = output.dialect or ("1.0" if compression == "lossless" else "0.1")
        # JSON has no dates and times, which TOML has.
        metadata = json.loads(json.dumps(output.values(), default=str))
        with with_words_beside(output.path, output.words) as path:
            write(
                path,
                output.vectors,
                compression=compression,
                layout=layout,
                metadata=metadata,
            )


class CvcFormat(FileFormat):
    """Chunks of vectors, in columns, compressed."""

    name = FORMAT
    title = "CVC"
    extensions = (".cvc",)
    dialects = DIALECTS
    magic = MAGIC
    has_tensors = True
    file_class = CvcFile
    writer = CvcWriter()

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        columns = cast(CvcFile, file).columns
        if request.tensor is None and len(columns) <= 1:
            return super().choose_matrix(file, request)
        try:
            return columns[request.tensor or ""]
        except KeyError:
            known = ", ".join(columns)
            raise ValueError(f"{file.path}: choose a column with tensor: {known}") from None
