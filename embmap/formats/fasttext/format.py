"""The fastText format in the registry."""

from __future__ import annotations

from contextlib import ExitStack

from embmap.formats.composed import FastTextWords
from embmap.formats.fasttext import FORMAT, MAGIC
from embmap.formats.fasttext.writer import FastTextWriter
from embmap.formats.format import Format, Input, Request
from embmap.io.mapping import ByteSource

__all__ = ["FastTextFormat"]


class FastTextFormat(Format):
    """A dictionary, and a matrix with rows for its words and for buckets of n-grams."""

    name = FORMAT
    title = "fastText"
    magic = MAGIC
    writer = FastTextWriter()

    def recognizes(self, data: ByteSource) -> bool:
        from embmap.formats.fasttext.reader import has_first_header

        return super().recognizes(data) or has_first_header(data)

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.fasttext.reader import read_fasttext

        model = read_fasttext(data)
        indexer, vectors = model.indexer, model.rows
        if indexer is not None:
            vectors = FastTextWords(model.words, vectors, model.buckets, indexer)
        return Input(
            format=self.name,
            words=model.words,
            vectors=vectors,
            metadata=model.metadata,
            subwords=indexer,
            buckets=None if indexer is None else model.buckets,
        )
