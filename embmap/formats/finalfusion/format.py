"""The finalfusion format in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from embmap.formats.finalfusion.chunks import FORMAT
from embmap.formats.finalfusion.file import FinalfusionFile
from embmap.formats.finalfusion.layout import DIALECTS, MAGIC, looks_bare
from embmap.formats.format import FileFormat, Writer
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix

if TYPE_CHECKING:
    from contextlib import ExitStack

    from embmap.formats.exchange import Input, Output, Request

__all__ = ["FinalfusionFormat"]


class FinalfusionWriter(Writer):
    """Writes rows of unit length with their norms, subwords and quantized rows."""

    dtypes = ("float32", "float64")
    holds = frozenset({"norms", "quantization", "metadata"})
    subwords = frozenset({"bucket", "fasttext", "explicit", "floret"})
    needs_vectors = False
    keeps_dtype = True

    def write(self, output: Output) -> None:
        from embmap.formats.finalfusion.writer import encode_toml, write_parts
        from embmap.vectors.streamed import Stacked

        vectors: Matrix | None = output.vectors
        if output.quantized is not None or not output.vectors.shape[1]:
            vectors = None
        elif output.buckets is not None:
            vectors = Stacked(output.vectors, output.buckets)
        floret = output.subwords is not None and output.subwords.kind == "floret"
        write_parts(
            output.path,
            () if floret else output.words,
            vectors,
            norms=output.norms,
            toml=encode_toml(output.metadata) if output.metadata else None,
            subwords=output.subwords,
            quantized=output.quantized,
        )


class FinalfusionFormat(FileFormat):
    """Words and vectors, subwords, norms, metadata."""

    name = FORMAT
    title = "finalfusion"
    extensions = (".fifu",)
    dialects = DIALECTS
    magic = MAGIC
    file_class = FinalfusionFile
    writer = FinalfusionWriter()

    def recognizes(self, data: ByteSource) -> bool:
        return super().recognizes(data) or looks_bare(data)

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.exchange import Input
        from embmap.vectors.streamed import ArrayMatrix, Selected
        from embmap.words.table import WordTable

        file = cast(FinalfusionFile, stack.enter_context(self.open(data, request.dialect)))
        norms, subwords, words = file.norms, file.subwords, None
        matrix = file.vectors
        if matrix is None:  # rows without numbers, for the other parts of a file that lacks vectors
            n_rows = (0 if norms is None else len(norms)) if file.vocab is None else len(file.vocab)
            n_rows += 0 if subwords is None else subwords.n_buckets
            matrix = ArrayMatrix(np.empty((n_rows, 0), np.float32))
        n_words = 0 if subwords is not None else len(matrix)
        if file.vocab is not None:
            n_words = len(file.vocab)
            words = WordTable.of(file.vocab, request.limit)
        return Input(
            format=self.name,
            words=words,
            vectors=Selected(matrix, range(n_words if words is None else len(words))),
            norms=None if norms is None else ArrayMatrix(norms[:, np.newaxis]),
            metadata=file.metadata_toml or "",
            subwords=subwords,
            buckets=None if subwords is None else Selected(matrix, range(n_words, len(matrix))),
            quantized=matrix if isinstance(matrix, ProductMatrix) else None,
            # Their data may depend on where they are, so that they cannot be copied.
            parts=("unknown chunks",) if any(c.type is None for c in file.chunks) else (),
        )
