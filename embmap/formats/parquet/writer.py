"""Writing Parquet: a column of words and one of vectors, in groups of rows.

Vectors are not compressed unless the caller asks for it: fractions hardly become smaller, and
reading them would take several times as long. Neither words nor numbers may be null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, cast

import numpy as np

from embmap.columns import (
    GROUP_NUMBERS,
    WORD,
    count_rows,
    import_arrow,
    make_columns,
    make_vectors,
    vector_type,
)
from embmap.formats.exchange import Original, Output
from embmap.formats.parquet.table import ParquetTable
from embmap.io.mapping import ByteSource

__all__ = ["write_columns", "write_table"]


def write_table(out: BinaryIO, output: Output) -> None:
    """Write a table; an input that is kept as a whole keeps its other columns."""
    texts: dict[Any, Any] = dict(output.texts())
    original = output.original
    if original is not None and original.source.is_whole:
        kept = ParquetTable(cast(ByteSource, original.source.data))
        if _is_same(kept, original, output):
            output.copy_bytes(out, cast(ByteSource, original.source.data))
            return
        schema = _merge_schema(kept, output)
        tables = _merge_tables(kept, schema, original, output)
        texts |= kept.library_metadata
    else:
        words = None if output.words is None else output.words.decoded
        schema, tables = make_columns(output.vectors, words, GROUP_NUMBERS, nullable=False)
    write_columns(out, schema.with_metadata(texts or None), tables)


def write_columns(
    out: BinaryIO, schema: Any, tables: Iterable[Any], compression: str = "none"
) -> None:
    """Write tables, or record batches, as a group of rows each."""
    pa = import_arrow()
    from pyarrow import parquet

    sink = pa.PythonFile(out, "w")
    options = {"compression": compression, "use_dictionary": False}
    with parquet.ParquetWriter(sink, schema, **options) as writer:
        for table in tables:
            writer.write(table.replace_schema_metadata(schema.metadata), table.num_rows)


def _is_same(kept: ParquetTable, original: Original, output: Output) -> bool:
    """Whether an output has the same rows, words and metadata as the table that is kept."""
    has_same_words = (kept.word is not None or output.words is None) and not original.words_changed
    return original.is_whole and has_same_words and output.metadata is original.source.metadata


def _merge_schema(kept: ParquetTable, output: Output) -> Any:
    """Return the columns of a table that is kept, with other words and vectors."""
    pa = import_arrow()
    schema = kept.schema
    type = vector_type(output.vectors.dtype, output.vectors.shape[1:], nullable=False)
    number = schema.get_field_index(kept.vector)
    schema = schema.set(number, pa.field(kept.vector, type, nullable=False))
    if output.words is None:
        return schema
    field = pa.field(kept.word or WORD, pa.string(), nullable=False)
    if kept.word is not None:
        return schema.set(schema.get_field_index(kept.word), field)
    if WORD in schema.names:
        raise ValueError(f"the input has a column {WORD!r} of {schema.field(WORD).type}; rename it")
    return schema.insert(0, field)


def _merge_tables(
    kept: ParquetTable, schema: Any, original: Original, output: Output
) -> Iterator[Any]:
    """Yield tables of new words and vectors and of the other columns that are kept."""
    pa = import_arrow()
    words, vectors = output.words, output.vectors
    word = None if words is None else kept.word or WORD
    others = [name for name in schema.names if name not in (word, kept.vector)]
    rows = count_rows(vectors, GROUP_NUMBERS)
    for start, stop, found in _other_columns(kept, others, original, rows):
        columns = {name: found[name] for name in others}
        type = schema.field(kept.vector).type
        columns[kept.vector] = make_vectors(vectors[start:stop], type)
        if words is not None:
            columns[cast(str, word)] = pa.array(words.decoded(start, stop), pa.string())
        yield pa.table([columns[name] for name in schema.names], schema=schema)


def _other_columns(
    kept: ParquetTable, names: list[str], original: Original, n_rows: int
) -> Iterator[tuple[int, int, Any]]:
    """Yield ranges of rows of the output, each with the columns that are kept."""
    pa = import_arrow()
    rows = original.rows
    if not names:
        n = kept.n_rows if rows is None else len(rows)
        yield from ((i, min(i + n_rows, n), None) for i in range(0, n, n_rows))
        return
    begin = end = 0
    waiting: list[Any] = []
    for start, batch in kept.batches(names, n_rows):
        stop = start + batch.num_rows
        if rows is None:
            end = stop
        else:
            first, end = np.searchsorted(rows, (start, stop)).tolist()
            batch = batch.take(pa.array(rows[first:end] - start))
        waiting.append(batch)
        if end - begin >= n_rows:
            yield begin, end, pa.Table.from_batches(waiting)
            begin, waiting = end, []
    if end > begin:
        yield begin, end, pa.Table.from_batches(waiting)
