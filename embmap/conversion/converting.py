"""``embmap.convert``: from any format that is read to any format that is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import name_dtype
from embmap.conversion.arguments import (
    check_choices,
    check_numbers,
    choose_output_format,
    find_format,
    list_titles,
    list_words,
    make_absolute,
    parse_dtype,
    read_metadata,
)
from embmap.conversion.explicit import make_explicit
from embmap.conversion.inputs import open_input, split_member
from embmap.conversion.over_time import align
from embmap.conversion.report import ConversionReport
from embmap.conversion.rows import Converted, Lengths
from embmap.conversion.words import Chosen, choose
from embmap.errors import ArgumentError
from embmap.formats.format import Format, Input, Original, Output, Request, Writer
from embmap.formats.registry import FORMATS
from embmap.io.atomic_write import refuse_overwriting
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix, Quantized
from embmap.vectors.quantizer import quantize as quantize_rows
from embmap.vectors.rounding import quantize_blocks
from embmap.vectors.streamed import Leading, Scaled, Selected, Stacked
from embmap.words.beside import digests_beside, words_beside
from embmap.words.given import Words, read_labels

__all__ = ["convert"]

_CACHE_NBYTES = 32 << 20  # decoded bytes that all inputs together may keep


@dataclass(frozen=True, kw_only=True)
class _Wishes:
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
class _Prepared:
    """An input, its words that are converted, their rows, and which lengths the rows have."""

    source: Input
    chosen: Chosen | None
    vectors: Converted
    lengths: str


def convert(
    src: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dst: str | os.PathLike[str],
    *,
    input_format: str | None = None,
    output_format: str | None = None,
    dim: int | None = None,
    dtype: npt.DTypeLike | None = None,
    normalize: bool | None = None,
    lossy: bool = False,
    limit: int | None = None,
    words: Words | None = None,
    metadata: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    vocab: Words | None = None,
    tensor: str | None = None,
    timestep: int | str | None = None,
    scale: float | None = None,
    layout: str | None = None,
    output_layout: str | None = None,
    subwords: str = "keep",
    compression: str | None = None,
    quantize: int | None = None,
    opq: bool = False,
    bits: int | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert an embedding file to another format.

    Vectors are streamed: beyond the words, a conversion takes at most 150 MB of memory for any
    number of vectors. The output gets its name only once it is complete; it then replaces an older
    file.

    Parameters
    ----------
    src : path-like or sequence of path-like
        The file to read, which may be compressed with gzip, bzip2 or xz. A file in a zip archive
        is named as if the archive were a folder: ``glove.6B.zip/glove.6B.50d.txt``. Several files
        become the time steps of a DWE or npz file.
    dst : path-like
        The file to create or replace. It must not be one of the files that are read.
    input_format : str, optional
        "finalfusion", "embd", "cvc", "dwe", "word2vec" (binary), "word2vec-text" (or "textdims"),
        "glove" (or "text"), "floret", "fasttext", "npy", "npz", "safetensors" or "gensim"; by
        default the bytes decide.
    output_format : str, optional
        "finalfusion", "embd", "cvc", "dwe", "word2vec", "word2vec-text", "glove", "floret",
        "fasttext", "npy", "npz", "safetensors" or "gensim"; by default the extension decides.
    dim : int, optional
        Cut vectors to their first `dim` numbers. Vectors of models that were trained for it
        (Matryoshka representation learning) stay useful. Quantized vectors are decoded.
    dtype : dtype-like or "bfloat16", optional
        Dtype of the numbers written, if the format has a choice. If it is given, quantized vectors
        are decoded. Numbers are rounded to the nearest, ties to even. "bfloat16", which numpy
        lacks, is for EMBD and safetensors files.
    normalize : bool, optional
        True scales rows to unit length. False multiplies them by the norms of a finalfusion file,
        which restores their original lengths. By default, rows are not changed, except that a
        finalfusion file made from another format gets rows of unit length and norms.
    lossy : bool
        Replace bytes that are not UTF-8 with U+FFFD, and leave out words that the output cannot
        hold, instead of raising an error.
    limit : int, optional
        Convert only the first `limit` words of the input.
    words : path-like or sequence of str, optional
        Convert only these words: a text file with one word per line, or the words. They keep the
        order of the input.
    metadata : path-like or mapping, optional
        A TOML file or values to write in place of the metadata of the input.
    vocab : path-like or sequence of str, optional
        Words for an input that contains no words: the words, or a file as for
        :func:`embmap.open`. By default, they are read from ``INPUT.words.txt`` beside the input if
        it exists. This text is refused if it was written with other vectors.
    tensor : str, optional
        The tensor, array or column of the input that holds the vectors.
    timestep : int or str, optional
        The time step of the input to convert: its number, -1 for the last, or its label in
        `vocab`. A DWE file, or an array of three dimensions, keeps all time steps in a DWE or npz
        file.
    scale : float, optional
        Factor from integers to numbers, for an array of integers in three dimensions, (T, V, K),
        that has no ``scale_factor`` beside it in an npz file.
    layout : str, optional
        The dialect to read the input as.
    output_layout : str, optional
        The dialect to write: "spec" or "flat" for EMBD, "blocks" or "stream" for DWE, the version
        for CVC.
    subwords : {"keep", "explicit", "none"}
        Whether a finalfusion file keeps the subwords of the input, replaces buckets with the
        n-grams of the vocabulary, or gets no subwords.
    compression : {"fp16", "int8", "lossless"}, optional
        How a CVC file stores vectors. By default a CVC file that is written as CVC keeps its
        compressions, and other vectors are stored as "fp16".
    quantize : int, optional
        Product-quantize the rows of a finalfusion file to this many bytes each. It must divide the
        length of a vector.
    opq : bool
        Learn a rotation before quantizing, which loses less.
    bits : int, optional
        Bits of a number in a DWE or npz file, 2 to 16. By default integers over time are kept,
        and other numbers are rounded to 8 bits.
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    ConversionReport
        The sizes of the output, and what was left out.

    Raises
    ------
    EmbmapError
        If the input is damaged, of no known format, or has words that the output cannot hold, or
        if the words beside it were written with other vectors.
    ValueError
        If arguments contradict each other, or a format does not support them.
    OSError
        If a file cannot be read or written.
    """
    sources = [src] if isinstance(src, str | os.PathLike) else list(src)
    inputs = [Path(os.fsdecode(path)) for path in sources]
    path = Path(os.fsdecode(dst))
    target = choose_output_format(path, output_format)
    writer = cast(Writer, target.writer)
    source_format = find_format(input_format, FORMATS, "input_format")
    check_numbers(limit=(limit, 0), dim=(dim, 1))
    check_choices(
        target,
        n_inputs=len(inputs),
        subwords=subwords,
        quantize=quantize,
        opq=opq,
        compression=compression,
        bits=bits,
        output_layout=output_layout,
    )
    given = [words, vocab, metadata]
    read = [split_member(each)[0] for each in inputs]
    read += [Path(os.fsdecode(p)) for p in given if isinstance(p, str | os.PathLike)]
    beside = [words_beside(path), digests_beside(path)] if writer.words_beside else []
    refuse_overwriting([path, *beside], read)
    request = Request(
        format=None if source_format is None else source_format.name,
        dialect=layout,
        vocab=make_absolute(vocab),
        tensor=tensor,
        timestep=timestep,
        scale=scale,
        over_time=writer.over_time and len(inputs) == 1,
        labels=read_labels(vocab),
        limit=limit,
        dtype=parse_dtype(dtype),
        progress=progress,
        output_format=target.name if len(inputs) == 1 else None,
        folder=path.absolute().parent,
        cache_nbytes=_CACHE_NBYTES // max(len(inputs), 1),
    )
    wishes = _Wishes(
        path=path,
        format=target,
        writer=writer,
        dim=dim,
        dtype=request.dtype,
        normalize=normalize,
        lossy=lossy,
        wanted=None if words is None else list_words(words),
        metadata=read_metadata(metadata),
        subwords=subwords,
        compression=compression,
        quantize=quantize,
        opq=opq,
        bits=bits,
        dialect=output_layout,
        limit=limit,
        progress=progress,
    )
    with ExitStack() as stack:
        prepared = [_prepare(open_input(each, request, stack), wishes) for each in inputs]
        output = _make_output(prepared, wishes)
        writer.write(output)
        return _make_report(prepared[0], output, wishes)


def _prepare(source: Input, wishes: _Wishes) -> _Prepared:
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
    return _Prepared(source, chosen, converted, kind)


def _is_kept(source: Input, wishes: _Wishes) -> bool:
    """Return whether an input is written as it is: in its format, or with all its time steps."""
    return source.format == wishes.format.name or bool(source.steps)


def _cut(vectors: Matrix, wishes: _Wishes) -> Matrix:
    """Return the first numbers of each row, if the caller wants fewer than all."""
    n = vectors.shape[1]
    if wishes.dim is not None and wishes.dim > n:
        raise ArgumentError(
            f"{{dim}} must be at most {n}, the length of the vectors, not {wishes.dim}"
        )
    return vectors if wishes.dim in (None, n) else Leading(vectors, wishes.dim)


def _make_output(prepared: Sequence[_Prepared], wishes: _Wishes) -> Output:
    """Return what is written: the first input, or all inputs as time steps."""
    chosen, vectors = [each.chosen for each in prepared], [each.vectors for each in prepared]
    words = chosen[0].words if chosen and chosen[0] is not None else None
    steps: Sequence[Matrix] = vectors
    source = prepared[0].source
    if wishes.writer.over_time and not source.steps:
        words, steps = align(chosen, vectors)
    output = Output(
        path=wishes.path,
        words=words,
        vectors=steps[0],
        metadata=source.metadata if wishes.metadata is None else wishes.metadata,
        compression=wishes.compression,
        dialect=wishes.dialect,
        progress=wishes.progress,
    )
    if len(prepared) == 1 and _is_kept(source, wishes):
        output = replace(output, original=_find_original(prepared[0], wishes))
    if wishes.writer.over_time:
        rounded, scale = _find_integers(prepared[0], steps, output, wishes)
        output = replace(output, steps=rounded, scale=scale)
    if "norms" in wishes.writer.holds:
        output = replace(output, norms=_choose_norms(prepared[0]))
    if wishes.writer.subwords:
        output = _add_subwords(output, prepared[0], wishes)
    return output


def _find_integers(
    prepared: _Prepared, steps: Sequence[Matrix], output: Output, wishes: _Wishes
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


def _find_original(prepared: _Prepared, wishes: _Wishes) -> Original:
    """Return an input that is written as it is, as the writer needs it."""
    chosen, vectors = prepared.chosen, prepared.vectors
    rows = None
    if chosen is not None and prepared.source.words is not None:
        is_all = wishes.limit is None and len(chosen.rows) == len(prepared.source.words)
        rows = None if is_all else chosen.rows
    elif wishes.limit is not None:
        rows = np.arange(len(vectors))
    is_cast = wishes.dtype is not None and wishes.writer.stored_dtype is None
    changed = prepared.lengths != "stored" or is_cast
    dim = vectors.shape[1]
    is_cut = dim < prepared.source.vectors.shape[1]
    return Original(
        source=prepared.source,
        rows=rows,
        changed=changed or is_cut,
        dim=dim if is_cut and not changed else None,
    )


def _choose_norms(prepared: _Prepared) -> npt.ArrayLike | None:
    """Return the norms to store: measured while rows are scaled, or as in the input."""
    norms, chosen = prepared.source.norms, prepared.chosen
    if prepared.vectors.lengths is not None:
        return prepared.vectors.lengths
    if prepared.lengths != "stored" or norms is None:
        return None
    if chosen is not None and len(chosen.rows) != len(norms):
        norms = Selected(norms, chosen.rows)
    return np.asarray(norms)[:, 0]


def _add_subwords(output: Output, prepared: _Prepared, wishes: _Wishes) -> Output:
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


def _make_report(prepared: _Prepared, output: Output, wishes: _Wishes) -> ConversionReport:
    source, chosen, writer = prepared.source, prepared.chosen, wishes.writer
    n_uncommon = len(prepared.vectors) - len(output.vectors)  # words that other inputs lack
    beside = writer.words_beside and output.words is not None
    return ConversionReport(
        path=wishes.path,
        input_format=source.format,
        output_format=wishes.format.name,
        n_words=len(output.vectors),
        dim=output.vectors.shape[1],
        dtype=writer.stored_dtype or name_dtype(prepared.vectors.dtype),
        n_duplicates=0 if chosen is None else chosen.n_duplicates,
        n_dropped=n_uncommon + (0 if chosen is None else chosen.n_dropped),
        n_missing=0 if chosen is None else chosen.n_missing,
        lengths=prepared.lengths,
        left_out=_find_left_out(prepared, output, writer),
        words_path=words_beside(wishes.path) if beside else None,
    )


def _find_left_out(prepared: _Prepared, output: Output, writer: Writer) -> tuple[str, ...]:
    """Return the parts of the input that the output lacks."""
    source, kept = prepared.source, writer.find_kept(output)
    restored = prepared.lengths == "original"
    lacking = {
        "repeated words": prepared.chosen is not None and prepared.chosen.n_duplicates > 0,
        "norms": source.norms is not None and output.norms is None and not restored,
        "subwords": source.subwords is not None and output.subwords is None,
        "quantization": source.quantized is not None and output.quantized is None,
        "metadata": bool(output.metadata) and "metadata" not in kept,
    }
    # What only files of this format hold is kept only by its own writer.
    kept = kept if output.original is not None else frozenset()
    lacking |= {part: part not in kept for part in source.parts}
    return tuple(part for part, is_lacking in lacking.items() if is_lacking)
