"""What stands inside each chunk of a finalfusion file: identifiers, fields, padding, sizes.

Pure parsing, as in :mod:`embmap.formats.finalfusion.layout`, which walks from chunk to chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from embmap.errors import FormatError, TruncatedError, UnsupportedError
from embmap.fields import FieldReader
from embmap.mapping import MappedFile
from embmap.records import Records, scan

__all__ = [
    "CHUNK_HEAD",
    "CHUNK_IDS",
    "CHUNK_NAMES",
    "DTYPES",
    "FORMAT",
    "VOCABULARIES",
    "Chunk",
    "Dense",
    "Norms",
    "Product",
    "VocabularyLayout",
    "content_end",
    "ngram_records",
    "parse_dense",
    "parse_draft_storage",
    "parse_norms",
    "parse_product",
    "parse_vocabulary",
]

FORMAT = "finalfusion"
VOCABULARIES = {1: "simple", 3: "bucket", 7: "fasttext", 8: "explicit", 9: "floret"}
CHUNK_NAMES = {
    1: "simple vocabulary",
    2: "ndarray",
    3: "bucket vocabulary",
    4: "quantized array",
    5: "metadata",
    6: "norms",
    7: "fastText vocabulary",
    8: "explicit vocabulary",
    9: "floret vocabulary",
}
CHUNK_IDS = {
    "simple": 1,
    "ndarray": 2,
    "bucket": 3,
    "quantized": 4,
    "metadata": 5,
    "norms": 6,
    "fasttext": 7,
    "explicit": 8,
    "floret": 9,
}
DTYPES = {
    0: "<i1",
    1: "<u1",
    2: "<i2",
    3: "<u2",
    4: "<i4",
    5: "<u4",
    6: "<i8",
    7: "<u8",
    10: "<f4",
    11: "<f8",
}
WIDE_TYPES = {8: "i128", 9: "u128"}
FLOAT32 = 10
UINT8 = 1
CHUNK_HEAD = 12
_PQ_FIXED = 36


@dataclass(frozen=True)
class Chunk:
    """One chunk as it stands in the file.

    Attributes
    ----------
    id : int
        Its identifier.
    name : str
        What the identifier means; "unknown" otherwise.
    offset : int
        Where its identifier stands.
    nbytes : int
        Bytes after its identifier and length.
    stated_nbytes : int
        What its length field says; other than `nbytes` where a writer got it wrong.
    """

    id: int
    name: str
    offset: int
    nbytes: int
    stated_nbytes: int

    @property
    def data_offset(self) -> int:
        """Where its data starts."""
        return self.offset + CHUNK_HEAD

    @property
    def end(self) -> int:
        """Where the next chunk starts."""
        return self.data_offset + self.nbytes


@dataclass(frozen=True)
class VocabularyLayout:
    """Where the words are and how subwords are made.

    Attributes
    ----------
    kind : str
        "simple", "bucket", "fasttext", "explicit" or "floret".
    words : Records
        The words; none for floret.
    n_ngrams : int
        Stored n-grams of an explicit vocabulary, which follow the words.
    ngram_head, ngram_suffix : int
        Bytes between words and n-grams, and after each n-gram.
    min_n, max_n, exponent, n_buckets, n_hashes, seed : int
        Parameters of the indexer, where the kind has them; n_buckets is -1 until the storage
        tells how many rows an explicit vocabulary has.
    bow, eow : str
        Brackets.
    """

    kind: str
    words: Records
    n_ngrams: int = 0
    ngram_head: int = 0
    ngram_suffix: int = 8
    min_n: int = 0
    max_n: int = 0
    exponent: int = 0
    n_buckets: int = 0
    n_hashes: int = 0
    seed: int = 0
    bow: str = "<"
    eow: str = ">"


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


def parse_vocabulary(
    file: MappedFile, chunk: Chunk, id: int, forced: str | None
) -> tuple[VocabularyLayout, bool]:
    """Parse the head of a vocabulary.

    Parameters
    ----------
    file : MappedFile
        The file.
    chunk : Chunk
        The chunk.
    id : int
        What to read it as; the draft's identifiers differ.
    forced : str or None
        The dialect, if the caller knows it.

    Returns
    -------
    vocabulary : VocabularyLayout
        Where its words are.
    by_text : bool
        Whether its fields stand in the order of the v0 text.

    Raises
    ------
    FormatError
        When a field is impossible.
    """
    kind = VOCABULARIES[id]
    if kind == "floret":
        return _floret(file, chunk), False
    if kind == "simple":
        return _simple(file, chunk), False
    readings: dict[bool, Callable[[MappedFile, Chunk, str], VocabularyLayout]]
    readings = {False: _subword_reference, True: _subword_text}
    if forced == "reference":
        readings.pop(True)
    elif forced in ("v0", "draft"):
        readings.pop(False)
    errors = []
    for by_text, reading in readings.items():
        # Read as a count, the first fields of the other order are an impossible number of words.
        try:
            return reading(file, chunk, kind), by_text
        except FormatError as error:
            errors.append(error)
    raise errors[0]


def _words(file: MappedFile, chunk: Chunk, offset: int, n: int, tail: int = 0) -> Records:
    """Return the records of a chunk's words, refusing more than can fit before `tail` bytes."""
    if 4 * n + tail > chunk.end - offset:
        raise TruncatedError(
            f"{n} words cannot fit into {chunk.end - offset} bytes",
            path=file.path,
            format=FORMAT,
            offset=chunk.data_offset,
            field="number of words",
        )
    return Records(offset, chunk.end, n, FORMAT, exact=tail == 0)


def _simple(file: MappedFile, chunk: Chunk) -> VocabularyLayout:
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    n_words = reader.u64("number of words")
    return VocabularyLayout("simple", _words(file, chunk, reader.offset, n_words))


def _lengths(reader: FieldReader) -> tuple[int, int]:
    min_n, max_n = reader.u32("min_n"), reader.u32("max_n")
    if not 1 <= min_n <= max_n:
        raise reader.error(f"n-grams of {min_n} to {max_n} code points do not exist", "min_n")
    return min_n, max_n


def _n_buckets(reader: FieldReader, kind: str) -> tuple[int, int]:
    """Return the exponent (0 for fastText) and the number of buckets."""
    value = reader.u32("bucket exponent" if kind == "bucket" else "number of buckets")
    if kind == "fasttext":
        return 0, value
    if value > 63:
        raise reader.error("an impossible bucket exponent", "bucket exponent", back=4, found=value)
    return value, 1 << value


def _subword_reference(file: MappedFile, chunk: Chunk, kind: str) -> VocabularyLayout:
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    n_words = reader.u64("number of words")
    if kind == "explicit":
        n_ngrams = reader.u64("number of n-grams")
        min_n, max_n = _lengths(reader)
        words = _words(file, chunk, reader.offset, n_words, 12 * n_ngrams)
        words = replace(words, exact=False)
        return VocabularyLayout(
            kind, words, n_ngrams=n_ngrams, min_n=min_n, max_n=max_n, n_buckets=-1
        )
    min_n, max_n = _lengths(reader)
    exponent, n_buckets = _n_buckets(reader, kind)
    words = _words(file, chunk, reader.offset, n_words)
    return VocabularyLayout(
        kind, words, min_n=min_n, max_n=max_n, exponent=exponent, n_buckets=n_buckets
    )


def _subword_text(file: MappedFile, chunk: Chunk, kind: str) -> VocabularyLayout:
    """Parse a subword vocabulary as the v0 text has it: sizes first, no n-gram indices."""
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    min_n, max_n = _lengths(reader)
    exponent = n_buckets = 0
    if kind != "explicit":
        exponent, n_buckets = _n_buckets(reader, kind)
    n_words = reader.u64("number of words")
    if kind != "explicit":
        words = _words(file, chunk, reader.offset, n_words)
        return VocabularyLayout(
            kind, words, min_n=min_n, max_n=max_n, exponent=exponent, n_buckets=n_buckets
        )
    # How many n-grams there are stands after the words, so these have to be walked over.
    words = replace(_words(file, chunk, reader.offset, n_words, 8), exact=False)
    end = words.offset + int(scan(file, words)[-1])
    n_ngrams = FieldReader(file, FORMAT, end, chunk.end).u64("number of n-grams")
    if 4 * n_ngrams > chunk.end - end - 8:
        raise TruncatedError(
            f"{n_ngrams} n-grams cannot fit into {chunk.end - end - 8} bytes",
            **reader.where("number of n-grams", end),
        )
    return VocabularyLayout(
        kind,
        words,
        n_ngrams=n_ngrams,
        ngram_head=8,
        ngram_suffix=0,
        min_n=min_n,
        max_n=max_n,
        n_buckets=-1,
    )


def _floret(file: MappedFile, chunk: Chunk) -> VocabularyLayout:
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    min_n, max_n = _lengths(reader)
    n_buckets = reader.u64("number of buckets")
    n_hashes = reader.u32("number of hashes")
    if not 1 <= n_hashes <= 4:
        raise reader.error("floret takes 1 to 4 hashes", "number of hashes", back=4, found=n_hashes)
    if not 1 <= n_buckets < 2**63:
        raise reader.error("no possible number of buckets", "number of buckets", found=n_buckets)
    seed = reader.u32("seed")
    bow, eow = reader.string("bow"), reader.string("eow")
    if reader.remaining:
        raise reader.error(f"{reader.remaining} bytes follow the floret vocabulary", "eow")
    return VocabularyLayout(
        "floret",
        Records(reader.offset, chunk.end, 0, FORMAT),
        min_n=min_n,
        max_n=max_n,
        n_buckets=n_buckets,
        n_hashes=n_hashes,
        seed=seed,
        bow=bow,
        eow=eow,
    )


def ngram_records(vocabulary: VocabularyLayout, words_end: int, limit: int) -> Records:
    """Return where the n-grams of an explicit vocabulary lie.

    Parameters
    ----------
    vocabulary : VocabularyLayout
        The vocabulary.
    words_end : int
        Where its last word ends.
    limit : int
        Where its chunk ends.

    Returns
    -------
    Records
        The n-grams.
    """
    return Records(
        words_end + vocabulary.ngram_head,
        limit,
        vocabulary.n_ngrams,
        FORMAT,
        noun="n-gram",
        suffix=vocabulary.ngram_suffix,
    )


def content_end(file: MappedFile, vocabulary: VocabularyLayout) -> int:
    """Walk over a vocabulary.

    Parameters
    ----------
    file : MappedFile
        The file.
    vocabulary : VocabularyLayout
        The vocabulary.

    Returns
    -------
    int
        Where it ends, whatever its chunk's length field says.

    Raises
    ------
    FormatError
        When it does not end within the file.
    """
    if vocabulary.kind == "floret":
        return vocabulary.words.limit
    words = replace(vocabulary.words, limit=file.nbytes, exact=False)
    end = words.offset + int(scan(file, words)[-1])
    if vocabulary.kind == "explicit":
        ngrams = replace(ngram_records(vocabulary, end, file.nbytes), exact=False)
        end = ngrams.offset + int(scan(file, ngrams)[-1])
    return end


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


def parse_dense(file: MappedFile, chunk: Chunk) -> Dense:
    """Parse an ndarray chunk.

    Parameters
    ----------
    file : MappedFile
        The file.
    chunk : Chunk
        The chunk.

    Returns
    -------
    Dense
        Offsets and sizes, inside the chunk.

    Raises
    ------
    FormatError
        When the sizes do not fill the chunk or a field is impossible.
    """
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    rows, columns = reader.u64("rows"), reader.u32("columns")
    dtype = _dtype(reader, "data type")
    itemsize = int(dtype[2:])
    nbytes = rows * columns * itemsize
    if rows >= 2**63:  # with no columns any number would fit
        raise reader.error("an impossible number of rows", "rows", found=rows)
    padding = _padding(reader, nbytes, itemsize, "matrix")
    return Dense(reader.offset + padding, rows, columns, dtype)


def parse_product(file: MappedFile, chunk: Chunk) -> Product:
    """Parse a quantized array chunk.

    Parameters
    ----------
    file : MappedFile
        The file.
    chunk : Chunk
        The chunk.

    Returns
    -------
    Product
        Offsets and sizes, inside the chunk.

    Raises
    ------
    FormatError
        When the sizes do not fill the chunk or a field is impossible.
    """
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
    if rows >= 2**63:
        raise reader.error("an impossible number of rows", "rows", found=rows)
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


def parse_draft_storage(file: MappedFile, chunk: Chunk) -> Dense | Product:
    """Parse the draft's matrix chunk, whose two kinds have one identifier: the sizes decide.

    Parameters
    ----------
    file : MappedFile
        The file.
    chunk : Chunk
        The chunk.

    Returns
    -------
    Dense or Product
        Offsets and sizes, inside the chunk.

    Raises
    ------
    FormatError
        When it can be neither.
    """
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


def parse_norms(file: MappedFile, chunk: Chunk) -> Norms:
    """Parse a norms chunk.

    Parameters
    ----------
    file : MappedFile
        The file.
    chunk : Chunk
        The chunk.

    Returns
    -------
    Norms
        Offsets and sizes, inside the chunk.

    Raises
    ------
    FormatError
        When the sizes do not fill the chunk or a field is impossible.
    """
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    n = reader.u64("number of norms")
    dtype = _dtype(reader, "data type")
    if dtype not in ("<f4", "<f8"):
        raise reader.error("norms are floating point", "data type", back=4, found=dtype)
    itemsize = int(dtype[2:])
    padding = _padding(reader, n * itemsize, itemsize, "norms")
    return Norms(reader.offset + padding, n, dtype)
