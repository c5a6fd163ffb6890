"""Handing words and vectors to Arrow and Parquet, without a copy where a file allows it.

Open files are streams of Arrow themselves: ``pyarrow.table(f)``, ``polars.DataFrame(f)`` and
``duckdb.from_arrow(pyarrow.RecordBatchReader.from_stream(f))`` read their words and vectors. Needs
the extra ``arrow``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from embmap.columns import GROUP_NUMBERS, columns_of, import_arrow, make_vectors
from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError
from embmap.formats.exchange import as_texts
from embmap.formats.parquet.writer import write_columns
from embmap.io.atomic_write import refuse_overwriting, replacing
from embmap.progress import Progress
from embmap.vectors.matrix import Matrix

__all__ = ["Compression", "array", "write_parquet"]

import_arrow()

Compression = Literal["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


def array(vectors: Matrix | npt.ArrayLike) -> Any:
    """Return vectors as an Arrow array of lists of a fixed size.

    The array shares the pages of a mapped file whose rows follow each other, and takes no memory.
    It stays valid when the file is closed. Vectors that are decoded or read are copied.

    Parameters
    ----------
    vectors : Matrix or array-like
        Shape (n, dim), or (n, T, dim) for trajectories: ``f.vectors``, another matrix of a file, or
        an array.

    Returns
    -------
    pyarrow.FixedSizeListArray
        n lists of dim numbers, or n lists of T lists.

    Raises
    ------
    ValueError
        If there are not two or three dimensions, or if vectors have no numbers.
    TypeError
        If `vectors` are not numbers.
    TruncatedError
        If the file shrank since it was opened.
    """
    if isinstance(vectors, EmbeddingFile):
        raise TypeError("array takes the vectors of a file, f.vectors, not the file")
    numbers = vectors.mapped() if isinstance(vectors, Matrix) else None
    found = np.asarray(vectors) if numbers is None else numbers
    if found.ndim not in (2, 3):
        raise ValueError(f"vectors must have 2 or 3 dimensions, not {found.ndim}")
    if found.dtype.kind not in "fiuV":  # bfloat16 is of the kind "V"
        raise TypeError(f"vectors must be numbers, not {found.dtype}")
    return make_vectors(found)


def write_parquet(
    path: str | os.PathLike[str],
    file: EmbeddingFile,
    *,
    compression: Compression = "none",
    progress: Progress | None = None,
) -> Path:
    """Write the words, vectors and metadata of a file as a Parquet file.

    The columns are ``word``, text, unless the file has no words, and ``vector``, lists of a fixed
    size. Vectors keep their dtype, and are written a few megabytes at a time. Metadata become text.
    :func:`embmap.convert` writes the same files and can also choose words, cut and scale vectors.

    Parameters
    ----------
    path : path-like
        The file to create or replace; it gets its name once it is complete.
    file : EmbeddingFile
        The open file, or a time step: ``f.at(t)``.
    compression : {"none", "snappy", "gzip", "brotli", "zstd", "lz4"}
        How pages are compressed. Vectors of fractions become hardly smaller.
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    FormatError
        If the file has no vectors, or a word that is not UTF-8.
    ValueError
        If an argument is not one of its choices, or if `path` is the open file.
    OSError
        If the file cannot be written.
    """
    if compression not in get_args(Compression):
        choices = ", ".join(get_args(Compression))
        raise ValueError(f"compression must be one of {choices}, not {compression!r}")
    target = Path(os.fsdecode(path))
    vectors = _vectors_of(file)
    refuse_overwriting([target], [file.path])
    schema, batches = columns_of(vectors, file.vocab, GROUP_NUMBERS, nullable=False)
    schema = schema.with_metadata(as_texts(file.metadata) or None)
    with replacing(target) as out:
        write_columns(out, schema, _report(batches, len(file), progress), compression)
    return target


def _vectors_of(file: EmbeddingFile) -> Matrix:
    """Return the vectors of a file, or raise FormatError if it has none."""
    if file.vectors is None:
        raise FormatError("the file holds no vectors", path=file.path, format=file.format)
    return file.vectors


def _report(batches: Iterator[Any], total: int, progress: Progress | None) -> Iterator[Any]:
    n = 0
    for batch in batches:
        yield batch
        n += batch.num_rows
        if progress is not None:
            progress("writing rows", n, total)
