"""The safetensors format in the registry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import numpy as np

from embmap.codecs.bfloat import BFLOAT16
from embmap.embedding_file import EmbeddingFile
from embmap.formats.format import FLOATS, Writer
from embmap.formats.safetensors.file import DIALECT, SafetensorsFile
from embmap.formats.tensors import NamedTensors, TensorFormat
from embmap.io.mapping import ByteSource
from embmap.io.safetensors import FORMAT, describe_tensors, find_data
from embmap.vectors.matrix import Matrix
from embmap.words.beside import find_words
from embmap.words.given import read_words

if TYPE_CHECKING:
    from contextlib import ExitStack

    from embmap.formats.exchange import Input, Output, Request

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
        import json

        from embmap.io.atomic_write import replacing
        from embmap.words.beside_writer import with_words_beside

        data = _find_whole(output)
        source = None if output.original is None else output.original.source
        if data is None and source is not None and source.is_whole:
            file = cast(SafetensorsFile, source.file)
            if file.vectors is None:
                names = ", ".join(_list_matrices(file.tensors))
                raise ValueError(
                    "rows can be chosen, scaled or cast in one tensor; "
                    f"choose it with tensor: {names}"
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
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the data start at a multiple of 8 bytes
        with with_words_beside(output.path, output.words) as path, replacing(path) as out:
            out.write(len(text).to_bytes(8, "little") + text)
            if data is None:
                output.write_rows(out)
            else:
                output.copy_bytes(out, data, find_data(data))


def _find_whole(output: Output) -> ByteSource | None:
    """Return the file of which every tensor is written as it is; None if rows differ."""
    original = output.original
    if original is None or not original.is_whole:
        return None
    return cast(SafetensorsFile, original.source.file).tensors.data


class SafetensorsFormat(TensorFormat):
    """A header in JSON, and tensors."""

    name = FORMAT
    title = "safetensors"
    extensions = (".safetensors",)
    dialects = (DIALECT,)
    file_class = SafetensorsFile
    writer = SafetensorsWriter()

    def recognizes(self, data: ByteSource) -> bool:
        start = data.read(0, min(9, data.nbytes))
        return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= data.nbytes - 8

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from dataclasses import replace

        source = super().read(data, request, stack)
        file, is_whole = cast(SafetensorsFile, source.file), _is_whole(request)
        has_only_vectors = len(file.tensors) == 1 and file.vectors is not None
        if has_only_vectors and not request.keeps_whole(FORMAT):
            is_whole = False  # the only tensor gets the name by which its vectors are found
        n_others = len(file.tensors) - (file.vectors is not None or not is_whole)
        return replace(source, parts=(_OTHER_TENSORS,) if n_others else (), is_whole=is_whole)

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        if file.vectors is None and _is_whole(request):  # the tensors are kept without vectors
            return _stand_in(cast(SafetensorsFile, file).tensors, request)
        return super().choose_matrix(file, request)


def _is_whole(request: Request) -> bool:
    """Whether an input is written with every tensor: as a safetensors file or an EMBD file."""
    is_kept = request.keeps_whole(FORMAT) or request.keeps_whole("embd")
    return is_kept and request.limit is None


def _stand_in(tensors: NamedTensors, request: Request) -> Matrix:
    """Return a matrix of zeros in the shape of a tensor, if possible with a row for each word.

    A file that is copied as a whole needs only the shape. Zeros take no memory.
    """
    from embmap.vectors.streamed import ArrayMatrix

    words = find_words(tensors.data) if request.vocab is None else request.vocab
    if isinstance(words, str | os.PathLike):
        words = read_words(words)
    shapes = [tensors.layout(name).shape for name in _list_matrices(tensors)]
    fitting = [shape for shape in shapes if words is not None and shape[0] == len(words)]
    shape = next(iter((*fitting, *shapes)), (0, 0))
    return ArrayMatrix(np.broadcast_to(np.zeros((), np.float32), shape))


def _list_matrices(tensors: NamedTensors) -> list[str]:
    return [name for name in tensors if len(tensors.layout(name).shape) == 2]
