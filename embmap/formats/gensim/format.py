"""The format of gensim in the registry."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from embmap.formats.composed import FastTextWords
from embmap.formats.exchange import Input, Request
from embmap.formats.format import Format
from embmap.formats.gensim import FORMAT
from embmap.formats.gensim.writer import GensimWriter
from embmap.io.atomic_write import spool_beside
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import ArrayMatrix
from embmap.words.given import vocabulary_of
from embmap.words.table import WordTable

__all__ = ["GensimFormat"]


class GensimFormat(Format):
    """A pickle, with large arrays in files beside it."""

    name = FORMAT
    title = "gensim"
    extensions = (".kv",)
    writer = GensimWriter()

    def recognizes(self, data: ByteSource) -> bool:
        start = data.read(0, min(100, data.nbytes))
        # The first protocols have no mark of their own; they begin with what makes an object.
        return start.startswith((b"\x80", b"ccopy_reg\n")) and b"gensim" in start

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.gensim.keyed_vectors import read_keyed_vectors
        from embmap.io.npz import map_npz

        def open_npz(path: Path) -> Matrix:
            spool = stack.enter_context(spool_beside(request.folder / "array.npy"))
            return ArrayMatrix(map_npz(path, "val", spool)[0])  # as gensim calls it

        saved = read_keyed_vectors(data, open_npz)
        # gensim keeps bytes that are not UTF-8 as surrogates, which UTF-8 cannot encode.
        encodable = [word.encode(errors="replace").decode() for word in saved.words]
        table = WordTable.of(vocabulary_of(encodable, len(encodable), self.name))
        vectors = saved.rows
        if saved.composes and saved.indexer is not None and saved.buckets is not None:
            rows = saved.rows, saved.buckets
            vectors = FastTextWords(
                (len(table), vectors.shape[1]),
                np.result_type(*(each.dtype for each in rows), np.float32),
                decode=table.decoded,
                find_rows=lambda: rows,
                indexer=saved.indexer,
            )
        return Input(
            format=self.name,
            words=table,
            vectors=vectors,
            subwords=saved.indexer,
            buckets=saved.buckets,
            parts=saved.left_out,
            attributes=saved.attributes,
        )
