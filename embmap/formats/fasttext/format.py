"""The fastText format in the registry."""

from __future__ import annotations

from contextlib import ExitStack

from embmap.formats.fasttext import FORMAT, MAGIC
from embmap.formats.format import Format, Input, Request
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Selected

__all__ = ["FastTextFormat"]


class FastTextFormat(Format):
    """A dictionary, and a matrix with rows for its words and for buckets of n-grams."""

    name = FORMAT
    title = "fastText"
    magic = MAGIC

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.fasttext.reader import FastTextWords, read_fasttext

        model = read_fasttext(data)
        n, indexer = len(model.words), model.indexer
        vectors: Matrix = Selected(model.matrix, range(n))
        buckets = None
        if indexer is not None:
            vectors = FastTextWords(model)
            buckets = Selected(model.matrix, range(n, n + indexer.n_buckets))
        return Input(
            format=self.name,
            words=model.words,
            vectors=vectors,
            metadata=model.metadata,
            subwords=indexer,
            buckets=buckets,
        )
