"""The safetensors format in the registry."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from embmap.formats.format import FLOATS, Format, Input, Output, Request, Writer
from embmap.io.atomic_write import replacing
from embmap.io.mapping import ByteSource
from embmap.words.beside_writer import with_words_beside

__all__ = ["SafetensorsFormat"]


class SafetensorsWriter(Writer):
    """Writes one tensor, with the metadata in the header."""

    dtypes = FLOATS
    holds = frozenset({"metadata"})
    needs_words = False
    words_beside = True

    def write(self, output: Output) -> None:
        vectors = output.vectors
        header: dict[str, Any] = {
            output.tensor: {
                "dtype": f"F{8 * vectors.dtype.itemsize}",
                "shape": list(vectors.shape),
                "data_offsets": [0, vectors.nbytes],
            }
        }
        metadata = output.texts()
        if metadata:
            header = {"__metadata__": metadata, **header}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the data start at a multiple of 8 bytes
        with with_words_beside(output.path, output.words) as path, replacing(path) as out:
            out.write(len(text).to_bytes(8, "little") + text)
            output.write_rows(out)


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

        vectors, metadata = read_safetensors(data, request.tensor)
        return Input(format=self.name, words=None, vectors=vectors, metadata=metadata)
