"""The Parquet format in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embmap.formats.format import FLOATS, Format, Writer
from embmap.formats.parquet import FORMAT
from embmap.io.mapping import ByteSource

if TYPE_CHECKING:
    from contextlib import ExitStack

    from embmap.formats.exchange import Input, Output, Request

__all__ = ["ParquetFormat"]

_OTHER_COLUMNS = "other columns"  # as reports name them


class ParquetWriter(Writer):
    """Writes a column of words, if there are any, and a column of vectors."""

    dtypes = FLOATS
    holds = frozenset({"metadata"})
    needs_words = False
    keeps_repeats = True
    keeps_dtype = True

    def find_kept(self, output: Output) -> frozenset[str]:
        is_whole = output.original is not None and output.original.source.is_whole
        return self.holds | {_OTHER_COLUMNS} if is_whole else self.holds

    def write(self, output: Output) -> None:
        from embmap.formats.parquet.writer import write_table
        from embmap.io.atomic_write import replacing

        with replacing(output.path) as out:
            write_table(out, output)


class ParquetFormat(Format):
    """A table with a column of vectors, and often a column of words."""

    name = FORMAT
    title = "Parquet"
    extensions = (".parquet",)
    magic = b"PAR1"
    has_tensors = True
    writer = ParquetWriter()

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from embmap.formats.exchange import Input
        from embmap.formats.parquet.table import ParquetTable

        table = ParquetTable(data, request.tensor)
        vectors = table.vectors()
        if request.output_format is None:  # rows are put in the order of another input
            vectors = table.copied(vectors, request.folder, stack)
        has_others = len(table.schema) > 1 + (table.word is not None)
        return Input(
            format=self.name,
            words=table.words(request.limit),
            vectors=vectors,
            metadata=table.metadata,
            parts=(_OTHER_COLUMNS,) if has_others else (),
            data=data,
            is_whole=request.keeps_whole(self.name),
        )
