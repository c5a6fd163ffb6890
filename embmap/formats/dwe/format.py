"""The DWE format in the registry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import cast

from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError
from embmap.formats.dwe.file import DweFile
from embmap.formats.dwe.layout import DIALECTS, FORMAT, MAGIC
from embmap.formats.dwe.writer import quantize_blocks, write, write_steps
from embmap.formats.format import FLOATS, FileFormat, Input, Original, Output, Request, Writer
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Cut, Selected
from embmap.words.beside_writer import with_words_beside

__all__ = ["DweFormat"]

_OTHER_STEPS = "other time steps"  # as reports name them


class DweWriter(Writer):
    """Rounds the vectors of several inputs to integers of one scale, and writes a step for each."""

    dtypes = FLOATS
    dialects = DIALECTS
    stored_dtype = "int16"
    needs_words = False
    words_beside = True
    over_time = True

    keeps_repeats = True

    def find_kept(self, output: Output) -> frozenset[str]:
        return frozenset() if output.original is None else frozenset({_OTHER_STEPS})

    def write(self, output: Output) -> None:
        original, layout, group = output.original, output.dialect or "blocks", None
        if original is not None:
            file = cast(DweFile, original.source.file)
            layout = output.dialect or file.layout
            group = _keep_group(file, len(output.vectors), layout)
        is_rounded = original is not None and (not original.changed or original.dim is not None)
        if not is_rounded or output.bits is not None:
            bits = 8 if output.bits is None else output.bits
            quantized, scale = quantize_blocks(output.steps, bits)
            write_file = partial(write, quantized=quantized, scale=scale)
        else:
            steps = _find_integers(file, cast(Original, original))
            write_file = partial(write_steps, quantized=steps, scale=file.scale, wrap=True)
        with with_words_beside(output.path, output.words) as part:
            write_file(part, group=group, layout=layout, progress=output.progress)


def _keep_group(file: DweFile, n_words: int, layout: str) -> int | None:
    """Return the size of a group of a file if it suits so many words; None if it does not."""
    group = min(file.at(0).vectors.groups.layout.group, n_words)
    return None if layout == "blocks" and n_words % group else group


def _find_integers(file: DweFile, original: Original) -> Iterator[Matrix]:
    """Yield the integers of each time step."""
    if not math.isfinite(file.scale) or not file.scale:
        raise FormatError(
            f"the scale factor is {file.scale}",
            path=file.path,
            format=FORMAT,
            offset=36,
            field="scale_factor",
        )
    for t in range(file.num_timesteps):
        step: Matrix = file.at(t).vectors.quantized
        if original.rows is not None:
            step = Selected(step, original.rows)
        yield step if original.dim is None else Cut(step, original.dim)


class DweFormat(FileFormat):
    """Vectors over time, compressed."""

    name = FORMAT
    title = "DWE"
    extensions = (".dwe",)
    dialects = DIALECTS
    magic = MAGIC
    has_timesteps = True
    file_class = DweFile
    writer = DweWriter()

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        source = super().read(data, request, stack)
        source = replace(source, parts=(_OTHER_STEPS,))
        if not request.keeps_whole(self.name):
            return source
        file = cast(DweFile, source.file)
        steps = tuple(file.at(t).vectors for t in range(file.num_timesteps))
        return replace(source, steps=steps, is_whole=True)

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        if request.timestep is None and request.keeps_whole(self.name):
            request = replace(request, timestep=0)
        if request.timestep is None:
            raise ValueError(
                f"{file.path} has {file.num_timesteps} time steps; choose one, -1 is the last"
            )
        dwe = cast(DweFile, file)
        dwe.cache_nbytes = request.cache_nbytes
        try:
            return super().choose_matrix(dwe.at(request.timestep), request)
        except IndexError as error:
            raise ValueError(f"{file.path}: {error}") from None
