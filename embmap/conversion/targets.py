"""Writing what is converted: one function for each format, and what each can hold."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from embmap.conversion.rows import Lengths, Stacked
from embmap.conversion.words import Refuse, WordTable
from embmap.formats.cvc.writer import write as write_cvc_file
from embmap.formats.embd.layout import REQUIRED_METADATA
from embmap.formats.embd.writer import write as write_embd_file
from embmap.formats.finalfusion.writer import write as write_finalfusion_file
from embmap.io.atomic_write import Part, Together, replacing
from embmap.io.backends import open_mapped
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_toml
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import Quantized
from embmap.words.beside import describe, digests_beside, exists, words_beside
from embmap.words.subwords import SubwordIndexer

__all__ = ["TARGETS", "Output", "Target", "with_words_beside"]

WORD_EMBEDDING = "embeddings.word_embeddings.weight"
_BOM = "\ufeff"


@dataclass(frozen=True)
class Output:
    """What is written.

    Attributes
    ----------
    path : pathlib.Path
        The file to create or replace.
    words : WordTable or None
        The words.
    vectors : Matrix
        A row for each word, as it is to be stored.
    norms : Matrix, Lengths or None
        The lengths that the rows had.
    metadata : str or mapping
        TOML or values.
    subwords : SubwordIndexer or None
        Gives n-grams the rows of `buckets`.
    buckets : Matrix or None
        The rows of the subwords.
    quantized : Quantized or None
        In place of `vectors` and `buckets`.
    compression : str or None
        How chunks of CVC files are stored.
    layout : str or None
        The dialect of the format.
    """

    path: Path
    words: WordTable | None
    vectors: Matrix
    norms: Matrix | Lengths | None = None
    metadata: str | Mapping[str, Any] = ""
    subwords: SubwordIndexer | None = None
    buckets: Matrix | None = None
    quantized: Quantized | None = None
    compression: str | None = None
    layout: str | None = None

    def values(self) -> dict[str, Any]:
        """Return the metadata as values."""
        if not isinstance(self.metadata, str):
            return dict(self.metadata)
        try:
            return parse_toml(self.metadata)
        except ValueError as error:
            raise ValueError(f"the metadata are not TOML: {error}") from None


def _no_space(word: str) -> str | None:
    if " " in word:
        return "holds a space, which ends a word in this format"
    return "starts with a newline" if word.startswith("\n") else None


def _no_newline(word: str) -> str | None:
    if "\n" in word:
        return "holds a newline, which ends a line"
    if word.endswith((" ", "\t", "\v", "\f", "\r")):
        return "ends in a space, which cannot be told from the one that follows a word"
    return None


def _no_line_end(word: str) -> str | None:
    if "\n" in word or word.endswith("\r"):
        return "holds the end of a line"
    return None


@contextlib.contextmanager
def with_words_beside(path: Path, words: WordTable | None) -> Iterator[Part]:
    """Write vectors together with the text file that holds their words."""
    listed, digests = words_beside(path), digests_beside(path)
    stale = [each for each in (listed, digests) if exists(each)]
    with Together() as together:
        described = lines = None
        if words is not None or stale:
            # Until all of the new files are in place, their digests refuse what is there.
            described = together.file(digests)
        if words is not None:
            lines = together.file(listed)
            with lines.open() as out:
                for number, word in enumerate(words):
                    # A reader takes the first of two for the mark of UTF-8.
                    mark = _BOM if number == 0 and word.startswith(_BOM) else ""
                    out.write(f"{mark}{word}\n".encode())
        elif listed in stale:
            together.remove(listed)
        vectors = together.file(path)
        yield vectors
        if described is not None:
            with described.open() as out:
                out.write(describe(_complete(vectors), None if lines is None else _complete(lines)))
        if words is None and stale:
            together.remove(digests)


def _complete(part: Part) -> ByteSource:
    return open_mapped(part.written, backend="read")


def _write_finalfusion(output: Output) -> None:
    vectors: Matrix | None = output.vectors
    if output.quantized is not None:
        vectors = None
    elif output.buckets is not None:
        vectors = Stacked(output.vectors, output.buckets)
    floret = output.subwords is not None and output.subwords.kind == "floret"
    write_finalfusion_file(
        output.path,
        None if floret else output.words,
        vectors,
        norms=_column(output.norms),
        metadata=output.metadata or None,
        subwords=output.subwords,
        quantized=output.quantized,
    )


def _column(norms: Matrix | Lengths | None) -> Any:
    """Return norms as the writer takes them; those of Lengths are known when they are written."""
    if isinstance(norms, Matrix):
        return np.asarray(norms)[:, 0]
    return norms


def _write_embd(output: Output) -> None:
    given = {key: _text(value) for key, value in output.values().items()}
    layout = output.layout or "spec"
    metadata = None
    if layout == "spec" and given:
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
        if output.words is None:  # without words of its own it would take those beside it
            path = stack.enter_context(with_words_beside(output.path, None))
        write_embd_file(
            path,
            {WORD_EMBEDDING: output.vectors},
            vocab=output.words,
            metadata=metadata,
            layout=layout,
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _write_cvc(output: Output) -> None:
    compression = output.compression or "fp16"
    layout = output.layout or ("1.0" if compression == "lossless" else "0.1")
    # None of TOML's dates and times are JSON.
    metadata = json.loads(json.dumps(output.values(), default=str))
    with with_words_beside(output.path, output.words) as path:
        write_cvc_file(
            path,
            output.vectors,
            compression=compression,
            layout=layout,
            metadata=metadata,
        )


def _write_word2vec(output: Output) -> None:
    with replacing(output.path) as out:
        rows, dim = output.vectors.shape
        out.write(b"%d %d\n" % (rows, dim))
        for word, row in _pairs(output):
            out.write(b"%s %s\n" % (word, row.astype("<f4", copy=False).tobytes()))


def _write_word2vec_text(output: Output) -> None:
    with replacing(output.path) as out:
        out.write(b"%d %d\n" % output.vectors.shape)
        _write_lines(out, output)


def _write_glove(output: Output) -> None:
    with replacing(output.path) as out:
        _write_lines(out, output)


def _write_lines(out: BinaryIO, output: Output) -> None:
    # numpy prints the shortest digits that give the same number back in the row's type.
    lines = (b"%s %s\n" % (word, " ".join(map(str, row)).encode()) for word, row in _pairs(output))
    out.writelines(lines)


def _pairs(output: Output) -> Iterator[tuple[bytes, Any]]:
    words = iter(() if output.words is None else output.words.encoded())
    for _, block in output.vectors.blocks():
        for row in block:
            yield next(words), row


def _write_npy(output: Output) -> None:
    with with_words_beside(output.path, output.words) as path, replacing(path) as out:
        described = {
            "descr": output.vectors.dtype.newbyteorder("<").str,
            "fortran_order": False,
            "shape": output.vectors.shape,
        }
        np.lib.format.write_array_header_1_0(out, described)
        _write_blocks(out, output.vectors)


def _write_blocks(out: BinaryIO, vectors: Matrix) -> None:
    for _, block in vectors.blocks():
        little = block.astype(block.dtype.newbyteorder("<"), copy=False)
        out.write(np.ascontiguousarray(little).data.cast("B") if block.size else b"")


def _write_safetensors(output: Output) -> None:
    vectors = output.vectors
    kinds = {"f8": "F64", "f4": "F32", "f2": "F16"}
    header: dict[str, Any] = {
        WORD_EMBEDDING: {
            "dtype": kinds[vectors.dtype.str[1:]],
            "shape": list(vectors.shape),
            "data_offsets": [0, vectors.nbytes],
        }
    }
    given = {key: _text(value) for key, value in output.values().items()}
    if given:
        header = {"__metadata__": given, **header}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # numbers start at a multiple of eight bytes
    with with_words_beside(output.path, output.words) as path, replacing(path) as out:
        out.write(struct.pack("<Q", len(text)) + text)
        _write_blocks(out, vectors)


@dataclass(frozen=True)
class Target:
    """A format that is written.

    Attributes
    ----------
    write : callable
        Writes an :class:`Output`.
    dtypes : tuple of str
        Types of numbers that it holds, the one for all others first.
    refuse : callable or None
        Says why a word cannot be held; None where all can.
    needs_words : bool
        Whether there is nothing to write without words.
    beside : bool
        Whether words go into a text file beside it.
    """

    write: Callable[[Output], None]
    dtypes: tuple[str, ...] = ("float32",)
    refuse: Refuse | None = None
    needs_words: bool = True
    beside: bool = False

    def dtype(self, stored: np.dtype[Any], asked: np.dtype[Any] | None) -> np.dtype[Any]:
        """Return the type of the numbers to write."""
        if asked is not None and asked.name not in self.dtypes:
            raise ValueError(f"the output holds {' or '.join(self.dtypes)}, not {asked}")
        chosen = asked or (stored if stored.name in self.dtypes else np.dtype(self.dtypes[0]))
        return chosen.newbyteorder("=")


_FLOATS = ("float32", "float16", "float64")
TARGETS: dict[str, Target] = {
    "finalfusion": Target(_write_finalfusion, ("float32", "float64")),
    "embd": Target(_write_embd, ("float32", "float16"), needs_words=False),
    "cvc": Target(_write_cvc, refuse=_no_line_end, needs_words=False, beside=True),
    "word2vec": Target(_write_word2vec, refuse=_no_space),
    "word2vec-text": Target(_write_word2vec_text, _FLOATS, _no_newline),
    "glove": Target(_write_glove, _FLOATS, _no_newline),
    "npy": Target(_write_npy, _FLOATS, _no_line_end, needs_words=False, beside=True),
    "safetensors": Target(
        _write_safetensors, _FLOATS, _no_line_end, needs_words=False, beside=True
    ),
}
