"""The vocabulary chunks: where the words are, and the parameters of their subwords."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from embmap.errors import FormatError, TruncatedError
from embmap.formats.finalfusion.chunks import FORMAT, Chunk, ChunkType
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.words.records import Records, scan

__all__ = ["VocabularyLayout", "content_end", "ngram_records", "parse_vocabulary"]


@dataclass(frozen=True, kw_only=True)
class VocabularyLayout:
    """Where the words of a vocabulary are, and the parameters of its subwords.

    Attributes
    ----------
    kind : str
        "simple", or the kind of a subword indexer.
    words : Records
        The words; empty in a floret vocabulary.
    n_ngrams : int
        Number of n-grams that an explicit vocabulary stores after its words.
    ngram_head, ngram_suffix : int
        Bytes between the words and the n-grams, and after each n-gram.
    n_buckets : int
        Number of buckets; -1 in an explicit vocabulary until the rows of the storage are known.
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


def parse_vocabulary(
    file: ByteSource, chunk: Chunk, forced: str | None
) -> tuple[VocabularyLayout, bool]:
    """Parse the fields before the words.

    Return also whether they come in the order of the v0 text. The dialect `forced` prescribes the
    order; without it, the bytes decide.
    """
    if chunk.type is ChunkType.FLORET:
        return _floret(file, chunk), False
    if chunk.type is ChunkType.SIMPLE:
        return _simple(file, chunk), False
    kind = cast(str, cast(ChunkType, chunk.type).vocabulary)
    readings: dict[bool, Callable[[ByteSource, Chunk, str], VocabularyLayout]]
    readings = {False: _subword_reference, True: _subword_text}
    if forced == "reference":
        readings.pop(True)
    elif forced in ("v0", "draft"):
        readings.pop(False)
    errors = []
    for by_text, reading in readings.items():
        # Read in the wrong order, the first fields give an impossible number of words.
        try:
            return reading(file, chunk, kind), by_text
        except FormatError as error:
            errors.append(error.with_traceback(None))  # a traceback would keep frames alive
    raise errors.pop(0)  # in a local variable, error and frame would keep each other alive


def _words(file: ByteSource, chunk: Chunk, offset: int, n: int, tail: int = 0) -> Records:
    """Return the records of a chunk's words; refuse more than fit before its last `tail` bytes."""
    if 4 * n + tail > chunk.end - offset:
        raise TruncatedError(
            f"{n} words cannot fit into {chunk.end - offset} bytes",
            path=file.path,
            format=FORMAT,
            offset=chunk.data_offset,
            field="number of words",
        )
    return Records(offset, chunk.end, n, FORMAT, exact=tail == 0)


def _simple(file: ByteSource, chunk: Chunk) -> VocabularyLayout:
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    n_words = reader.u64("number of words")
    return VocabularyLayout(kind="simple", words=_words(file, chunk, reader.offset, n_words))


def _lengths(reader: FieldReader) -> tuple[int, int]:
    min_n, max_n = reader.u32("min_n"), reader.u32("max_n")
    if not 1 <= min_n <= max_n:
        message = f"n-grams must have 1 to max_n code points, not {min_n} to {max_n}"
        raise reader.error(message, "min_n")
    return min_n, max_n


def _hashed_sizes(reader: FieldReader, kind: str) -> dict[str, Any]:
    """Return the fields of a vocabulary whose n-grams are hashed into buckets."""
    min_n, max_n = _lengths(reader)
    sizes = {"kind": kind, "min_n": min_n, "max_n": max_n}
    if kind == "fasttext":
        return sizes | {"n_buckets": reader.u32("number of buckets")}
    exponent = reader.u32("bucket exponent")
    if exponent > 63:
        message = "the exponent must be at most 63"
        raise reader.error(message, "bucket exponent", back=4, found=exponent)
    return sizes | {"exponent": exponent, "n_buckets": 1 << exponent}


def _subword_reference(file: ByteSource, chunk: Chunk, kind: str) -> VocabularyLayout:
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    n_words = reader.u64("number of words")
    if kind == "explicit":
        n_ngrams = reader.u64("number of n-grams")
        min_n, max_n = _lengths(reader)
        words = replace(_words(file, chunk, reader.offset, n_words, 12 * n_ngrams), exact=False)
        return VocabularyLayout(
            kind=kind, words=words, n_ngrams=n_ngrams, min_n=min_n, max_n=max_n, n_buckets=-1
        )
    sizes = _hashed_sizes(reader, kind)
    return VocabularyLayout(words=_words(file, chunk, reader.offset, n_words), **sizes)


def _subword_text(file: ByteSource, chunk: Chunk, kind: str) -> VocabularyLayout:
    """Parse a subword vocabulary of the v0 text: sizes come first, n-grams have no rows."""
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    if kind != "explicit":
        sizes = _hashed_sizes(reader, kind)
        n_words = reader.u64("number of words")
        return VocabularyLayout(words=_words(file, chunk, reader.offset, n_words), **sizes)
    min_n, max_n = _lengths(reader)
    n_words = reader.u64("number of words")
    # The number of n-grams follows the words, so the words are scanned first.
    words = replace(_words(file, chunk, reader.offset, n_words, 8), exact=False)
    end = words.offset + int(scan(file, words)[-1])
    n_ngrams = FieldReader(file, FORMAT, end, chunk.end).u64("number of n-grams")
    if 4 * n_ngrams > chunk.end - end - 8:
        raise TruncatedError(
            f"{n_ngrams} n-grams cannot fit into {chunk.end - end - 8} bytes",
            **reader.where("number of n-grams", end),
        )
    return VocabularyLayout(
        kind=kind,
        words=words,
        n_ngrams=n_ngrams,
        ngram_head=8,
        ngram_suffix=0,
        min_n=min_n,
        max_n=max_n,
        n_buckets=-1,
    )


def _floret(file: ByteSource, chunk: Chunk) -> VocabularyLayout:
    reader = FieldReader(file, FORMAT, chunk.data_offset, chunk.end)
    min_n, max_n = _lengths(reader)
    n_buckets = reader.u64("number of buckets")
    n_hashes = reader.u32("number of hashes")
    if not 1 <= n_hashes <= 4:
        message = "the number of hashes must be 1 to 4"
        raise reader.error(message, "number of hashes", back=4, found=n_hashes)
    if not 1 <= n_buckets < 2**63:
        message = "the number of buckets must be 1 to 2**63 - 1"
        raise reader.error(message, "number of buckets", found=n_buckets)
    seed = reader.u32("seed")
    bow, eow = reader.string("bow"), reader.string("eow")
    if reader.remaining:
        raise reader.error(f"{reader.remaining} bytes follow the floret vocabulary", "eow")
    return VocabularyLayout(
        kind="floret",
        words=Records(reader.offset, chunk.end, 0, FORMAT),
        min_n=min_n,
        max_n=max_n,
        n_buckets=n_buckets,
        n_hashes=n_hashes,
        seed=seed,
        bow=bow,
        eow=eow,
    )


def ngram_records(vocabulary: VocabularyLayout, words_end: int, limit: int) -> Records:
    """Return the n-grams of an explicit vocabulary, given the ends of its words and its chunk."""
    return Records(
        words_end + vocabulary.ngram_head,
        limit,
        vocabulary.n_ngrams,
        FORMAT,
        noun="n-gram",
        suffix=vocabulary.ngram_suffix,
    )


def content_end(file: ByteSource, vocabulary: VocabularyLayout) -> int:
    """Scan a vocabulary and return where it ends, whatever length its chunk states."""
    if vocabulary.kind == "floret":
        return vocabulary.words.limit
    words = replace(vocabulary.words, limit=file.nbytes, exact=False)
    end = words.offset + int(scan(file, words)[-1])
    if vocabulary.kind == "explicit":
        ngrams = replace(ngram_records(vocabulary, end, file.nbytes), exact=False)
        end = ngrams.offset + int(scan(file, ngrams)[-1])
    return end
