"""The formats of numpy in the registry: npy and npz."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np

from embmap.formats.format import FLOATS, Format, Input, Output, Request, Writer
from embmap.io.atomic_write import replacing, spool_beside
from embmap.io.mapping import ByteSource
from embmap.vectors.streamed import ArrayMatrix
from embmap.words.beside_writer import with_words_beside

__all__ = ["NpyFormat", "NpzFormat"]


class NpyWriter(Writer):
    """Writes an array."""

    dtypes = FLOATS
    needs_words = False
    words_beside = True
    keeps_repeats = True
    keeps_dtype = True

    def write(self, output: Output) -> None:
        with with_words_beside(output.path, output.words) as path, replacing(path) as out:
            header = {
                "descr": output.vectors.dtype.newbyteorder("<").str,
                "fortran_order": False,
                "shape": output.vectors.shape,
            }
            np.lib.format.write_array_header_1_0(out, header)
            output.write_rows(out)


class NpyFormat(Format):
    """One array."""

    name = "npy"
    title = "npy"
    extensions = (".npy",)
    magic = b"\x93NUMPY"
    writer = NpyWriter()

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.io.npy import map_npy

        return Input(
            format=self.name, words=None, vectors=ArrayMatrix(map_npy(cast(Path, data.path)))
        )


class NpzFormat(Format):
    """Arrays in an archive, from which one is copied out."""

    name = "npz"
    title = "npz"
    magic = b"PK\x03\x04"
    has_tensors = True

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.io.npz import map_npz

        # In the folder of the output there is room for a copy.
        spool = stack.enter_context(spool_beside(request.folder / "array.npy"))
        array = map_npz(cast(Path, data.path), request.tensor, spool)
        return Input(format=self.name, words=None, vectors=ArrayMatrix(array))
