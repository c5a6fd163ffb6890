"""Writing finalfusion files in the reference dialect.

Words and vectors may be iterables of unknown length: the writer fills in sizes afterwards, so that
memory stays bounded. The file gets its name only once it is complete.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from embmap.formats.finalfusion.chunks import CHUNK_HEAD, DTYPES, ChunkType
from embmap.formats.finalfusion.layout import MAGIC
from embmap.io.atomic_write import replacing
from embmap.io.parsing import parse_toml
from embmap.vectors.blocks import Blocks, split_blocks
from embmap.vectors.product import Quantized
from embmap.words.repeats import find_repeats
from embmap.words.subwords import (
    BucketIndexer,
    ExplicitIndexer,
    FastTextIndexer,
    FloretIndexer,
    SubwordIndexer,
)

__all__ = ["encode_toml", "write", "write_parts"]

_TYPE_IDS = {np.dtype(name): number for number, name in DTYPES.items()}


def write(
    path: str | os.PathLike[str],
    words: Iterable[str] | None,
    vectors: Blocks | None,
    *,
    norms: npt.ArrayLike | None = None,
    metadata: str | Mapping[str, Any] | None = None,
    subwords: SubwordIndexer | None = None,
    quantized: Quantized | None = None,
) -> Path:
    """Write a finalfusion file.

    Parameters
    ----------
    path : path-like
        The file to create or replace; an existing file is kept until the new one is complete.
    words : iterable of str or None
        The words, all distinct; None with floret subwords.
    vectors : array-like, Matrix or iterable of blocks, or None
        Shape (rows, dim), or blocks of rows in order: a row for each word, then a row for each
        bucket of `subwords`. Integers of up to 64 bits, float32 or float64; None with `quantized`.
    norms : array-like, optional
        Shape (words,), stored as float32: the lengths of the words' vectors before scaling.
    metadata : str or mapping, optional
        TOML, or values to be written as TOML (needs the extra "toml"), within the bounds of
        :attr:`FinalfusionFile.metadata`.
    subwords : SubwordIndexer, optional
        Maps n-grams to rows: an indexer of :mod:`embmap.subwords`, or the `subwords` of an open
        file.
    quantized : Quantized, optional
        Codes and codebooks in place of `vectors`.

    Returns
    -------
    pathlib.Path
        The new file.

    Raises
    ------
    ValueError
        If sizes do not match, a word repeats or has no UTF-8, or the metadata are not TOML. An
        existing file is then left unchanged.
    TypeError
        If a word is not str, or `subwords` is not an indexer that the format can store.
    OSError
        If the file cannot be written.
    """
    if (vectors is None) == (quantized is None):
        raise ValueError("give either vectors or quantized")
    if isinstance(words, str | bytes):
        raise TypeError(f"words must be an iterable of str, not {type(words).__name__}")
    if subwords is not None and not isinstance(subwords, SubwordIndexer):
        raise TypeError(f"subwords must be a SubwordIndexer, not {type(subwords).__name__}")
    toml = None if metadata is None else encode_toml(metadata)
    if subwords is not None and subwords.kind == "floret":
        if words is not None and list(words):
            raise ValueError("a floret vocabulary has no words: words must be None")
        words = ()
    elif words is None:
        raise ValueError("words must not be None, except with floret subwords")
    norms = None if norms is None else np.asarray(norms, np.float32)
    write_parts(
        path, words, vectors, norms=norms, toml=toml, subwords=subwords, quantized=quantized
    )
    return Path(os.fsdecode(path))


def write_parts(
    path: str | os.PathLike[str],
    words: Iterable[str] | None,
    vectors: Blocks | None,
    *,
    norms: npt.ArrayLike | None,
    toml: bytes | None,
    subwords: SubwordIndexer | None,
    quantized: Quantized | None,
) -> None:
    """Write a file with the chunks of what is not None; norms of float64 stay float64."""
    ids = [] if toml is None else [ChunkType.METADATA]
    vocabulary = ChunkType.SIMPLE if subwords is None else ChunkType[subwords.kind.upper()]
    ids += [] if words is None else [vocabulary]
    if quantized is not None or vectors is not None:
        ids.append(ChunkType.NDARRAY if quantized is None else ChunkType.QUANTIZED)
    if norms is not None:
        ids.append(ChunkType.NORMS)
    with replacing(path) as handle:
        out = _Output(handle)
        out.write(MAGIC + struct.pack(f"<II{len(ids)}I", 0, len(ids), *ids))
        if toml is not None:
            out.begin(ChunkType.METADATA)
            out.write(toml)
            out.end()
        n_words, n_rows = None, None
        if words is not None:
            out.begin(vocabulary)
            n_words = _write_vocabulary(out, words, subwords)
            out.end()
        if quantized is not None:
            n_rows = _write_quantized(out, quantized)
        elif vectors is not None:
            n_rows = _write_dense(out, vectors)
        expected = (n_words or 0) + (0 if subwords is None else subwords.n_buckets)
        if None not in (n_words, n_rows) and n_rows != expected:
            buckets = "" if subwords is None else f" and {subwords.n_buckets} buckets"
            raise ValueError(
                f"vectors must have {expected} rows for {n_words} words{buckets}, not {n_rows}"
            )
        if norms is not None:
            _write_norms(out, np.asarray(norms), n_words)


class _Output:
    """A file that is written chunk by chunk; the length of a chunk is filled in at its end."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self._chunk = 0
        self.position = 0

    def write(self, data: Any) -> None:
        self.position += self._handle.write(data)

    def begin(self, type: ChunkType) -> None:
        self._chunk = self.position
        self.write(struct.pack("<IQ", type, 0))

    def end(self) -> None:
        """Fill in the length of the chunk begun last."""
        nbytes = self.position - self._chunk - CHUNK_HEAD
        self.patch(self._chunk + 4, struct.pack("<Q", nbytes))

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes written before."""
        self._handle.seek(offset)
        self._handle.write(data)
        self._handle.seek(self.position)

    def pad(self, itemsize: int) -> None:
        """Write 1 to `itemsize` zero bytes before data; readers expect at least one."""
        self.write(bytes(itemsize - self.position % itemsize))

    def strings(self, offset: int, n: int) -> Iterator[bytes]:
        """Return `n` strings that were written at an offset."""
        self._handle.seek(offset)
        for _ in range(n):
            (nbytes,) = struct.unpack("<I", self._handle.read(4))
            yield self._handle.read(nbytes)
        self._handle.seek(self.position)


def encode_toml(metadata: str | Mapping[str, Any]) -> bytes:
    """Return metadata as the bytes of TOML."""
    if not isinstance(metadata, str):
        if not isinstance(metadata, Mapping):
            raise TypeError(f"metadata must be str or a mapping, not {type(metadata).__name__}")
        try:
            import tomli_w
        except ImportError as error:
            raise ImportError(
                "a mapping of metadata needs tomli-w: pip install 'embmap[toml]', or pass TOML"
            ) from error
        try:
            metadata = tomli_w.dumps(metadata)
        except RecursionError:
            raise ValueError("metadata are nested too deeply") from None
    try:
        parse_toml(metadata)
    except ValueError as error:
        raise ValueError(f"metadata are not TOML: {error}") from None
    return metadata.encode()


def _write_vocabulary(out: _Output, words: Iterable[str], subwords: SubwordIndexer | None) -> int:
    """Write the data of the vocabulary chunk and return the number of words."""
    if isinstance(subwords, FloretIndexer):
        sizes = (subwords.min_n, subwords.max_n, subwords.n_buckets, subwords.n_hashes)
        out.write(struct.pack("<IIQII", *sizes, subwords.seed))
        for bracket in (subwords.bow, subwords.eow):
            _write_string(out, bracket.encode())
        return 0
    count_offset = out.position
    out.write(bytes(8))
    if isinstance(subwords, ExplicitIndexer):
        n_ngrams = len(subwords.vocabulary)
        out.write(struct.pack("<QII", n_ngrams, subwords.min_n, subwords.max_n))
    elif subwords is not None:
        out.write(struct.pack("<III", subwords.min_n, subwords.max_n, _bucket_field(subwords)))
    n_words = _write_words(out, words)
    out.patch(count_offset, struct.pack("<Q", n_words))
    if isinstance(subwords, ExplicitIndexer):
        vocabulary = subwords.vocabulary
        for number, ngram in vocabulary.encoded():
            (row,) = subwords.stored_rows(np.array([number])).tolist()
            _write_string(out, ngram)
            out.write(struct.pack("<Q", row))
    return n_words


def _bucket_field(subwords: SubwordIndexer) -> int:
    if isinstance(subwords, BucketIndexer):
        return subwords.exponent
    if isinstance(subwords, FastTextIndexer):
        return subwords.n_buckets
    raise TypeError(f"finalfusion files cannot store a {type(subwords).__name__}")


def _write_string(out: _Output, data: bytes) -> None:
    out.write(struct.pack("<I", len(data)) + data)


def _write_words(out: _Output, words: Iterable[str]) -> int:
    """Write words and return their number; refuse words that repeat."""
    start = out.position
    hashes = array("Q")
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"word {len(hashes)} must be str, not {type(word).__name__}")
        try:
            data = word.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"word {len(hashes)}, {word!r}, has no UTF-8: {error}") from None
        _write_string(out, data)
        hashes.append(xxh3_64_intdigest(data))
    n = len(hashes)

    def encoded(rows: npt.NDArray[np.int64]) -> Iterable[bytes]:
        return compress(out.strings(start, n), np.isin(np.arange(n), rows).tolist())

    repeats, firsts = find_repeats(np.frombuffer(hashes, np.uint64), encoded)
    if repeats.size:
        (again,) = encoded(repeats[:1])
        raise ValueError(f"word {repeats[0]}, {again.decode()!r}, repeats word {firsts[0]}")
    return n


def _write_dense(out: _Output, vectors: Blocks) -> int:
    """Write the chunk of a matrix and return the number of rows."""
    out.begin(ChunkType.NDARRAY)
    head = out.position
    n_rows = 0
    dtype = None
    columns = 0
    for block in split_blocks(vectors):
        if block.ndim != 2:
            raise ValueError(f"vectors must have two dimensions, not {block.ndim}")
        if dtype is None:
            dtype, columns = _storable(block.dtype), block.shape[1]
            if not columns and len(block):
                raise ValueError("vectors must have at least one column")
            out.write(struct.pack("<QII", 0, columns, _TYPE_IDS[dtype]))
            out.pad(dtype.itemsize)
        if block.shape[1] != columns:
            raise ValueError(f"row {n_rows} must have {columns} columns, not {block.shape[1]}")
        if _storable(block.dtype) != dtype:
            raise ValueError(f"row {n_rows} must be {dtype}, not {block.dtype}")
        out.write(np.ascontiguousarray(block, dtype).data.cast("B") if block.size else b"")
        n_rows += len(block)
    if dtype is None:
        raise ValueError("vectors must have a block; for no rows, pass an array of shape (0, dim)")
    out.patch(head, struct.pack("<Q", n_rows))
    out.end()
    return n_rows


def _storable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    little = dtype.newbyteorder("<")
    if little not in _TYPE_IDS:
        names = ", ".join(str(known) for known in _TYPE_IDS)
        raise ValueError(f"vectors must be one of {names}, not {dtype}")
    return little


def _write_quantized(out: _Output, quantized: Quantized) -> int:
    """Write the chunk of a quantized matrix and return the number of rows."""
    codebooks = np.ascontiguousarray(quantized.codebooks, "<f4")
    if codebooks.ndim != 3 or not codebooks.size or codebooks.shape[1] > 256:
        raise ValueError(
            "codebooks must have the shape (q, k, d / q) with k from 1 to 256, "
            f"not {codebooks.shape}"
        )
    q, k, part = codebooks.shape
    d = q * part
    projection, norms = quantized.projection, quantized.norms
    flags = int(projection is not None), int(norms is not None)
    out.begin(ChunkType.QUANTIZED)
    out.write(struct.pack("<5I", *flags, q, d, k))
    rows_offset = out.position
    out.write(struct.pack("<QII", 0, _TYPE_IDS[np.dtype("<u1")], _TYPE_IDS[np.dtype("<f4")]))
    out.pad(4)
    if projection is not None:
        out.write(_as_float32(projection, (d, d), "projection").data.cast("B"))
    out.write(codebooks.data.cast("B"))
    if norms is not None:
        norms = _as_float32(norms, (len(quantized.codes),), "norms")
        out.write(norms.data.cast("B") if norms.size else b"")
    n_rows = 0
    for block in split_blocks(quantized.codes):
        if block.ndim != 2 or block.shape[1] != q or block.dtype != np.uint8:
            raise ValueError(
                f"codes must be uint8 of shape (rows, {q}), not {block.dtype} of {block.shape}"
            )
        if block.size and int(block.max()) >= k:
            raise ValueError(f"codes must be below {k}, the number of centroids, not {block.max()}")
        out.write(np.ascontiguousarray(block).data.cast("B") if block.size else b"")
        n_rows += len(block)
    if norms is not None and len(norms) != n_rows:
        raise ValueError(f"norms of codes must be {n_rows}, not {len(norms)}")
    out.patch(rows_offset, struct.pack("<Q", n_rows))
    out.end()
    return n_rows


def _as_float32(
    values: npt.ArrayLike, shape: tuple[int, ...], what: str
) -> npt.NDArray[np.float32]:
    array = np.ascontiguousarray(values, "<f4")
    if array.shape != shape:
        raise ValueError(f"{what} must have the shape {shape}, not {array.shape}")
    return array


def _write_norms(out: _Output, norms: npt.NDArray[Any], n_words: int | None) -> None:
    shape = norms.shape if n_words is None else (n_words,)
    values: npt.NDArray[Any] = _as_float32(norms, shape, "norms")
    if norms.dtype == np.float64:
        values = np.ascontiguousarray(norms, "<f8")
    out.begin(ChunkType.NORMS)
    out.write(struct.pack("<QI", len(values), _TYPE_IDS[values.dtype]))
    out.pad(values.itemsize)
    out.write(values.data.cast("B") if values.size else b"")
    out.end()
