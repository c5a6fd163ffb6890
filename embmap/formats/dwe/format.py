"""The DWE format in the registry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError
from embmap.formats.dwe.file import DweFile
from embmap.formats.dwe.layout import DIALECTS, FORMAT, MAGIC
from embmap.formats.format import FLOATS, OTHER_STEPS, FileFormat, Writer
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix

if TYPE_CHECKING:
    from contextlib import ExitStack

    from embmap.formats.exchange import Input, Output, Request

__all__ = ["DweFormat"]


class DweWriter(Writer):
    """Writes a time step for each input, or every time step of one."""

    dtypes = FLOATS
    dialects = DIALECTS
    stored_dtype = "int16"
    needs_words = False
    words_beside = True
    over_time = True

    keeps_repeats = True

    def find_kept(self, output: Output) -> frozenset[str]:
        return frozenset({OTHER_STEPS})

    def write(self, output: Output) -> None:
        from embmap.formats.dwe.writer import write_steps
        from embmap.words.beside_writer import with_words_beside

        file = None if output.original is None else output.original.source.file
        layout, group = output.dialect or DIALECTS[0], None
        if isinstance(file, DweFile):
            layout = output.dialect or file.layout
            group = _keep_group(file, len(output.vectors), layout)
        with with_words_beside(output.path, output.words) as part:
            write_steps(
                part,
                output.steps,
                scale=output.scale,
                group=group,
                layout=layout,
                progress=output.progress,
                wrap=True,
            )


def _keep_group(file: DweFile, n_words: int, layout: str) -> int | None:
    """Return the size of a group of a file if it suits so many words; None if it does not."""
    group = min(file.at(0).vectors.groups.layout.group, n_words)
    return None if layout == "blocks" and n_words % group else group


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
        from dataclasses import replace

        source = replace(super().read(data, request, stack), parts=(OTHER_STEPS,))
        file = cast(DweFile, source.file)
        if request.choose_step(file.path, file.num_timesteps) is not None:
            return source
        if not math.isfinite(file.scale) or not file.scale:
            raise FormatError(
                f"the scale factor is {file.scale}",
                path=file.path,
                format=FORMAT,
                offset=36,
                field="scale_factor",
            )
        steps = tuple(file.at(t).vectors.quantized for t in range(file.num_timesteps))
        return replace(source, steps=steps, scale=file.scale)

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        dwe = cast(DweFile, file)
        dwe.cache_nbytes = request.cache_nbytes
        t = request.choose_step(file.path, dwe.num_timesteps)
        return super().choose_matrix(dwe.at(t or 0), request)
