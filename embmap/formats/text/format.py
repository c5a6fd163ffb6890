"""The text formats in the registry: word2vec's, GloVe's and floret's."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.formats.format import FLOATS, Format, Writer
from embmap.io.mapping import ByteSource

if TYPE_CHECKING:
    from contextlib import ExitStack

    from embmap.formats.exchange import Input, Output, Request

__all__ = ["FloretFormat", "GloveFormat", "Word2VecTextFormat"]


class TextWriter(Writer):
    """Writes a line for each word, with the fewest digits that give the same numbers back."""

    dtypes = FLOATS
    keeps_repeats = True

    def __init__(self, *, sizes: bool) -> None:
        self._sizes = sizes

    def refuse(self, word: str) -> str | None:
        if "\n" in word:
            return "holds a newline, which ends a line"
        if word.endswith((" ", "\t", "\v", "\f", "\r")):
            return "ends in a space, which a reader takes for the one that follows a word"
        return None

    def write(self, output: Output) -> None:
        from embmap.io.atomic_write import replacing

        with replacing(output.path) as out:
            if self._sizes:
                out.write(b"%d %d\n" % output.vectors.shape)
            self._write_lines(out, output)

    @staticmethod
    def _write_lines(out: BinaryIO, output: Output) -> None:
        # numpy prints the shortest digits that give the same number back in the row's dtype.
        out.writelines(
            b"%s %s\n" % (word, " ".join(map(str, row)).encode()) for word, row in output.pairs()
        )


class TextFormat(Format):
    """A line for each word: the word, then its numbers."""

    is_streamed = True

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.exchange import Input
        from embmap.formats.text.reader import read_head, read_lines

        head = read_head(data, self.name)
        if head is None:
            raise FormatError("not a text of vectors", path=data.path, format=self.name, offset=0)
        words, vectors = read_lines(
            data,
            head,
            self.name,
            limit=request.limit,
            dtype=_choose_dtype(request, self.name),
            progress=request.progress,
        )
        return Input(format=self.name, words=words, vectors=vectors)


class Word2VecTextFormat(TextFormat):
    """A line of sizes, then a line for each word."""

    name = "word2vec-text"
    title = "word2vec text"
    aliases = ("textdims",)
    extensions = (".vec",)
    writer = TextWriter(sizes=True)

    def recognizes(self, data: ByteSource) -> bool:
        from embmap.formats.text.reader import read_head

        head = read_head(data)
        return head is not None and head.n is not None


class GloveFormat(TextFormat):
    """A line for each word."""

    name = "glove"
    title = "GloVe text"
    aliases = ("text",)
    extensions = (".txt",)
    writer = TextWriter(sizes=False)

    def recognizes(self, data: ByteSource) -> bool:
        from embmap.formats.text.reader import read_head
        from embmap.io.compressed import detect_compression

        head = read_head(data)
        # Some line of compressed bytes may look like a word and numbers.
        return head is not None and head.n is None and detect_compression(data) is None


class FloretWriter(Writer):
    """Writes a line of sizes, then a numbered line for each bucket."""

    dtypes = FLOATS
    subwords = frozenset({"floret"})
    needs_words = False

    def write(self, output: Output) -> None:
        from embmap.io.atomic_write import replacing
        from embmap.words.subwords import FloretIndexer

        indexer, buckets = output.subwords, output.buckets
        if not isinstance(indexer, FloretIndexer) or buckets is None:
            raise ValueError(
                "a floret table holds rows for floret's n-grams and no words; the input has none"
            )
        sizes = (*buckets.shape, indexer.min_n, indexer.max_n, indexer.n_hashes, indexer.seed)
        brackets = f" {indexer.bow} {indexer.eow}\n".encode()
        with replacing(output.path) as out:
            out.write(b"%d %d %d %d %d %d" % sizes + brackets)
            for start, block in buckets.blocks():
                for number, row in enumerate(block, start):
                    out.write(b"%d %s\n" % (number, " ".join(map(str, row)).encode()))


class FloretFormat(Format):
    """A table of rows for n-grams, numbered, under a line of sizes."""

    name = "floret"
    title = "floret"
    is_streamed = True
    extensions = (".floret",)
    writer = FloretWriter()

    def recognizes(self, data: ByteSource) -> bool:
        from embmap.formats.text.reader import read_floret_head

        return read_floret_head(data) is not None

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.exchange import Input
        from embmap.formats.text.reader import read_floret_head, read_lines
        from embmap.vectors.streamed import Selected
        from embmap.words.subwords import FloretIndexer

        found = read_floret_head(data)
        if found is None:
            raise self._error(
                data,
                "the first line of a floret table must have eight fields: buckets, dimensions, "
                "shortest and longest n-gram, hashes, seed, and the brackets of words",
            )
        head, (min_n, max_n, n_hashes, seed), bow, eow = found
        try:
            indexer = FloretIndexer(min_n, max_n, head.n or 0, n_hashes, seed, bow, eow)
        except ValueError as error:
            raise self._error(data, str(error)) from None
        if head.dim < 1:
            raise self._error(data, f"rows must have at least 1 number, not {head.dim}")
        numbers, buckets = read_lines(
            data,
            head,
            self.name,
            dtype=_choose_dtype(request, self.name),
            progress=request.progress,
        )
        for row, number in enumerate(numbers.encoded()):
            if number != b"%d" % row:
                raise numbers.error(row, f"rows must be numbered in order, not {number[:20]!r}")
        return Input(
            format=self.name,
            words=None,
            vectors=Selected(buckets, range(0)),
            subwords=indexer,
            buckets=buckets,
        )

    def _error(self, data: ByteSource, message: str) -> FormatError:
        return FormatError(message, path=data.path, format=self.name, offset=0)


def _choose_dtype(request: Request, format: str) -> npt.DTypeLike:
    """Return the dtype to parse numbers as: float64 only if the output keeps its digits."""
    if request.dtype is None and request.keeps_whole(format):
        return np.float64
    return np.float64 if request.dtype == np.float64 else np.float32
