"""The storage chunks: matrices, quantized matrices and norms, with their sizes and padding."""

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
    """A matrix: its offset in bytes, its sizes, and its dtype as numpy spells it."""

    offset: int
    rows: int
    columns: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product-quantized matrix: offsets in bytes, None for an absent part, and sizes."""

    projection: int | None
    codebooks: int
    norms: int | None
    codes: int
    rows: int
    q: int
    d: int
    k: int


@dataclass(frozen=True)
class Norms:
    """The norms of the words: their offset in bytes, count, and dtype as numpy spells it."""

    offset: int
    n: int
    dtype: str


def _dtype(reader: FieldReader, field: str) -> str:
    type_id = reader.u32(field)
    if type_id in WIDE_TYPES:
        raise UnsupportedError(
            f"numpy has no type {WIDE_TYPES[type_id]}", **reader.where(field, reader.offset - 4)
        )
    if type_id not in DTYPES:
        raise reader.error("the data type is not known", field, back=4, found=type_id)
    return DTYPES[type_id]


def _padding(reader: FieldReader, nbytes: int, itemsize: int, what: str) -> int:
    """Return the size of the padding before `nbytes` of data, which end where the chunk ends."""
    padding = reader.remaining - nbytes
    if not 0 <= padding <= itemsize:
        raise reader.error(
            f"the {what} needs {nbytes} bytes, but the chunk has {reader.remaining}", what
        )
    return padding


def parse_dense(file: ByteSource, chunk: Chunk) -> Dense:
    """Parse an ndarray chunk."""
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    rows, columns = reader.u64("rows"), reader.u32("columns")
    dtype = _dtype(reader, "data type")
    itemsize = int(dtype[2:])
    nbytes = rows * columns * itemsize
    # If one size is 0, the number of bytes does not limit the other.
    if (rows and not columns) or (columns > _MOST_COLUMNS and not rows):
        raise reader.error(f"a matrix cannot have {rows} rows and {columns} columns", "rows")
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
                "a quantized array cannot have this value",
                **reader.where(field, chunk.data_offset),
                found=value,
                expected=" or ".join(map(str, allowed)),
            )
    if not (q and d and 1 <= k <= 256) or d % q:
        raise reader.error(
            f"{q} codes of {k} centroids cannot encode {d} dimensions", "quantized length"
        )
    projection_nbytes, norms_nbytes = 4 * d * d * has_projection, 4 * rows * has_norms
    nbytes = projection_nbytes + 4 * k * d + norms_nbytes + rows * q
    as_text = projection_nbytes + d + norms_nbytes + 4 * rows * q
    if 0 <= reader.remaining - as_text <= 4 and not 0 <= reader.remaining - nbytes <= 4:
        raise UnsupportedError(
            "the chunk has the size that the published text prescribes, which leaves no room for "
            "the centroids, so that its codes cannot be decoded",
            **reader.where("quantized array", chunk.offset),
        )
    start = reader.offset + _padding(reader, nbytes, 4, "quantized array")
    codebooks = start + projection_nbytes
    norms = codebooks + 4 * k * d
    return Product(
        projection=start if has_projection else None,
        codebooks=codebooks,
        norms=norms if has_norms else None,
        codes=norms + norms_nbytes,
        rows=rows,
        q=q,
        d=d,
        k=k,
    )


def parse_draft_storage(file: ByteSource, chunk: Chunk) -> Dense | Product:
    """Parse a matrix of the draft: both kinds have the same identifier, so the sizes decide."""
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
        raise reader.error("norms must be floating point", "data type", back=4, found=dtype)
    itemsize = int(dtype[2:])
    padding = _padding(reader, n * itemsize, itemsize, "norms")
    return Norms(reader.offset + padding, n, dtype)
