"""The binary word2vec format in the registry."""

from __future__ import annotations

from contextlib import ExitStack

from embmap.formats.format import Format, Input, Output, Request, Writer
from embmap.io.atomic_write import replacing
from embmap.io.mapping import ByteSource

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
        with replacing(output.path) as out:
            out.write(b"%d %d\n" % output.vectors.shape)
            for word, row in output.pairs():
                out.write(b"%s %s\n" % (word, row.astype("<f4", copy=False).tobytes()))


class Word2VecFormat(Format):
    """A line of sizes, then words and float32 numbers by turns."""

    name = "word2vec"
    title = "word2vec"
    extensions = (".bin",)
    writer = Word2VecWriter()

    def recognizes(self, data: ByteSource) -> bool:
        from embmap.formats.word2vec.reader import read_sizes

        return read_sizes(data) is not None

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.word2vec.reader import read_word2vec

        words, vectors = read_word2vec(data, limit=request.limit)
        return Input(format=self.name, words=words, vectors=vectors)
