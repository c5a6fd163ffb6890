"""The storage chunks: matrices, quantized matrices and norms, their sizes and their padding.

Pure parsing, as in :mod:`embmap.formats.finalfusion.layout`, which walks from chunk to chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from embmap.errors import FormatError, UnsupportedError
from embmap.formats.finalfusion.chunks import DTYPES, FORMAT, Chunk
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource

__all__ = [
    "Dense",
    "Norms",
    "Product",
    "parse_dense",
    "parse_draft_storage",
    "parse_norms",
    "parse_product",
]

WIDE_TYPES = {8: "i128", 9: "u128"}
FLOAT32 = 10
UINT8 = 1
_PQ_FIXED = 36
_MOST_COLUMNS = 1 << 24


@dataclass(frozen=True)
class Dense:
    """A matrix stored as it is: offset in bytes, sizes, dtype as numpy spells it."""

    offset: int
    rows: int
    columns: int
    dtype: str


@dataclass(frozen=True)
class Product:
    """A product-quantized matrix: offsets in bytes (None where a part is absent) and sizes."""

    projection: int | None
    codebooks: int
    norms: int | None
    codes: int
    rows: int
    q: int
    d: int
    k: int

    @property
    def columns(self) -> int:
        """Length of a decoded row."""
        return self.d


@dataclass(frozen=True)
class Norms:
    """The norms of the words: offset in bytes, count, dtype as numpy spells it."""

    offset: int
    n: int
    dtype: str


def _dtype(reader: FieldReader, field: str) -> str:
    type_id = reader.u32(field)
    if type_id in WIDE_TYPES:
        raise UnsupportedError(
            f"numpy has no {WIDE_TYPES[type_id]}", **reader.where(field, reader.offset - 4)
        )
    if type_id not in DTYPES:
        raise reader.error("an unknown data type", field, back=4, found=type_id)
    return DTYPES[type_id]


def _padding(reader: FieldReader, nbytes: int, itemsize: int, what: str) -> int:
    """Return the padding before `nbytes` of data, which is whatever the chunk has left over."""
    padding = reader.remaining - nbytes
    if not 0 <= padding <= itemsize:
        raise reader.error(
            f"the chunk has {reader.remaining} bytes for {nbytes} bytes of {what}", what
        )
    return padding


def parse_dense(file: ByteSource, chunk: Chunk) -> Dense:
    """Parse an ndarray chunk."""
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    rows, columns = reader.u64("rows"), reader.u32("columns")
    dtype = _dtype(reader, "data type")
    itemsize = int(dtype[2:])
    nbytes = rows * columns * itemsize
    # Where there are no data their number of bytes tells nothing about the other size.
    if (rows and not columns) or (columns > _MOST_COLUMNS and not rows):
        raise reader.error(f"no matrix has {rows} rows and {columns} columns", "rows")
    padding = _padding(reader, nbytes, itemsize, "matrix")
    return Dense(reader.offset + padding, rows, columns, dtype)


def parse_product(file: ByteSource, chunk: Chunk) -> Product:
    """Parse a quantized array chunk."""
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    has_projection, has_norms = reader.u32("projection"), reader.u32("norms")
    q, d, k = (
        reader.u32("quantized length"),
        reader.u32("reconstructed length"),
        reader.u32("centroids"),
    )
    rows = reader.u64("rows")
    quantized_type = reader.u32("quantized type")
    reconstructed_type = reader.u32("reconstructed type")
    for field, value, allowed in (
        ("projection", has_projection, (0, 1)),
        ("norms", has_norms, (0, 1)),
        ("quantized type", quantized_type, (UINT8,)),
        ("reconstructed type", reconstructed_type, (FLOAT32,)),
    ):
        if value not in allowed:
            raise FormatError(
                "not a value that a quantized array can have",
                **reader.where(field, chunk.data_offset),
                found=value,
                expected=" or ".join(map(str, allowed)),
            )
    if not (q and d and 1 <= k <= 256) or d % q:
        raise reader.error(
            f"{d} dimensions cannot be {q} codes of {k} centroids", "quantized length"
        )
    sizes = (
        4 * d * d * has_projection,
        4 * k * d,
        4 * rows * has_norms,
        rows * q,
    )
    as_text = sizes[0] + d + sizes[2] + 4 * rows * q
    if 0 <= reader.remaining - as_text <= 4 and not 0 <= reader.remaining - sum(sizes) <= 4:
        raise UnsupportedError(
            "the sizes are those of the published text, which leave no room for the centroids; "
            "no program can have written a working quantizer like this",
            **reader.where("quantized array", chunk.offset),
        )
    start = reader.offset + _padding(reader, sum(sizes), 4, "quantized array")
    codebooks = start + sizes[0]
    norms = codebooks + sizes[1]
    return Product(
        start if has_projection else None,
        codebooks,
        norms if has_norms else None,
        norms + sizes[2],
        rows,
        q,
        d,
        k,
    )


def parse_draft_storage(file: ByteSource, chunk: Chunk) -> Dense | Product:
    """Parse the draft's matrix chunk, whose two kinds have one identifier: the sizes decide."""
    try:
        return parse_dense(file, chunk)
    except FormatError as as_dense:
        if chunk.nbytes < _PQ_FIXED:
            raise
        try:
            return parse_product(file, chunk)
        except UnsupportedError:
            raise
        except FormatError as as_product:
            raise FormatError(
                "the chunk is neither a matrix "
                f"({as_dense.message}) nor a quantized one ({as_product.message})",
                path=file.path,
                format=FORMAT,
                offset=chunk.offset,
                field="embedding matrix",
            ) from None


def parse_norms(file: ByteSource, chunk: Chunk) -> Norms:
    """Parse a norms chunk."""
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    n = reader.u64("number of norms")
    dtype = _dtype(reader, "data type")
    if dtype not in ("<f4", "<f8"):
        raise reader.error("norms are floating point", "data type", back=4, found=dtype)
    itemsize = int(dtype[2:])
    padding = _padding(reader, n * itemsize, itemsize, "norms")
    return Norms(reader.offset + padding, n, dtype)
