"""``embmap.convert``: from any format that is read to any format that is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt

from embmap.codecs.bfloat import name_dtype
from embmap.conversion.arguments import (
    check_choices,
    check_numbers,
    choose_output_format,
    find_format,
    list_words,
    make_absolute,
    parse_dtype,
    read_metadata,
)
from embmap.conversion.inputs import open_input, split_member
from embmap.conversion.output import Prepared, Wishes, make_output, prepare
from embmap.conversion.report import ConversionReport
from embmap.formats.exchange import Output, Request
from embmap.formats.format import Writer
from embmap.formats.registry import FORMATS
from embmap.io.atomic_write import refuse_overwriting
from embmap.progress import Progress
from embmap.words.beside import digests_beside, words_beside
from embmap.words.given import Words, read_labels

__all__ = ["convert"]

_CACHE_NBYTES = 32 << 20  # decoded bytes that all inputs together may keep


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
        "glove" (or "text"), "floret", "fasttext", "npy", "npz", "parquet", "safetensors" or
        "gensim"; by default the bytes decide.
    output_format : str, optional
        "finalfusion", "embd", "cvc", "dwe", "word2vec", "word2vec-text", "glove", "floret",
        "fasttext", "npy", "npz", "parquet", "safetensors" or "gensim"; by default the extension
        decides.
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
        The tensor, array or column of the input that holds the vectors. By default an EMBD file
        made from a safetensors file keeps every tensor that it can hold.
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
    ImportError
        If the input or the output is Parquet and pyarrow is not installed.
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
    wishes = Wishes(
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
        prepared = [prepare(open_input(each, request, stack), wishes) for each in inputs]
        output = make_output(prepared, wishes)
        writer.write(output)
        return _make_report(prepared[0], output, wishes)


def _make_report(prepared: Prepared, output: Output, wishes: Wishes) -> ConversionReport:
    source, chosen, writer = prepared.source, prepared.chosen, wishes.writer
    n_uncommon = len(prepared.vectors) - len(output.vectors)  # words that other inputs lack
    beside = writer.words_beside and output.words is not None
    return ConversionReport(
        path=wishes.path,
        input_format=source.format,
        output_format=wishes.format.name,
        n_words=len(output.vectors),
        dim=output.vectors.shape[1],
        dtype=_name_dtype(prepared, output, writer),
        n_duplicates=0 if chosen is None else chosen.n_duplicates,
        n_dropped=n_uncommon + (0 if chosen is None else chosen.n_dropped),
        n_missing=0 if chosen is None else chosen.n_missing,
        lengths=prepared.lengths,
        left_out=_find_left_out(prepared, output, writer),
        words_path=words_beside(wishes.path) if beside else None,
    )


def _name_dtype(prepared: Prepared, output: Output, writer: Writer) -> str:
    """Return the dtype of the numbers in the output."""
    if output.original is not None and output.original.is_whole:
        source = prepared.source
        return name_dtype((source.steps[0] if source.steps else source.vectors).dtype)
    return writer.stored_dtype or name_dtype(prepared.vectors.dtype)


def _find_left_out(prepared: Prepared, output: Output, writer: Writer) -> tuple[str, ...]:
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
