"""The vocabulary chunks: how many words there are, where, and how subwords are made of them.

Pure parsing, as in :mod:`embmap.formats.finalfusion.layout`, which walks from chunk to chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from embmap.errors import FormatError, TruncatedError
from embmap.formats.finalfusion.chunks import FORMAT, VOCABULARIES, Chunk
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.words.records import Records, scan

__all__ = ["VocabularyLayout", "content_end", "ngram_records", "parse_vocabulary"]


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


def parse_vocabulary(
    file: ByteSource, chunk: Chunk, id: int, forced: str | None
) -> tuple[VocabularyLayout, bool]:
    """Parse the head of a vocabulary."""
    kind = VOCABULARIES[id]
    if kind == "floret":
        return _floret(file, chunk), False
    if kind == "simple":
        return _simple(file, chunk), False
    readings: dict[bool, Callable[[ByteSource, Chunk, str], VocabularyLayout]]
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
            errors.append(error.with_traceback(None))  # which would keep this frame and callers'
    raise errors.pop(0)  # not by a name of this frame, which the error would keep alive


def _words(file: ByteSource, chunk: Chunk, offset: int, n: int, tail: int = 0) -> Records:
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


def _simple(file: ByteSource, chunk: Chunk) -> VocabularyLayout:
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


def _subword_reference(file: ByteSource, chunk: Chunk, kind: str) -> VocabularyLayout:
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


def _subword_text(file: ByteSource, chunk: Chunk, kind: str) -> VocabularyLayout:
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


def _floret(file: ByteSource, chunk: Chunk) -> VocabularyLayout:
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
    """Return where the n-grams of an explicit vocabulary lie."""
    return Records(
        words_end + vocabulary.ngram_head,
        limit,
        vocabulary.n_ngrams,
        FORMAT,
        noun="n-gram",
        suffix=vocabulary.ngram_suffix,
    )


def content_end(file: ByteSource, vocabulary: VocabularyLayout) -> int:
    """Walk over a vocabulary."""
    if vocabulary.kind == "floret":
        return vocabulary.words.limit
    words = replace(vocabulary.words, limit=file.nbytes, exact=False)
    end = words.offset + int(scan(file, words)[-1])
    if vocabulary.kind == "explicit":
        ngrams = replace(ngram_records(vocabulary, end, file.nbytes), exact=False)
        end = ngrams.offset + int(scan(file, ngrams)[-1])
    return end
