"""The fastText format in the registry."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

from embmap.formats.exchange import Input, Request
from embmap.formats.fasttext import FORMAT, MAGIC
from embmap.formats.fasttext.file import FastTextFile
from embmap.formats.fasttext.layout import DIALECTS, has_first_header
from embmap.formats.fasttext.writer import FastTextWriter
from embmap.formats.format import FileFormat
from embmap.io.mapping import ByteSource

__all__ = ["FastTextFormat"]


class FastTextFormat(FileFormat):
    """A dictionary, and a matrix with rows for its words and for buckets of n-grams."""

    name = FORMAT
    title = "fastText"
    magic = MAGIC
    dialects = DIALECTS
    file_class = FastTextFile
    writer = FastTextWriter()

    def recognizes(self, data: ByteSource) -> bool:
        return super().recognizes(data) or has_first_header(data)

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        source = super().read(data, request, stack)
        file = cast(FastTextFile, source.file)
        file.check_types()
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in file.metadata.items())
        return replace(
            source,
            metadata="".join(lines),
            parts=file.parts,
            data=data,
            is_whole=request.keeps_whole(self.name) and request.limit is None,
            subwords=file.subwords,
            buckets=None if file.subwords is None else file.stored[1],
        )
