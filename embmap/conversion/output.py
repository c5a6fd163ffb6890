"""What a conversion writes: the rows of its inputs as the caller wants them, for the writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from embmap.conversion.arguments import (
    list_titles,
)
from embmap.conversion.explicit import make_explicit
from embmap.conversion.over_time import align
from embmap.conversion.rows import Converted, Lengths
from embmap.conversion.words import Chosen, choose
from embmap.errors import ArgumentError
from embmap.formats.exchange import Input, Original, Output
from embmap.formats.format import Format, Writer
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix, Quantized
from embmap.vectors.quantizer import quantize as quantize_rows
from embmap.vectors.rounding import quantize_blocks
from embmap.vectors.streamed import Leading, Scaled, Selected, Stacked

__all__ = ["Prepared", "Wishes", "make_output", "prepare"]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The arguments of :func:`convert` that concern the output."""

    path: Path
    format: Format
    writer: Writer
    dim: int | None
    dtype: np.dtype[Any] | None
    normalize: bool | None
    lossy: bool
    wanted: Sequence[str] | None
    metadata: str | Mapping[str, Any] | None
    subwords: str
    compression: str | None
    quantize: int | None
    opq: bool
    bits: int | None
    dialect: str | None
    limit: int | None
    progress: Progress | None


@dataclass(frozen=True)
class Prepared:
    """An input, its words that are converted, their rows, and which lengths the rows have."""

    source: Input
    chosen: Chosen | None
    vectors: Converted
    lengths: str


def prepare(source: Input, wishes: Wishes) -> Prepared:
    """Choose the words of an input to be converted, and scale and cast their rows."""
    holds = wishes.writer.holds
    has_subwords = source.subwords is not None and source.subwords.kind in wishes.writer.subwords
    if source.has_only_ngrams and not (has_subwords and wishes.subwords == "keep"):
        raise ValueError(
            "a floret table holds no words, only rows for n-grams; it can only become a "
            f"{list_titles(lambda each: 'floret' in each.subwords)} file that keeps its subwords"
        )
    chosen = None
    vectors, norms = source.vectors, source.norms
    is_same = _is_kept(source, wishes)
    needs_vectors = wishes.writer.needs_vectors and not is_same
    if not vectors.shape[1] and (needs_vectors or wishes.quantize is not None):
        able = list_titles(lambda each: not each.needs_vectors)
        raise ValueError(f"the input has no vectors; {able} files can hold its other parts")
    if source.words is not None:
        chosen = choose(
            source.words,
            wanted=wishes.wanted,
            refuse=wishes.writer.refuse,
            lossy=wishes.lossy,
            keep_repeats=is_same and wishes.wanted is None and wishes.writer.keeps_repeats,
        )
        if len(chosen.rows) != len(vectors):
            vectors = Selected(vectors, chosen.rows)
            norms = None if norms is None else Selected(norms, chosen.rows)
    elif wishes.wanted is not None:
        raise ArgumentError("the input has no words to choose from; name them with {vocab}")
    elif wishes.writer.needs_words and not (source.has_only_ngrams or is_same):
        raise ArgumentError(
            "the input has no words; name them with {vocab}: a file with one word per line"
        )
    is_cut = wishes.dim is not None and wishes.dim < vectors.shape[1]
    vectors = _cut(vectors, wishes)
    unit = wishes.normalize
    if unit is None and has_subwords and wishes.subwords == "keep" and "norms" not in holds:
        unit = False  # the rows of n-grams have their original lengths
    if unit is None:  # an input in the format of the output already has the right lengths
        is_right = is_same and not (is_cut and norms is not None)
        is_right |= source.has_only_ngrams or not vectors.shape[1]
        unit = True if "norms" in holds and not is_right else None
    original = unit is False and norms is not None
    lengths = Lengths(len(vectors)) if unit and "norms" in holds else None
    dtype = wishes.writer.choose_dtype(vectors.dtype, wishes.dtype)
    keeps_dtype = is_same and wishes.writer.keeps_dtype and wishes.dtype is None
    if keeps_dtype and not unit and not original:
        dtype = vectors.dtype.newbyteorder("=")
    converted = Converted(
        vectors,
        dtype,
        norms=norms if original or lengths is not None else None,
        unit=bool(unit),
        lengths=lengths,
        progress=wishes.progress,
    )
    kind = "unit" if unit else "original" if original else "stored"
    return Prepared(source, chosen, converted, kind)


def _is_kept(source: Input, wishes: Wishes) -> bool:
    """Return whether an input is written as it is: in its format, or with all that it holds."""
    return source.format == wishes.format.name or bool(source.steps) or source.is_whole


def _cut(vectors: Matrix, wishes: Wishes) -> Matrix:
    """Return the first numbers of each row, if the caller wants fewer than all."""
    n = vectors.shape[1]
    if wishes.dim is not None and wishes.dim > n:
        raise ArgumentError(
            f"{{dim}} must be at most {n}, the length of the vectors, not {wishes.dim}"
        )
    return vectors if wishes.dim in (None, n) else Leading(vectors, wishes.dim)


def make_output(prepared: Sequence[Prepared], wishes: Wishes) -> Output:
    """Return what is written: the first input, or all inputs as time steps."""
    chosen, vectors = [each.chosen for each in prepared], [each.vectors for each in prepared]
    words = chosen[0].words if chosen and chosen[0] is not None else None
    steps: Sequence[Matrix] = vectors
    source = prepared[0].source
    original = None
    if len(prepared) == 1 and _is_kept(source, wishes):
        original = _find_original(prepared[0], wishes)
    is_whole = original is not None and original.is_whole
    if wishes.writer.over_time and not source.steps and not is_whole:
        words, steps = align(chosen, vectors)
    output = Output(
        path=wishes.path,
        words=words,
        vectors=steps[0],
        metadata=source.metadata if wishes.metadata is None else wishes.metadata,
        compression=wishes.compression,
        dialect=wishes.dialect,
        progress=wishes.progress,
        original=original,
    )
    if wishes.writer.over_time and not is_whole:
        rounded, scale = _find_integers(prepared[0], steps, output, wishes)
        output = replace(output, steps=rounded, scale=scale)
    if "norms" in wishes.writer.holds:
        output = replace(output, norms=_choose_norms(prepared[0]))
    if wishes.writer.subwords:
        output = _add_subwords(output, prepared[0], wishes)
    return output


def _find_integers(
    prepared: Prepared, steps: Sequence[Matrix], output: Output, wishes: Wishes
) -> tuple[Sequence[Blocks], float]:
    """Return the integers of time steps and their scale: as they are stored, or rounded."""
    source, vectors, original = prepared.source, prepared.vectors, output.original

    def chosen(step: Matrix) -> Matrix:
        step = _cut(step, wishes)
        if len(step) == len(vectors):
            return step
        rows = None if original is None else original.rows
        return Selected(step, range(len(vectors)) if rows is None else rows)

    is_stored = original is not None and (not original.changed or original.dim is not None)
    if is_stored and wishes.bits is None and source.scale is not None:
        return [chosen(step) for step in source.steps], source.scale
    if source.steps:
        scale, unit = source.scale, prepared.lengths == "unit"
        numbers = [step if scale is None else Scaled(step, scale) for step in source.steps]
        steps = [Converted(chosen(step), vectors.dtype, unit=unit) for step in numbers]
    return quantize_blocks(steps, 8 if wishes.bits is None else wishes.bits)


def _find_original(prepared: Prepared, wishes: Wishes) -> Original:
    """Return an input that is written as it is, as the writer needs it."""
    chosen, vectors = prepared.chosen, prepared.vectors
    rows = None
    if chosen is not None and prepared.source.words is not None:
        is_all = wishes.limit is None and len(chosen.rows) == len(prepared.source.words)
        rows = None if is_all else chosen.rows
    elif wishes.limit is not None:
        rows = np.arange(len(vectors))
    is_cast = wishes.dtype is not None and wishes.writer.stored_dtype is None
    changed = prepared.lengths != "stored" or is_cast or wishes.bits is not None
    dim = vectors.shape[1]
    is_cut = dim < prepared.source.vectors.shape[1]
    return Original(
        source=prepared.source,
        rows=rows,
        changed=changed or is_cut,
        dim=dim if is_cut and not changed else None,
        words_changed=chosen is not None and chosen.is_changed,
    )


def _choose_norms(prepared: Prepared) -> npt.ArrayLike | None:
    """Return the norms to store: measured while rows are scaled, or as in the input."""
    norms, chosen = prepared.source.norms, prepared.chosen
    if prepared.vectors.lengths is not None:
        return prepared.vectors.lengths
    if prepared.lengths != "stored" or norms is None:
        return None
    if chosen is not None and len(chosen.rows) != len(norms):
        norms = Selected(norms, chosen.rows)
    return np.asarray(norms)[:, 0]


def _add_subwords(output: Output, prepared: Prepared, wishes: Wishes) -> Output:
    """Add subwords and quantized vectors to an output."""
    source, chosen, vectors = prepared.source, prepared.chosen, prepared.vectors
    indexer, buckets = source.subwords, source.buckets
    used = None
    kinds = wishes.writer.subwords
    is_explicit = wishes.subwords == "explicit" and "explicit" in kinds
    if wishes.subwords == "none" or (indexer and not is_explicit and indexer.kind not in kinds):
        indexer = buckets = None
    elif indexer is not None and is_explicit and indexer.kind != "explicit":
        indexer, used = make_explicit(indexer, cast(Chosen, chosen).words)
        buckets = Selected(cast(Matrix, buckets), used)
    quantized = None
    is_stored = prepared.lengths == "stored" and vectors.shape[1] == source.vectors.shape[1]
    if source.quantized is not None and is_stored and wishes.dtype is None:
        n_words = len(source.vectors) if source.words is None else len(source.words)
        rows = np.arange(n_words) if chosen is None else chosen.rows
        if buckets is not None:
            start = len(source.quantized) - len(cast(Matrix, source.buckets))
            numbers = np.arange(len(buckets)) if used is None else used
            rows = np.concatenate((rows, start + numbers))
        quantized = _select_codes(source.quantized, rows)
    if buckets is not None:
        buckets = _cut(buckets, wishes)
        if buckets.dtype != vectors.dtype:
            buckets = Converted(buckets, vectors.dtype)
    if wishes.quantize is not None:
        every = vectors if buckets is None else Stacked(vectors, buckets)
        projection: Literal["opq"] | None = "opq" if wishes.opq else None
        quantized = quantize_rows(
            every, wishes.quantize, projection=projection, progress=wishes.progress
        )
    return replace(output, subwords=indexer, buckets=buckets, quantized=quantized)


def _select_codes(matrix: ProductMatrix, rows: npt.NDArray[np.int64]) -> Quantized:
    """Return rows of a quantized matrix as they are stored."""
    norms = matrix.norms
    return Quantized(
        Selected(matrix.codes, rows),
        matrix.codebooks,
        matrix.projection,
        None if norms is None else norms[rows],
    )
