"""Writing fastText's models (``.bin``, version 12), which fastText and gensim read.

A model that is not changed is copied. Other embeddings lack what training needs: how often each
word occurred, and the output matrix. Words get descending counts, so that readers keep their order,
and the output matrix has no rows.
"""

from __future__ import annotations

import struct
from typing import Any, cast

from embmap.formats.composed import take_apart
from embmap.formats.exchange import Original, Output
from embmap.formats.fasttext import ARGUMENTS, LOSSES, MAGIC, MODELS, SUPERVISED
from embmap.formats.format import Writer
from embmap.io.atomic_write import replacing
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Stacked
from embmap.words.subwords import FastTextIndexer

__all__ = ["FastTextWriter"]

_VERSION = 12
_WORD = b"\0"  # the type of an entry of the dictionary; labels have another
_DEFAULTS: dict[str, Any] = {
    "window_size": 5,
    "epoch": 5,
    "min_count": 1,
    "ns": 5,
    "word_ngrams": 1,
    "lr_update_rate": 100,
    "sampling_threshold": 1e-4,
}
_CODES = {"loss": (LOSSES, 2), "model": (MODELS, 2)}


class FastTextWriter(Writer):
    """Writes a dictionary, and the rows of words and of buckets."""

    subwords = frozenset({"fasttext"})
    keeps_repeats = True

    def refuse(self, word: str) -> str | None:
        return "holds a NUL, which ends a word in this format" if "\0" in word else None

    def find_kept(self, output: Output) -> frozenset[str]:
        if _find_whole(output) is not None:
            return self.holds | {"metadata", *cast(Original, output.original).source.parts}
        lost = set(output.values()) - set(ARGUMENTS)
        return self.holds if lost else self.holds | {"metadata"}

    def write(self, output: Output) -> None:
        whole = _find_whole(output)
        if whole is not None:
            with replacing(output.path) as out:
                output.copy_bytes(out, whole)
            return
        words, indexer = output.words, cast("FastTextIndexer | None", output.subwords)
        rows, n = output.vectors, len(output.vectors)
        if n >= 2**31:
            raise ValueError(f"a fastText model must have fewer than {2**31} words, not {n}")
        if indexer is not None and words is not None:
            buckets = cast(Matrix, output.buckets)
            rows = Stacked(take_apart(output), buckets)
        with replacing(output.path) as out:
            out.write(MAGIC + struct.pack("<i12id", _VERSION, *_arguments(output, indexer)))
            out.write(struct.pack("<3i2q", n, n, 0, n * (n + 1) // 2, -1))
            for number, word in enumerate(words.encoded() if words is not None else ()):
                out.write(word + b"\0" + struct.pack("<q", n - number) + _WORD)
            out.write(b"\0" + struct.pack("<2q", *rows.shape))
            output.write_rows(out, rows)
            out.write(b"\0" + struct.pack("<2q", 0, rows.shape[1]))


def _find_whole(output: Output) -> ByteSource | None:
    """Return the model that is copied as it is; None if anything of it is changed."""
    original = output.original
    if original is None or not original.is_whole or original.words_changed:
        return None
    source = original.source
    if output.metadata != source.metadata or output.subwords is not source.subwords:
        return None
    return source.data


def _arguments(output: Output, indexer: FastTextIndexer | None) -> list[Any]:
    """Return the arguments of the training: from the metadata, where they are in them."""
    stored, values = output.values(), dict[str, Any](_DEFAULTS)
    for name, default in _DEFAULTS.items():
        value = stored.get(name)
        if value is not None and type(value) is type(default) and abs(value) < 2**31:
            values[name] = value
    for name, (codes, default) in _CODES.items():
        found = [code for code, title in codes.items() if title == stored.get(name)]
        values[name] = found[0] if found else default
    if values["model"] == SUPERVISED:  # there are no labels
        values["model"] = _CODES["model"][1]
    values["dims"] = output.vectors.shape[1]
    values["buckets"] = 0 if indexer is None else indexer.n_buckets
    values["min_n"] = 0 if indexer is None else indexer.min_n
    values["max_n"] = 0 if indexer is None else indexer.max_n
    return [values[name] for name in ARGUMENTS]
