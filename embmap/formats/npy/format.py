"""The formats of numpy in the registry: npy and npz."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np

from embmap.formats.format import FLOATS, FileFormat, Format, Input, Output, Request, Writer
from embmap.formats.npy.file import NpyFile
from embmap.io.atomic_write import replacing, spool_beside
from embmap.io.mapping import ByteSource
from embmap.io.npy import FORMAT
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


class NpyFormat(FileFormat):
    """One array."""

    name = FORMAT
    title = "npy"
    extensions = (".npy",)
    dialects = ("1.0", "2.0", "3.0")
    magic = b"\x93NUMPY"
    file_class = NpyFile
    writer = NpyWriter()


class NpzFormat(Format):
    """Arrays in an archive, from which one is copied out."""

    name = "npz"
    title = "npz"
    magic = b"PK\x03\x04"
    has_tensors = True

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.npy.reader import read_npz

        # In the folder of the output there is room for a copy.
        spool = stack.enter_context(spool_beside(request.folder / "array.npy"))
        vectors = read_npz(cast(Path, data.path), request.tensor, spool)
        return Input(format=self.name, words=None, vectors=vectors)
