"""The layout of fastText's own models (``.bin``): arguments, a dictionary, a matrix.

The dictionary lists words and then labels, which are not words and are left out. The matrix has a
row for each word and for each bucket of n-grams. Only a scan of the dictionary shows where it is.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, TruncatedError, UnsupportedError
from embmap.formats.fasttext import ARGUMENTS, FORMAT, LOSSES, MAGIC, MODELS, SUPERVISED
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.vectors.dense import dense_matrix
from embmap.vectors.matrix import Matrix
from embmap.words.records import Records, scan
from embmap.words.subwords import FastTextIndexer

__all__ = [
    "DIALECTS",
    "FastTextLayout",
    "check_types",
    "find_rows",
    "has_first_header",
    "has_output_matrix",
    "parse",
]

DIALECTS = ("12", "11", "first")
_FIRST_HEADER = struct.Struct("<12id3iq")
_FIRST_LOSSES = (1, 2, 3)
_SMALL = 1 << 16
_SMALL_ARGUMENTS = ("window_size", "epoch", "ns", "word_ngrams", "min_n", "max_n")
_SUFFIX = 10  # bytes after a word: a NUL, how often it occurred, and whether it is a label


@dataclass(frozen=True, kw_only=True)
class FastTextLayout:
    """The dictionary, and what is known of the matrix after it.

    `indexer` gives n-grams their buckets; None in models without n-grams. `metadata` are the
    arguments of the training.
    """

    dialect: str
    words: Records
    n_labels: int
    dim: int
    indexer: FastTextIndexer | None
    metadata: dict[str, Any]

    @property
    def n_buckets(self) -> int:
        """Number of rows that follow the rows of words."""
        return 0 if self.indexer is None else self.indexer.n_buckets


def parse(source: ByteSource, dialect: str | None = None) -> FastTextLayout:
    """Parse everything before the dictionary, and check that the rest has room."""
    reader = FieldReader(source, FORMAT)
    found = "first" if has_first_header(source) else _read_version(reader)
    if dialect not in (None, found):
        raise reader.error(f"the model has version {found}, not {dialect}", "version", back=4)
    arguments = dict(zip(ARGUMENTS, (_i32(reader, name) for name in ARGUMENTS[:-1]), strict=False))
    (threshold,) = struct.unpack("<d", reader.raw(8, ARGUMENTS[-1]))
    size, n_words, n_labels = (_i32(reader, name) for name in ("size", "nwords", "nlabels"))
    if min(n_words, n_labels) < 0 or size != n_words + n_labels:
        raise reader.error(
            f"{size} entries cannot be {n_words} words and {n_labels} labels", "size", back=12
        )
    reader.raw(8, "ntokens")
    if found != "first":
        _refuse_pruned(reader)
    if arguments["dims"] < 1:
        raise reader.error("the dimension must be at least 1", "dim", found=arguments["dims"])
    layout = FastTextLayout(
        dialect=found,
        words=_entries(reader.offset, source.nbytes, n_words, "word"),
        n_labels=n_labels,
        dim=arguments["dims"],
        indexer=_indexer(arguments, found, reader),
        metadata=_describe(arguments, threshold),
    )
    needed = size * _SUFFIX + 16 + 4 * layout.dim * (n_words + layout.n_buckets)
    if needed > reader.remaining:
        find_rows(source, layout, int(scan(source, layout.words)[-1]))  # which raises, and why
    return layout


def find_rows(source: ByteSource, layout: FastTextLayout, nbytes: int) -> tuple[Matrix, Matrix]:
    """Return the rows of words and of buckets, float32; the words take `nbytes` in the file."""
    reader, n_stored = _find_matrix(source, layout, nbytes)
    n_words, n_buckets = layout.words.n, layout.n_buckets
    if n_stored < n_words + n_buckets:
        raise reader.error(
            f"the matrix has {n_stored} rows, {n_words + n_buckets} are needed for the words and "
            "buckets",
            "rows",
            back=16,
        )
    rows = dense_matrix(source, reader.offset, (n_words, layout.dim), "<f4")
    buckets = dense_matrix(source, reader.offset + rows.nbytes, (n_buckets, layout.dim), "<f4")
    return rows, buckets


def has_output_matrix(source: ByteSource, layout: FastTextLayout, nbytes: int) -> bool:
    """Return whether rows of the output matrix follow; the words take `nbytes` in the file."""
    reader, n_stored = _find_matrix(source, layout, nbytes)
    is_marked = layout.dialect != "first"  # a byte before the sizes says whether it is quantized
    start = reader.offset + 4 * n_stored * layout.dim + is_marked
    return start < source.nbytes and any(source.read_at_most(start, 8))


def _find_matrix(
    source: ByteSource, layout: FastTextLayout, nbytes: int
) -> tuple[FieldReader, int]:
    """Return a reader at the first row of the matrix, and the number of rows."""
    labels = _labels(layout, nbytes)
    offset = labels.offset + (int(scan(source, labels)[-1]) if labels.n else 0)
    reader = FieldReader(source, FORMAT, offset)
    if layout.dialect != "first":
        _refuse_quantized(reader)
    return reader, _count_rows(reader, layout.dim)


def check_types(source: ByteSource, layout: FastTextLayout, starts: npt.NDArray[Any]) -> None:
    """Refuse a dictionary in which a label comes before a word; `starts` are the words'."""
    labels = _labels(layout, int(starts[-1]))
    parts = [starts[1:].astype(np.int64) + layout.words.offset]
    if labels.n:
        parts.append(scan(source, labels)[1:].astype(np.int64) + labels.offset)
    places = np.concatenate(parts) - 1
    types = source.gather(places, np.ones_like(places))
    wrong = np.flatnonzero(types != (np.arange(types.size) >= layout.words.n))
    if wrong.size:
        raise FormatError(
            "the entries must be all words (0) first and then all labels (1)",
            path=source.path,
            format=FORMAT,
            offset=int(places[wrong[0]]),
            field=f"type of entry {int(wrong[0])}",
            found=int(types[wrong[0]]),
        )


def _entries(offset: int, limit: int, n: int, noun: str) -> Records:
    return Records(
        offset, limit, n, FORMAT, noun=noun, prefix=0, suffix=_SUFFIX, exact=False, end=b"\0"
    )


def _labels(layout: FastTextLayout, nbytes: int) -> Records:
    """Return the labels, which follow `nbytes` of words."""
    words = layout.words
    return _entries(words.offset + nbytes, words.limit, layout.n_labels, "label")


def has_first_header(source: ByteSource) -> bool:
    """Return whether a file starts like a model of the first version, which has no magic.

    Its header has the arguments of the training and the sizes of the dictionary: 17 numbers, whose
    bounds no text and no other format of embmap keeps.
    """
    if source.nbytes < _FIRST_HEADER.size:
        return False
    numbers = _FIRST_HEADER.unpack(source.read(0, _FIRST_HEADER.size))
    fields = dict(zip(ARGUMENTS, numbers, strict=False))
    size, n_words, n_labels, n_tokens = numbers[len(ARGUMENTS) :]
    return (
        1 <= fields["dims"] < _SMALL
        and fields["loss"] in _FIRST_LOSSES
        and fields["model"] in MODELS
        and fields["buckets"] >= 0
        and all(0 <= fields[name] < _SMALL for name in _SMALL_ARGUMENTS)
        and 0 <= fields["sampling_threshold"] < math.inf
        and size == n_words + n_labels
        and min(n_words, n_labels, n_tokens) >= 0 < size
    )


def _read_version(reader: FieldReader) -> str:
    """Step over the magic and the version, and return the dialect."""
    if reader.raw(4, "magic") != MAGIC:
        raise reader.error("not a fastText model", "magic", back=4)
    version = _i32(reader, "version")
    if str(version) not in DIALECTS:
        raise UnsupportedError(
            "only versions 11 and 12 of fastText models, and models without a version, can be read",
            found=version,
            **reader.where("version", 4),
        )
    return str(version)


def _refuse_pruned(reader: FieldReader) -> None:
    (n_pruned,) = struct.unpack("<q", reader.raw(8, "pruneidx_size"))
    if n_pruned > 0:
        raise UnsupportedError(
            "a pruned model has lost the buckets that its words need; use the model that it was "
            "made of",
            **reader.where("pruneidx_size", reader.offset - 8),
        )


def _refuse_quantized(reader: FieldReader) -> None:
    if reader.raw(1, "quant_input") != b"\0":
        raise UnsupportedError(
            "a quantized model (.ftz) cannot be read; use the .bin that it was made of",
            **reader.where("quant_input", reader.offset - 1),
        )


def _i32(reader: FieldReader, field: str) -> int:
    value: int = struct.unpack("<i", reader.raw(4, field))[0]
    return value


def _count_rows(reader: FieldReader, dim: int) -> int:
    """Step over the header of the matrix and return the number of its rows."""
    rows, columns = struct.unpack("<qq", reader.raw(16, "rows and columns"))
    if columns != dim or columns < 1 or rows < 0:
        raise reader.error(
            f"a matrix of {rows} x {columns} in a model of {dim} dimensions", "rows", back=16
        )
    if 4 * rows * columns > reader.remaining:
        raise TruncatedError(
            f"{rows} rows of {columns} float32 cannot fit into the {reader.remaining} bytes left",
            **reader.where("matrix"),
        )
    n_rows: int = rows
    return n_rows


def _indexer(
    arguments: dict[str, int], dialect: str, reader: FieldReader
) -> FastTextIndexer | None:
    min_n, max_n, n_buckets = (arguments[name] for name in ("min_n", "max_n", "buckets"))
    if dialect != "12" and arguments["model"] == SUPERVISED:
        max_n = 0  # these models were trained without n-grams, whatever their arguments are
    if max_n <= 0 or n_buckets <= 0:
        return None
    if min_n > max_n:
        raise reader.error(f"n-grams of {min_n} to {max_n} code points do not exist", "minn")
    return FastTextIndexer(max(min_n, 1), max_n, n_buckets)


def _describe(arguments: dict[str, int], threshold: float) -> dict[str, Any]:
    values: dict[str, Any] = dict(arguments)
    values["loss"] = LOSSES.get(arguments["loss"], "unknown")
    values["model"] = MODELS.get(arguments["model"], "unknown")
    # embmap reads only finite numbers from TOML.
    values[ARGUMENTS[-1]] = threshold if math.isfinite(threshold) else str(threshold)
    return values
