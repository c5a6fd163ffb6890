"""Words and vectors as columns of Arrow: arrays over the bytes of a file, and streams of batches.

Vectors become lists of a fixed size. Rows that lie one after the other in a mapped file are handed
on without a copy, as immutable memory that stays valid after the file is closed. pyarrow is
imported when the first column is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import ArgumentError
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Selected

__all__ = [
    "GROUP_NUMBERS",
    "VECTOR",
    "WORD",
    "columns_of",
    "count_rows",
    "import_arrow",
    "make_columns",
    "make_vectors",
    "stream",
    "vector_type",
]

WORD, VECTOR = "word", "vector"
"""The names of the columns."""
GROUP_NUMBERS = 1 << 20
"""Numbers in a group of rows of Parquet; writing takes about 20 bytes of memory for each."""
_BATCH_NUMBERS = 1 << 21
FindWords = Callable[[int, int], Sequence[str]]
"""Returns the words from a row up to another."""


def import_arrow() -> Any:
    """Return pyarrow; raise an ImportError that names the extra if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        message = "Arrow and Parquet need pyarrow: pip install 'embmap[arrow]'"
        raise ImportError(message) from error
    return pyarrow


def vector_type(dtype: np.dtype[Any], sizes: Sequence[int], *, nullable: bool = True) -> Any:
    """Return the type of vectors with a dtype: lists of fixed sizes, nested if there are several.

    Numbers that are not `nullable` are written to Parquet three times as fast.
    """
    pa = import_arrow()
    found = pa.from_numpy_dtype(_plain(dtype))
    for size in reversed(sizes):
        if not size:
            raise ArgumentError("vectors must have at least one number for Arrow")
        found = pa.list_(found if nullable else pa.field("element", found, nullable=False), size)
    return found


def make_vectors(vectors: npt.NDArray[Any], type: Any = None) -> Any:
    """Return vectors, shape (n, dim) or (n, T, dim), as an array of lists of a fixed size.

    Numbers are copied only if they are not contiguous, aligned, and in the byte order of this
    machine.
    """
    pa = import_arrow()
    if type is None:
        type = vector_type(vectors.dtype, vectors.shape[1:])
    with np.errstate(over="ignore", invalid="ignore"):  # of values that the dtype lacks
        plain = vectors.astype(_plain(vectors.dtype), copy=False)
    numbers = np.require(plain, requirements=("C", "A")).reshape(-1)

    types = [type]
    while pa.types.is_fixed_size_list(types[-1]):
        types.append(types[-1].value_type)
    found = pa.Array.from_buffers(types.pop(), numbers.size, [None, pa.py_buffer(numbers)])
    for nested in reversed(types):
        found = pa.FixedSizeListArray.from_arrays(found, type=nested)
    return found


def make_columns(
    vectors: Matrix, words: FindWords | None, n_numbers: int, *, nullable: bool = True
) -> tuple[Any, Iterator[Any]]:
    """Return the schema of words, if there are any, and vectors, and an iterator of their batches.

    Batches have about `n_numbers` in their vectors.
    """
    pa = import_arrow()
    type = vector_type(vectors.dtype, vectors.shape[1:], nullable=nullable)
    fields = [pa.field(VECTOR, type, nullable)]
    if words is not None:
        fields.insert(0, pa.field(WORD, pa.string(), nullable))
    schema = pa.schema(fields)

    def make() -> Iterator[Any]:
        for start, block in vectors.blocks(count_rows(vectors, n_numbers)):
            columns = [make_vectors(block, type)]
            if words is not None:
                columns.insert(0, pa.array(words(start, start + len(block)), pa.string()))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return schema, make()


def count_rows(vectors: Matrix, n_numbers: int) -> int:
    """Return how many rows have about as many numbers, at least one."""
    return max(n_numbers // max(math.prod(vectors.shape[1:]), 1), 1)


def columns_of(
    vectors: Matrix, words: Sequence[str] | None, n_numbers: int, *, nullable: bool = True
) -> tuple[Any, Iterator[Any]]:
    """Return what :func:`make_columns` returns, for the words and vectors of a file."""
    if words is None:
        return make_columns(vectors, None, n_numbers, nullable=nullable)
    listed, n = words, len(words)
    if n > len(vectors):
        raise ValueError(f"{len(vectors)} rows for {n} words")
    if n < len(vectors):
        vectors = Selected(vectors, range(n))
    return make_columns(vectors, lambda *rows: listed[slice(*rows)], n_numbers, nullable=nullable)


def stream(vectors: Matrix, words: Sequence[str] | None) -> Any:
    """Return a RecordBatchReader of words and vectors, made a batch at a time as it is read."""
    return import_arrow().RecordBatchReader.from_batches(
        *columns_of(vectors, words, _BATCH_NUMBERS)
    )


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype that Arrow has, in the byte order of this machine: float32 for bfloat16."""
    return dtype.newbyteorder("=") if dtype.kind in "fiu" else np.dtype(np.float32)
