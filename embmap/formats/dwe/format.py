"""The DWE format in the registry."""

from __future__ import annotations

from typing import cast

from embmap.embedding_file import EmbeddingFile
from embmap.formats.dwe.file import DweFile
from embmap.formats.dwe.layout import DIALECTS, FORMAT, MAGIC
from embmap.formats.dwe.writer import quantize_blocks, write
from embmap.formats.format import FLOATS, FileFormat, Output, Request, Writer
from embmap.vectors.matrix import Matrix
from embmap.words.beside_writer import with_words_beside

__all__ = ["DweFormat"]


class DweWriter(Writer):
    """Rounds the vectors of several inputs to integers of one scale, and writes a step for each."""

    dtypes = FLOATS
    stored_dtype = "int16"
    needs_words = False
    words_beside = True
    over_time = True

    def write(self, output: Output) -> None:
        quantized, scale = quantize_blocks(output.steps, 8 if output.bits is None else output.bits)
        with with_words_beside(output.path, output.words) as part:
            write(
                part,
                quantized,
                scale=scale,
                layout=output.dialect or "blocks",
                progress=output.progress,
            )


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

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
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
