"""Reading fastText's own models (``.bin``): a dictionary, and a matrix of words and buckets.

The labels of a supervised model are not words and are left out.
"""

from __future__ import annotations

import json
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
from embmap.words.interleaved import step_over_words
from embmap.words.subwords import FastTextIndexer
from embmap.words.table import WordTable

__all__ = ["FastTextModel", "has_first_header", "read_fasttext"]

_FIRST = 0  # for the first version, which has no number
_VERSIONS = (11, 12)
_FIRST_HEADER = struct.Struct("<12id3iq")
_FIRST_LOSSES = (1, 2, 3)
_SMALL = 1 << 16
_SMALL_ARGUMENTS = ("window_size", "epoch", "ns", "word_ngrams", "min_n", "max_n")
_COUNT_AND_TYPE = 9  # bytes after a word: how often it occurred, and whether it is a label


@dataclass(frozen=True, kw_only=True)
class FastTextModel:
    """A model: its words, without labels, and the arguments of its training as TOML.

    `rows` has a row for each word and `buckets` one for each bucket, float32; `indexer` gives
    n-grams their buckets.
    """

    words: WordTable
    rows: Matrix
    buckets: Matrix
    indexer: FastTextIndexer | None
    metadata: str


def read_fasttext(source: ByteSource) -> FastTextModel:
    """Read the dictionary of a model and find its matrix."""
    reader = FieldReader(source, FORMAT)
    version = _FIRST
    if not has_first_header(source):
        version = _read_version(reader)
    arguments = dict(zip(ARGUMENTS, (_i32(reader, name) for name in ARGUMENTS[:-1]), strict=False))
    (threshold,) = struct.unpack("<d", reader.raw(8, ARGUMENTS[-1]))
    size, n_words, n_labels = (_i32(reader, name) for name in ("size", "nwords", "nlabels"))
    if min(n_words, n_labels) < 0 or size != n_words + n_labels:
        raise reader.error(
            f"{size} entries cannot be {n_words} words and {n_labels} labels", "size", back=12
        )
    reader.raw(8, "ntokens")
    if version != _FIRST:
        _refuse_pruned(reader)
    words, offsets = step_over_words(
        source, reader.offset, size, end=b"\0", nbytes=_COUNT_AND_TYPE, format=FORMAT
    )
    _check_types(source, offsets, n_words)
    reader.offset = int(offsets[size])
    dim = arguments["dims"]
    if version != _FIRST:
        _refuse_quantized(reader)
    n_stored = _count_rows(reader, dim)
    indexer = _indexer(arguments, version, reader)
    n_buckets = 0 if indexer is None else indexer.n_buckets
    if n_stored < n_words + n_buckets:
        raise reader.error(
            f"the matrix has {n_stored} rows, {n_words + n_buckets} are needed for the words and "
            "buckets",
            "rows",
            back=16,
        )
    rows = dense_matrix(source, reader.offset, (n_words, dim), "<f4")
    buckets = dense_matrix(source, reader.offset + rows.nbytes, (n_buckets, dim), "<f4")
    words = words.select(np.arange(n_words)) if n_labels else words
    return FastTextModel(
        words=words,
        rows=rows,
        buckets=buckets,
        indexer=indexer,
        metadata=_toml(arguments, threshold),
    )


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


def _read_version(reader: FieldReader) -> int:
    """Step over the magic and the version."""
    if reader.raw(4, "magic") != MAGIC:
        raise reader.error("not a fastText model", "magic", back=4)
    version = _i32(reader, "version")
    if version not in _VERSIONS:
        raise UnsupportedError(
            f"only versions {_VERSIONS[0]} and {_VERSIONS[1]} of fastText models, and models "
            "without a version, can be read",
            found=version,
            **reader.where("version", 4),
        )
    return version


def _refuse_pruned(reader: FieldReader) -> None:
    (n_pruned,) = struct.unpack("<q", reader.raw(8, "pruneidx_size"))
    if n_pruned > 0:
        raise UnsupportedError(
            "a pruned model has lost the buckets that its words need; convert the model that it "
            "was made of",
            **reader.where("pruneidx_size", reader.offset - 8),
        )


def _refuse_quantized(reader: FieldReader) -> None:
    if reader.raw(1, "quant_input") != b"\0":
        raise UnsupportedError(
            "a quantized model (.ftz) cannot be converted; convert the .bin that it was made of",
            **reader.where("quant_input", reader.offset - 1),
        )


def _i32(reader: FieldReader, field: str) -> int:
    value: int = struct.unpack("<i", reader.raw(4, field))[0]
    return value


def _check_types(source: ByteSource, offsets: npt.NDArray[np.int64], n_words: int) -> None:
    """Refuse a dictionary in which a label comes before a word."""
    places = offsets[:-1] + (_COUNT_AND_TYPE - 1)
    types = source.gather(places, np.ones_like(places))
    wrong = np.flatnonzero(types != (np.arange(types.size) >= n_words))
    if wrong.size:
        raise FormatError(
            "the entries must be all words (0) first and then all labels (1)",
            path=source.path,
            format=FORMAT,
            offset=int(places[wrong[0]]),
            field=f"type of entry {int(wrong[0])}",
            found=int(types[wrong[0]]),
        )


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
    arguments: dict[str, int], version: int, reader: FieldReader
) -> FastTextIndexer | None:
    min_n, max_n, n_buckets = (arguments[name] for name in ("min_n", "max_n", "buckets"))
    if version < 12 and arguments["model"] == SUPERVISED:
        max_n = 0  # these models were trained without n-grams, whatever their arguments are
    if max_n <= 0 or n_buckets <= 0:
        return None
    if min_n > max_n:
        raise reader.error(f"n-grams of {min_n} to {max_n} code points do not exist", "minn")
    return FastTextIndexer(max(min_n, 1), max_n, n_buckets)


def _toml(arguments: dict[str, int], threshold: float) -> str:
    values: dict[str, Any] = dict(arguments)
    values["loss"] = LOSSES.get(arguments["loss"], "unknown")
    values["model"] = MODELS.get(arguments["model"], "unknown")
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in values.items()]
    # embmap reads only finite numbers from TOML.
    stored = repr(threshold) if math.isfinite(threshold) else json.dumps(str(threshold))
    return "".join(lines) + f"{ARGUMENTS[-1]} = {stored}\n"
