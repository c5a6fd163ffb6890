"""The CVC format in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from embmap.embedding_file import EmbeddingFile
from embmap.errors import ArgumentError
from embmap.formats.cvc.file import CvcFile
from embmap.formats.cvc.header import DIALECTS, FORMAT, MAGIC
from embmap.formats.cvc.layout import COMPRESSIONS
from embmap.formats.format import FileFormat, Writer
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix

if TYPE_CHECKING:
    from contextlib import ExitStack

    from embmap.formats.cvc.rewriting import Rewriting
    from embmap.formats.exchange import Input, Original, Output, Request

__all__ = ["CvcFormat"]

_PARTS = frozenset({"sections", "chunk metadata", "other columns"})


class CvcWriter(Writer):
    """Writes one matrix in chunks."""

    holds = frozenset({"metadata"})
    dialects = DIALECTS
    needs_words = False
    words_beside = True
    compressions = COMPRESSIONS["1.0"]
    keeps_repeats = True

    def find_kept(self, output: Output) -> frozenset[str]:
        """Return what the file holds of the input; a file that is written again loses little."""
        if output.original is None:
            return self.holds
        return self.holds | (_PARTS - _plan(output, output.original).find_lost())

    def write(self, output: Output) -> None:
        from embmap.formats.cvc.writer import write
        from embmap.words.beside_writer import with_words_beside

        if output.original is not None:
            with with_words_beside(output.path, output.words) as path:
                _plan(output, output.original).write(path)
            return
        compression = output.compression or "fp16"
        # 0.1 is what most readers know; only 1.0 has lossless chunks.
        layout = output.dialect or ("1.0" if compression == "lossless" else "0.1")
        metadata = _as_json(output)
        with with_words_beside(output.path, output.words) as path:
            write(
                path,
                output.vectors,
                compression=compression,
                layout=layout,
                metadata=metadata,
            )


def _plan(output: Output, original: Original) -> Rewriting:
    from embmap.formats.cvc.rewriting import CvcInput, Rewriting, Target

    source = cast(CvcInput, original.source)
    file = cast(CvcFile, source.file)
    rows = (block.astype("f4", copy=False) for _, block in output.vectors.blocks())
    values, dim = (rows, output.vectors.shape[1]) if original.changed else (None, None)
    names = list(file._columns) if source.column is None else [source.column]
    return Rewriting(
        source=file._file,
        layout=file._offsets,
        matrices=file._columns,
        columns=[
            Target(name=name, stored=file._columns[name], values=values, dim=dim) for name in names
        ],
        rows=original.rows,
        compression=output.compression,
        dialect=output.dialect,
        metadata=None if output.metadata is source.metadata else _as_json(output),
        progress=output.progress,
    )


def _as_json(output: Output) -> dict[str, Any]:
    """Return the metadata with text for dates and times, which TOML has and JSON has not."""
    import json

    values: dict[str, Any] = json.loads(json.dumps(output.values(), default=str))
    return values


class CvcFormat(FileFormat):
    """Chunks of vectors, in columns, compressed."""

    name = FORMAT
    title = "CVC"
    extensions = (".cvc",)
    dialects = DIALECTS
    magic = MAGIC
    has_tensors = True
    file_class = CvcFile
    writer = CvcWriter()

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        """Open an input: the chosen column, or every column if the output is a CVC file."""
        from embmap.formats.cvc.rewriting import CvcInput

        file = cast(CvcFile, stack.enter_context(self.open(data, request.dialect)))
        columns = file.columns
        several = len(columns) + len(file._offsets.unreadable) > 1
        if several and request.keeps_whole(self.name):
            floats = (each for each in columns.values() if each.dtype.kind == "f")
            matrix: Matrix = next(floats, next(iter(columns.values())))
        else:
            matrix = self.choose_matrix(file, request)
        parts = {
            "sections": bool(file.sections),
            "chunk metadata": any(chunk.metadata for chunk in file.chunks),
            "other columns": several,
        }
        return CvcInput(
            format=self.name,
            words=None,
            vectors=matrix,
            metadata=file.metadata,
            file=file,
            parts=tuple(part for part, is_there in parts.items() if is_there),
            column=request.tensor if several else None,
        )

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        columns = cast(CvcFile, file).columns
        if request.tensor is None and file.vectors is not None:
            return file.vectors
        try:
            return columns[request.tensor or ""]
        except KeyError:
            known = ", ".join(columns)
            raise ArgumentError(f"{file.path}: choose a column with {{tensor}}: {known}") from None
