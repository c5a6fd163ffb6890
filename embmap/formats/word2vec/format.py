"""The binary word2vec format in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from embmap.formats.format import FileFormat, Writer
from embmap.formats.word2vec.file import Word2VecFile
from embmap.formats.word2vec.layout import DIALECTS, FORMAT, read_sizes
from embmap.io.mapping import ByteSource

if TYPE_CHECKING:
    from contextlib import ExitStack

    from embmap.formats.exchange import Input, Output, Request

__all__ = ["Word2VecFormat"]


class Word2VecWriter(Writer):
    """Writes a line of sizes, then each word with its numbers."""

    keeps_repeats = True

    def refuse(self, word: str) -> str | None:
        if " " in word:
            return "holds a space, which ends a word in this format"
        if word.startswith("\n"):
            return "starts with a newline, which readers skip"
        return None

    def write(self, output: Output) -> None:
        from embmap.io.atomic_write import replacing

        original = output.original
        file = None if original is None else original.source.file
        end = b"" if file is not None and file.layout == "plain" else b"\n"
        with replacing(output.path) as out:
            out.write(b"%d %d\n" % output.vectors.shape)
            for word, row in output.pairs():
                out.write(b"%s %s%s" % (word, row.astype("<f4", copy=False).tobytes(), end))


class Word2VecFormat(FileFormat):
    """A line of sizes, then words and float32 numbers by turns."""

    name = FORMAT
    title = "word2vec"
    extensions = (".bin",)
    dialects = DIALECTS
    file_class = Word2VecFile
    writer = Word2VecWriter()

    def recognizes(self, data: ByteSource) -> bool:
        return read_sizes(data) is not None

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        source = super().read(data, request, stack)
        cast(Word2VecFile, source.file).check_end()
        return source
