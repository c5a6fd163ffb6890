"""The formats of numpy in the registry: npy and npz."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.formats.format import FLOATS, OTHER_STEPS, FileFormat, Format, Writer
from embmap.formats.npy.file import NpyFile
from embmap.io.mapping import ByteSource
from embmap.io.npy import FORMAT, map_npy
from embmap.vectors.matrix import Matrix

if TYPE_CHECKING:
    from contextlib import ExitStack

    from embmap.formats.exchange import Input, Output, Request

__all__ = ["NpyFormat", "NpzFormat"]

_OTHER_ARRAYS = "other arrays"  # as reports name them


class NpyWriter(Writer):
    """Writes an array."""

    dtypes = FLOATS
    needs_words = False
    words_beside = True
    keeps_repeats = True
    keeps_dtype = True

    def write(self, output: Output) -> None:
        from embmap.io.atomic_write import replacing
        from embmap.words.beside_writer import with_words_beside

        with with_words_beside(output.path, output.words) as path, replacing(path) as out:
            header = {
                "descr": output.vectors.dtype.newbyteorder("<").str,
                "fortran_order": False,
                "shape": output.vectors.shape,
            }
            np.lib.format.write_array_header_1_0(out, header)
            output.write_rows(out)


class NpzWriter(Writer):
    """Writes integers over time: a step for each input, or every time step of one."""

    dtypes = FLOATS
    stored_dtype = "int16"
    needs_words = False
    words_beside = True
    over_time = True
    keeps_repeats = True

    def find_kept(self, output: Output) -> frozenset[str]:
        is_whole = output.original is not None and output.original.is_whole
        return frozenset({OTHER_STEPS, _OTHER_ARRAYS} if is_whole else {OTHER_STEPS})

    def write(self, output: Output) -> None:
        from embmap.formats.npy.writer import write_npz
        from embmap.io.atomic_write import replacing
        from embmap.words.beside_writer import with_words_beside

        original = output.original
        with with_words_beside(output.path, output.words) as path, replacing(path) as out:
            if original is not None and original.is_whole:
                output.copy_bytes(out, cast(ByteSource, original.source.data))
            else:
                write_npz(out, output)


class NpyFormat(FileFormat):
    """One array."""

    name = FORMAT
    title = "npy"
    extensions = (".npy",)
    dialects = ("1.0", "2.0", "3.0")
    magic = b"\x93NUMPY"
    has_timesteps = True
    is_scaled = True
    file_class = NpyFile
    writer = NpyWriter()

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        path = cast(Path, data.path)
        array = map_npy(path, (2, 3))
        if array.ndim == 2 and request.timestep is None and request.scale is None:
            return super().read(data, request, stack)
        return _make_input(self.name, path, array, request)


class NpzFormat(Format):
    """Arrays in an archive, from which one is copied out."""

    name = "npz"
    title = "npz"
    extensions = (".npz",)
    magic = b"PK\x03\x04"
    has_tensors = True
    has_timesteps = True
    is_scaled = True
    writer = NpzWriter()

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from dataclasses import replace

        from embmap.io.atomic_write import spool_beside
        from embmap.io.npz import map_npz

        # In the folder of the output there is room for a copy.
        spool = stack.enter_context(spool_beside(request.folder / "array.npy"))
        path = cast(Path, data.path)
        array, scale, has_others = map_npz(path, request.tensor, spool)
        source = _make_input(self.name, path, array, request, scale)
        is_whole = request.keeps_whole(self.name) and request.limit is None
        return replace(
            source,
            parts=(*source.parts, _OTHER_ARRAYS) if has_others else source.parts,
            data=data,
            is_whole=is_whole and request.scale is None,
        )


def _make_input(
    format: str,
    path: Path,
    array: npt.NDArray[Any],
    request: Request,
    scale: np.float32 | None = None,
) -> Input:
    """Return a matrix, or vectors over time: an array of shape (T, V, K) and a scale."""
    from embmap.formats.exchange import Input
    from embmap.vectors.streamed import ArrayMatrix, Scaled

    if array.ndim == 2:
        for value, what in ((request.timestep, "timestep"), (request.scale, "scale")):
            if value is not None:
                raise ValueError(
                    f"{path} has one matrix and no time steps to choose from: {what} must be None"
                )
        return Input(format=format, words=None, vectors=ArrayMatrix(array))
    if not len(array):
        raise FormatError("there are no time steps", path=path, format=format)
    factor = _choose_scale(format, path, array.dtype, (request.scale, scale))
    steps: list[Matrix] = [ArrayMatrix(step) for step in array]
    t = request.choose_step(path, len(steps))
    vectors = steps[t or 0]
    return Input(
        format=format,
        words=None,
        vectors=vectors if factor is None else Scaled(vectors, factor),
        parts=(OTHER_STEPS,),
        steps=steps if t is None else (),
        scale=factor,
    )


def _choose_scale(
    format: str, path: Path, dtype: np.dtype[Any], scales: tuple[float | None, np.float32 | None]
) -> float | None:
    """Return the scale of integers over time, the caller's or the archive's; None for floats.

    ValueError is raised if both or neither gives one, FormatError if int16 cannot hold the
    integers.
    """
    from embmap.vectors.rounding import check_scale

    known = [scale for scale in scales if scale is not None]
    if dtype.kind == "f":
        if known:
            message = f"a scale is for integers, and the vectors over time are {dtype}"
            raise FormatError(message, path=path, format=format)
        return None
    if not np.can_cast(dtype, np.int16):
        message = f"integers over time must be int16, not {dtype}"
        raise FormatError(message, path=path, format=format)
    if not known:
        raise ValueError(f"{path} has integers over time and no scale_factor; give scale")
    if len(known) > 1:
        raise ValueError(f"{path} has a scale_factor of its own; scale must be None")
    return check_scale(float(known[0]))
