"""The safetensors format in the registry."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from embmap.codecs.bfloat import BFLOAT16
from embmap.formats.format import FLOATS, Format, Input, Output, Request, Writer
from embmap.io.atomic_write import replacing
from embmap.io.mapping import ByteSource
from embmap.io.safetensors import describe_tensors, read_data
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import ArrayMatrix
from embmap.words.beside import find_words
from embmap.words.beside_writer import with_words_beside
from embmap.words.given import Words, read_words

__all__ = ["SafetensorsFormat"]

_OTHER_TENSORS = "other tensors"  # as reports name them


class SafetensorsWriter(Writer):
    """Writes one tensor, with the metadata in the header."""

    dtypes = (*FLOATS, "bfloat16")
    holds = frozenset({"metadata"})
    needs_words = False
    words_beside = True

    keeps_repeats = True
    keeps_dtype = True

    def find_kept(self, output: Output) -> frozenset[str]:
        return self.holds if _find_whole(output) is None else self.holds | {_OTHER_TENSORS}

    def write(self, output: Output) -> None:
        data = _find_whole(output)
        source = None if output.original is None else output.original.source
        if data is None and isinstance(source, SafetensorsInput) and source.choices:
            names = ", ".join(source.choices)
            raise ValueError(
                f"rows can be chosen, scaled or cast in one tensor; choose it with tensor: {names}"
            )
        if data is not None:
            entries = describe_tensors(data)
        else:
            dtype = output.vectors.dtype
            kind = "BF16" if dtype == BFLOAT16 else f"{dtype.kind.upper()}{8 * dtype.itemsize}"
            offsets = [0, output.vectors.nbytes]
            shape = list(output.vectors.shape)
            entries = {output.tensor: {"dtype": kind, "shape": shape, "data_offsets": offsets}}
        metadata = output.texts()
        header = {"__metadata__": metadata, **entries} if metadata else entries
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the data start at a multiple of 8 bytes
        with with_words_beside(output.path, output.words) as path, replacing(path) as out:
            out.write(len(text).to_bytes(8, "little") + text)
            if data is None:
                output.write_rows(out)
            else:
                for block in read_data(data):
                    out.write(block)


def _find_whole(output: Output) -> ByteSource | None:
    """Return the file of which every tensor is written as it is; None if rows differ."""
    original = output.original
    if original is None or not original.source.is_whole:
        return None
    return None if original.changed or original.rows is not None else original.source.data


@dataclass(frozen=True, kw_only=True)
class SafetensorsInput(Input):
    """An input, and its matrices if `vectors` only has the shape of one of them."""

    choices: tuple[str, ...] = ()


class SafetensorsFormat(Format):
    """A header in JSON, and tensors."""

    name = "safetensors"
    title = "safetensors"
    extensions = (".safetensors",)
    has_tensors = True
    writer = SafetensorsWriter()

    def recognizes(self, data: ByteSource) -> bool:
        start = data.read(0, min(9, data.nbytes))
        return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= data.nbytes - 8

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.safetensors.reader import read_safetensors

        is_whole = request.keeps_whole(self.name) and request.limit is None
        vectors, header = read_safetensors(data, request.tensor, optional=is_whole)
        n_others = len(header.tensors) - (vectors is not None)
        choices: tuple[str, ...] = ()
        if vectors is None:
            shapes = {name: each.shape for name, each in header.tensors.items()}
            shapes = {name: shape for name, shape in shapes.items() if len(shape) == 2}
            choices = tuple(shapes)
            vectors = _stand_in(list(shapes.values()), _count_words(data, request.vocab))
        return SafetensorsInput(
            format=self.name,
            words=None,
            vectors=vectors,
            metadata=header.metadata,
            data=data,
            parts=(_OTHER_TENSORS,) if n_others else (),
            is_whole=is_whole,
            choices=choices,
        )


def _stand_in(shapes: Sequence[Sequence[int]], n_words: int | None) -> Matrix:
    """Return a matrix of zeros in the first of some shapes, if possible with a row for each word.

    A file that is copied as a whole needs only the shape. Zeros take no memory.
    """
    fitting = [shape for shape in shapes if shape[0] == n_words]
    shape = next(iter((*fitting, *shapes)), (0, 0))
    return ArrayMatrix(np.broadcast_to(np.zeros((), np.float32), tuple(shape)))


def _count_words(data: ByteSource, vocab: Words | None) -> int | None:
    """Return the number of words given for a file or beside it; None without words."""
    words = find_words(data) if vocab is None else vocab
    if words is None:
        return None
    return len(read_words(words) if isinstance(words, str | os.PathLike) else words)
