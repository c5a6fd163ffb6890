"""A slow, obvious decoder and encoder for finalfusion files, written straight from the format.

It reads the layout every writer emits ("reference"), the v0 text to the letter, the ids of the
early draft and single chunks without a header ("bare"), all at once and into memory. It shares no
code with embmap: it is the oracle embmap is compared with, so nothing here is clever or fast.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAGIC = b"FiFu"
# Chunk ids 1 to 9 of the reference layout. The draft adds id 0, its simple vocabulary.
VOCABULARIES = {0: "simple", 1: "simple", 3: "bucket", 7: "fasttext", 8: "explicit", 9: "floret"}
NDARRAY, QUANTIZED, METADATA, NORMS = 2, 4, 5, 6
KNOWN_IDS = range(10)
# The vocabularies each layout can write.
VOCABULARY_IDS = {
    "reference": {"simple": 1, "bucket": 3, "fasttext": 7, "explicit": 8, "floret": 9},
    "v0": {"simple": 1, "bucket": 3, "fasttext": 7, "explicit": 8},
    "draft": {"simple": 0, "bucket": 3},
}
# Type ids of the format; numpy holds no 128-bit integers.
TYPES = ["i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "i128", "u128", "<f4", "<f8"]
U8, F32 = 1, 10


class InvalidFile(ValueError):
    """The bytes are not a finalfusion file."""


@dataclass
class Decoded:
    """The content of a finalfusion file; fields that the file does not have keep their default."""

    layout: str = "reference"
    chunk_ids: list[int] = field(default_factory=list)
    words: list[str] | None = None  # empty for floret, None without a vocabulary
    vocab_kind: str | None = None
    min_n: int | None = None
    max_n: int | None = None
    exponent: int | None = None
    n_buckets: int | None = None  # subword rows of any subword vocabulary
    n_hashes: int | None = None
    seed: int | None = None
    bow: str | None = None
    eow: str | None = None
    ngrams: list[tuple[str, int]] = field(default_factory=list)
    matrix: np.ndarray | None = None  # as stored, or reconstructed to float32
    storage_kind: str | None = None
    codes: np.ndarray | None = None  # (rows, q) uint8
    codebooks: np.ndarray | None = None  # (q, k, d / q) float32
    projection: np.ndarray | None = None  # (d, d) float32
    pq_norms: np.ndarray | None = None  # (rows,) float32
    norms: np.ndarray | None = None  # one per word
    metadata: str | None = None


# ---------------------------------------------------------------------------------------- decode


def decode(data: bytes) -> Decoded:
    """Decode a whole file, or raise InvalidFile."""
    out = Decoded()
    if data[:4] == MAGIC:
        version, n_listed = _unpack("<II", data, 4)
        if version != 0:
            raise InvalidFile(f"version {version}")
        position = 12 + 4 * n_listed
        if position > len(data):
            raise InvalidFile("the header's id list does not fit in the file")
    else:
        n_listed, position = 1, 0
        if _unpack("<I", data, 0)[0] not in range(1, 10):
            raise InvalidFile("neither the magic nor a chunk id at offset 0")

    while position < len(data):
        position = _read_chunk(out, data, position)

    if not out.chunk_ids:
        raise InvalidFile("no chunks")
    if len(out.chunk_ids) < n_listed:
        raise InvalidFile(f"{len(out.chunk_ids)} chunks where the header lists {n_listed}")
    if data[:4] != MAGIC:
        if len(out.chunk_ids) > 1:
            raise InvalidFile("several chunks without a header")
        out.layout = "bare"
    _check_counts(out)
    return out


def _read_chunk(out: Decoded, data: bytes, position: int) -> int:
    """Read the chunk at position into out and return the position after it."""
    chunk_id, length = _unpack("<IQ", data, position)
    start = position + 12
    stop = start + length
    previous_vocabulary = [i for i in out.chunk_ids if i in VOCABULARIES]
    out.chunk_ids.append(chunk_id)

    # Id 1 where the storage must be, after a vocabulary of the draft: the draft's storage.
    draft_storage = chunk_id == 1 and previous_vocabulary in ([0], [3])
    if chunk_id in VOCABULARIES and not draft_storage:
        if out.vocab_kind is not None:
            raise InvalidFile("a second vocabulary")
        return _read_vocabulary(out, data, chunk_id, start, stop)

    if stop > len(data):
        raise InvalidFile(f"chunk {chunk_id} does not fit in the file")
    chunk = data[start:stop]
    if draft_storage or chunk_id in (NDARRAY, QUANTIZED):
        if out.storage_kind is not None:
            raise InvalidFile("a second storage")
        if draft_storage:
            out.layout = "draft"
        if chunk_id == NDARRAY or (draft_storage and _is_ndarray(chunk)):
            _read_ndarray(out, chunk)
        else:
            _read_quantized(out, chunk)
    elif chunk_id == METADATA:
        if out.metadata is not None:
            raise InvalidFile("a second metadata chunk")
        out.metadata = _text(chunk)
    elif chunk_id == NORMS:
        if out.norms is not None:
            raise InvalidFile("a second norms chunk")
        n_norms, type_id = _unpack("<QI", chunk, 0)
        out.norms = _read_padded(chunk, 12, type_id, (n_norms,))
    return stop


def _read_vocabulary(out: Decoded, data: bytes, chunk_id: int, start: int, stop: int) -> int:
    """Read a vocabulary by the first field order that fits and return where its content ends."""
    kind = VOCABULARIES[chunk_id]
    problems = []
    # At most one order can succeed: the first eight bytes of the texts' order, read as a count of
    # words, exceed 2^32; the bytes of the reference order, read as min_n and max_n, make max_n 0.
    for text_order in (False, True):
        if text_order and kind not in ("bucket", "fasttext", "explicit"):
            continue
        try:
            fields, end = _vocabulary_fields(data, start, kind, text_order)
        except InvalidFile as problem:
            problems.append(str(problem))
            continue
        if end not in (stop, len(data)) and not _is_chunk_header(data, end):
            problems.append(f"content ends at {end}, chunk at {stop}")
            continue
        out.vocab_kind = kind
        for name, value in fields.items():
            setattr(out, name, value)
        if chunk_id == 0:
            out.layout = "draft"
        elif text_order:
            out.layout = "v0"
        return end
    raise InvalidFile(f"{kind} vocabulary: {'; '.join(problems)}")


def _vocabulary_fields(
    data: bytes, at: int, kind: str, text_order: bool
) -> tuple[dict[str, Any], int]:
    """Read one vocabulary's content at an offset: its fields and the offset after it."""
    if kind == "simple":
        (n_words,) = _unpack("<Q", data, at)
        words, at = _strings(data, at + 8, n_words)
        return {"words": words}, at

    fields: dict[str, Any] = {"bow": "<", "eow": ">"}
    if kind == "floret":
        min_n, max_n, n_buckets, n_hashes, seed = _unpack("<IIQII", data, at)
        (bow, eow), at = _strings(data, at + 24, 2)
        if not 1 <= n_hashes <= 4:
            raise InvalidFile(f"{n_hashes} hashes")
        fields.update(words=[], n_hashes=n_hashes, seed=seed, bow=bow, eow=eow)
    elif kind == "explicit":
        if text_order:
            min_n, max_n, n_words = _unpack("<IIQ", data, at)
            fields["words"], at = _strings(data, at + 16, n_words)
            (n_ngrams,) = _unpack("<Q", data, at)
            texts, at = _strings(data, at + 8, n_ngrams)
            fields["ngrams"] = [(text, index) for index, text in enumerate(texts)]
        else:
            n_words, n_ngrams, min_n, max_n = _unpack("<QQII", data, at)
            fields["words"], at = _strings(data, at + 24, n_words)
            fields["ngrams"] = []
            for _ in range(n_ngrams):
                (text,), at = _strings(data, at, 1)
                (index,) = _unpack("<Q", data, at)
                at += 8
                fields["ngrams"].append((text, index))
        n_buckets = len({index for _, index in fields["ngrams"]})
    else:
        if text_order:
            min_n, max_n, buckets, n_words = _unpack("<IIIQ", data, at)
        else:
            n_words, min_n, max_n, buckets = _unpack("<QIII", data, at)
        fields["words"], at = _strings(data, at + 20, n_words)
        if kind == "bucket":
            if buckets > 63:
                raise InvalidFile(f"bucket exponent {buckets}")
            fields["exponent"] = buckets
            n_buckets = 2**buckets
        else:
            n_buckets = buckets

    if min_n < 1 or max_n < min_n:
        raise InvalidFile(f"n-gram lengths {min_n} to {max_n}")
    if n_buckets < 1 and kind not in ("explicit", "fasttext"):
        raise InvalidFile("no buckets")
    fields.update(min_n=min_n, max_n=max_n, n_buckets=n_buckets)
    return fields, at


def _read_ndarray(out: Decoded, chunk: bytes) -> None:
    """Read the data of an ndarray chunk."""
    rows, cols, type_id = _unpack("<QII", chunk, 0)
    out.matrix = _read_padded(chunk, 16, type_id, (rows, cols))
    out.storage_kind = "ndarray"


def _is_ndarray(chunk: bytes) -> bool:
    """Say whether the sizes of an ndarray fill a chunk, where the draft leaves that open."""
    try:
        _read_ndarray(Decoded(), chunk)
    except InvalidFile:
        return False
    return True


def _read_quantized(out: Decoded, chunk: bytes) -> None:
    """Read the data of a product-quantized chunk and reconstruct every row."""
    header = _unpack("<IIIIIQII", chunk, 0)
    has_projection, has_norms, q, d, k, rows, quantized_type, reconstructed_type = header
    if has_projection > 1 or has_norms > 1:
        raise InvalidFile("a flag that is neither 0 nor 1")
    if q < 1 or d % q != 0 or not 1 <= k <= 256:
        raise InvalidFile(f"quantizer sizes {q}, {d}, {k}")
    if quantized_type != U8 or reconstructed_type != F32:
        raise InvalidFile(f"quantizer types {quantized_type}, {reconstructed_type}")

    arrays = [("codebooks", F32, (q, k, d // q)), ("codes", U8, (rows, q))]
    if has_norms:
        arrays.insert(1, ("pq_norms", F32, (rows,)))
    if has_projection:
        arrays.insert(0, ("projection", F32, (d, d)))
    padding = len(chunk) - 36 - sum(_nbytes(type_id, shape) for _, type_id, shape in arrays)
    if not 0 <= padding <= 4:
        raise InvalidFile(f"{padding} bytes of padding (the texts' sizes hold no quantizer)")
    at = 36 + padding
    for name, type_id, shape in arrays:
        setattr(out, name, _array(chunk, at, type_id, shape))
        at += _nbytes(type_id, shape)
    if np.any(out.codes >= k):
        raise InvalidFile("a code without a centroid")
    out.matrix = _reconstruct(out.codes, out.codebooks, out.projection, out.pq_norms)
    out.storage_kind = "quantized"


def _reconstruct(
    codes: np.ndarray,
    codebooks: np.ndarray,
    projection: np.ndarray | None,
    norms: np.ndarray | None,
) -> np.ndarray:
    """Reconstruct every row: concatenated centroids, times projection transposed, times norm."""
    n_subquantizers, _, width = codebooks.shape
    matrix = np.zeros((len(codes), n_subquantizers * width), dtype=np.float32)
    with np.errstate(all="ignore"):  # hostile floats overflow, that is their answer
        for row in range(len(codes)):
            for j in range(n_subquantizers):
                matrix[row, j * width : (j + 1) * width] = codebooks[j, codes[row, j]]
            if projection is not None:
                matrix[row] = matrix[row] @ projection.T
            if norms is not None:
                matrix[row] *= norms[row]
    return matrix


def _check_counts(out: Decoded) -> None:
    """Check what chunks say about each other."""
    if out.words is None:
        return
    if out.norms is not None and len(out.norms) != len(out.words):
        raise InvalidFile(f"{len(out.norms)} norms for {len(out.words)} words")
    if out.matrix is not None:
        n_subword_rows = out.n_buckets or 0
        if len(out.matrix) != len(out.words) + n_subword_rows:
            raise InvalidFile(f"{len(out.matrix)} rows, {len(out.words)} + {n_subword_rows} needed")
        for _, index in out.ngrams:
            if index >= len(out.matrix) - len(out.words):
                raise InvalidFile(f"n-gram index {index} without a row")


def _is_chunk_header(data: bytes, position: int) -> bool:
    """Say whether a known chunk that lies wholly inside the file starts at position."""
    if position + 12 > len(data):
        return False
    chunk_id, length = struct.unpack_from("<IQ", data, position)
    return chunk_id in KNOWN_IDS and position + 12 + length <= len(data)


def _unpack(layout: str, data: bytes, offset: int) -> tuple[int, ...]:
    """Unpack fixed fields."""
    if offset + struct.calcsize(layout) > len(data):
        raise InvalidFile(f"fields at {offset} do not fit")
    return struct.unpack_from(layout, data, offset)


def _text(raw: bytes) -> str:
    """Decode strict UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"not UTF-8: {error}") from error


def _strings(data: bytes, offset: int, count: int) -> tuple[list[str], int]:
    """Read count strings, each a u32 length and UTF-8 bytes, and return the offset after them."""
    strings: list[str] = []
    while len(strings) < count:
        (length,) = _unpack("<I", data, offset)
        offset += 4
        if offset + length > len(data):
            raise InvalidFile(f"a string at {offset} does not fit")
        strings.append(_text(data[offset : offset + length]))
        offset += length
    return strings, offset


def _read_padded(chunk: bytes, n_fixed: int, type_id: int, shape: tuple[int, ...]) -> np.ndarray:
    """Read the array that ends a chunk; what its size leaves over is the padding before it."""
    if type_id >= len(TYPES) or TYPES[type_id] in ("i128", "u128"):
        raise InvalidFile(f"type {type_id}: {TYPES[type_id] if type_id < 12 else 'unknown'}")
    padding = len(chunk) - n_fixed - _nbytes(type_id, shape)
    if not 0 <= padding <= np.dtype(TYPES[type_id]).itemsize:
        raise InvalidFile(f"{padding} bytes of padding")
    return _array(chunk, n_fixed + padding, type_id, shape)


def _nbytes(type_id: int, shape: tuple[int, ...]) -> int:
    """Return the size of an array in bytes."""
    return math.prod(shape) * np.dtype(TYPES[type_id]).itemsize


def _array(chunk: bytes, offset: int, type_id: int, shape: tuple[int, ...]) -> np.ndarray:
    """Copy an array out of a chunk that is known to hold it."""
    raw = chunk[offset : offset + _nbytes(type_id, shape)]
    try:
        return np.frombuffer(raw, TYPES[type_id]).reshape(shape).copy()
    except (ValueError, OverflowError) as error:  # no elements, and a length numpy cannot hold
        raise InvalidFile(f"shape {shape}: {error}") from error


# -------------------------------------------------------------------------------------- subwords


def ngrams(bracketed: str, min_n: int, max_n: int) -> list[str]:
    """List the n-grams of a bracketed word, longest first from each start, duplicates kept."""
    found = []
    for start in range(len(bracketed)):
        longest = min(max_n, len(bracketed) - start)
        found += [bracketed[start : start + n] for n in range(longest, min_n - 1, -1)]
    return found


def bucket_hash(ngram: str) -> int:
    """Hash like finalfusion: 64-bit FNV-1a over the length and the code points."""
    raw = struct.pack("<Q", len(ngram))
    for character in ngram:
        raw += struct.pack("<I", ord(character))
    h = 0xCBF29CE484222325
    for byte in raw:
        h ^= byte
        h = h * 0x100000001B3 % 2**64
    return h


def fasttext_hash(ngram: str) -> int:
    """Hash like fastText: 32-bit FNV-1a over the UTF-8 bytes, each sign-extended to 32 bits."""
    h = 2166136261
    for byte in ngram.encode("utf-8"):
        h ^= byte if byte < 128 else byte + 0xFFFFFF00
        h = h * 16777619 % 2**32
    return h


def murmur3_x64_128(data: bytes, seed: int) -> tuple[int, int]:
    """Hash with MurmurHash3 x64 128: the two 64-bit halves h1 and h2."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    n_whole = len(data) // 16 * 16
    for at in range(0, n_whole, 16):
        k1, k2 = struct.unpack_from("<QQ", data, at)
        h1 ^= _rotate(k1 * c1, 31) * c2 % 2**64
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) % 2**64
        h2 ^= _rotate(k2 * c2, 33) * c1 % 2**64
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) % 2**64
    tail = data[n_whole:]
    h2 ^= _rotate(int.from_bytes(tail[8:], "little") * c2, 33) * c1 % 2**64
    h1 ^= _rotate(int.from_bytes(tail[:8], "little") * c1, 31) * c2 % 2**64

    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) % 2**64
    h2 = (h2 + h1) % 2**64
    h1 = _mix(h1)
    h2 = _mix(h2)
    h1 = (h1 + h2) % 2**64
    h2 = (h2 + h1) % 2**64
    return h1, h2


def _rotate(value: int, bits: int) -> int:
    """Rotate the low 64 bits of a value to the left."""
    value %= 2**64
    return (value << bits | value >> (64 - bits)) % 2**64


def _mix(k: int) -> int:
    """Mix a 64-bit value: MurmurHash3's finalizer."""
    k ^= k >> 33
    k = k * 0xFF51AFD7ED558CCD % 2**64
    k ^= k >> 33
    k = k * 0xC4CEB9FE1A85EC53 % 2**64
    return k ^ k >> 33


def subword_rows(decoded: Decoded, word: str) -> list[int]:
    """List the matrix rows of a word's subwords in order, duplicates kept, known word or not."""
    if decoded.vocab_kind in (None, "simple"):
        return []
    if decoded.vocab_kind == "fasttext" and not decoded.n_buckets:
        return []
    bracketed = decoded.bow + word + decoded.eow
    subwords = ngrams(bracketed, decoded.min_n, decoded.max_n)
    n_words = len(decoded.words)
    if decoded.vocab_kind == "bucket":
        return [n_words + bucket_hash(s) % 2**decoded.exponent for s in subwords]
    if decoded.vocab_kind == "fasttext":
        return [n_words + fasttext_hash(s) % decoded.n_buckets for s in subwords]
    rows = []
    if decoded.vocab_kind == "explicit":
        for subword in subwords:
            indices = [index for known, index in decoded.ngrams if known == subword]
            rows += [n_words + index for index in indices[:1]]
        return rows
    for subword in [bracketed, *subwords]:
        h1, h2 = murmur3_x64_128(subword.encode("utf-8"), decoded.seed)
        lanes = [h1 % 2**32, h1 >> 32, h2 % 2**32, h2 >> 32]
        rows += [lane % decoded.n_buckets for lane in lanes[: decoded.n_hashes]]
    return rows


def unknown_vector(decoded: Decoded, word: str) -> np.ndarray | None:
    """Sum a word's subword rows and normalise; None if it has none, zeros if they sum to zero."""
    rows = subword_rows(decoded, word)
    if not rows:
        return None
    total = np.zeros(decoded.matrix.shape[1], dtype=np.float32)
    with np.errstate(all="ignore"):  # hostile floats overflow, that is their answer
        for row in rows:
            total += decoded.matrix[row].astype(np.float32)
        norm = np.float32(math.sqrt(sum(float(x) * float(x) for x in total)))
        return total / norm if norm != 0 else total


# ---------------------------------------------------------------------------------------- encode


def encode(
    content: Decoded,
    layout: str = "reference",
    list_norms: bool = True,
    explicit_len_bug: bool = False,
    bare: bool = False,
) -> bytes:
    """Encode what vocab_kind, storage_kind, norms and metadata say is there, or raise ValueError.

    The draft knows simple and bucket vocabularies and v0 no floret. Product-quantized arrays have
    their working sizes in every layout. `layout` and `chunk_ids` of the content are not used.
    """
    ids = []
    if content.metadata is not None:
        ids.append(METADATA)
    if content.vocab_kind is not None:
        if content.vocab_kind not in VOCABULARY_IDS[layout]:
            raise ValueError(f"layout {layout} has no {content.vocab_kind} vocabulary")
        ids.append(VOCABULARY_IDS[layout][content.vocab_kind])
    if content.storage_kind is not None:
        ids.append(NDARRAY if content.storage_kind == "ndarray" else QUANTIZED)
    if content.norms is not None:
        ids.append(NORMS)
    if bare and len(ids) != 1:
        raise ValueError("a bare file is one chunk")
    if layout == "draft" and content.storage_kind is not None and content.vocab_kind is None:
        raise ValueError("the draft's storage is recognised by the vocabulary before it")
    written = {i: 1 if layout == "draft" and i in (NDARRAY, QUANTIZED) else i for i in ids}

    out = b""
    if not bare:
        listed = [written[i] for i in ids if list_norms or i != NORMS]
        out = MAGIC + struct.pack(f"<II{len(listed)}I", 0, len(listed), *listed)
    for chunk_id in ids:
        start = len(out) + 12
        if chunk_id == METADATA:
            chunk = content.metadata.encode("utf-8")
        elif chunk_id == NDARRAY:
            chunk = _ndarray_chunk(content.matrix, start, layout)
        elif chunk_id == QUANTIZED:
            chunk = _quantized_chunk(content, start, layout)
        elif chunk_id == NORMS:
            chunk = struct.pack("<QI", len(content.norms), _type_id(content.norms))
            chunk += _padding(start + 12, content.norms.itemsize, layout) + _raw(content.norms)
        else:
            chunk = _vocabulary_chunk(content, layout)
        length = len(chunk)
        if explicit_len_bug and content.vocab_kind == "explicit" and chunk_id in VOCABULARIES:
            length -= 8 * len(content.ngrams)
        out += struct.pack("<IQ", written[chunk_id], length) + chunk
    return out


def _vocabulary_chunk(content: Decoded, layout: str) -> bytes:
    """Build the data of a vocabulary chunk."""
    kind = content.vocab_kind
    words = b"".join(_string(word) for word in content.words)
    n_words = len(content.words)
    if kind == "simple":
        return struct.pack("<Q", n_words) + words
    lengths = struct.pack("<II", content.min_n, content.max_n)
    if kind == "floret":
        fields = struct.pack("<QII", content.n_buckets, content.n_hashes, content.seed)
        return lengths + fields + _string(content.bow) + _string(content.eow)
    if kind == "explicit":
        n_ngrams = struct.pack("<Q", len(content.ngrams))
        if layout == "reference":
            strings = [_string(text) + struct.pack("<Q", index) for text, index in content.ngrams]
            return struct.pack("<Q", n_words) + n_ngrams + lengths + words + b"".join(strings)
        if [index for _, index in content.ngrams] != list(range(len(content.ngrams))):
            raise ValueError("v0 stores no n-gram indices but the positions")
        strings = [_string(text) for text, _ in content.ngrams]
        return lengths + struct.pack("<Q", n_words) + words + n_ngrams + b"".join(strings)
    buckets = struct.pack("<I", content.exponent if kind == "bucket" else content.n_buckets)
    if layout == "reference":
        return struct.pack("<Q", n_words) + lengths + buckets + words
    return lengths + buckets + struct.pack("<Q", n_words) + words


def _ndarray_chunk(matrix: np.ndarray, start: int, layout: str) -> bytes:
    """Build the data of an ndarray chunk that begins at an offset of the file."""
    fields = struct.pack("<QII", *matrix.shape, _type_id(matrix))
    return fields + _padding(start + 16, matrix.itemsize, layout) + _raw(matrix)


def _quantized_chunk(content: Decoded, start: int, layout: str) -> bytes:
    """Build the data of a product-quantized chunk that begins at an offset of the file."""
    q, k, width = content.codebooks.shape
    projection, norms = content.projection, content.pq_norms
    flags = (projection is not None, norms is not None)
    chunk = struct.pack("<IIIIIQII", *flags, q, q * width, k, len(content.codes), U8, F32)
    chunk += _padding(start + 36, 4, layout)
    for array in (projection, content.codebooks, norms, content.codes):
        if array is not None:
            chunk += _raw(array)
    return chunk


def _padding(position: int, itemsize: int, layout: str) -> bytes:
    """Pad to a multiple of the item size, in the reference layout by at least one byte."""
    if layout == "reference":
        return bytes(itemsize - position % itemsize)
    return bytes(-position % itemsize)


def _string(text: str) -> bytes:
    """Build a string: u32 length and UTF-8 bytes."""
    raw = text.encode("utf-8")
    return struct.pack("<I", len(raw)) + raw


def _type_id(array: np.ndarray) -> int:
    """Return the format's type id of an array."""
    return TYPES.index(array.dtype.newbyteorder("<").str.replace("|", ""))


def _raw(array: np.ndarray) -> bytes:
    """Return an array's elements, row-major and little endian."""
    return array.astype(array.dtype.newbyteorder("<")).tobytes()
