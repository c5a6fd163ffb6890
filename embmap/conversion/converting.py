"""``embmap.convert``: from any format that is read to any that is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from embmap.conversion.arguments import (
    absolute,
    given_metadata,
    known_format,
    listed_words,
    output_format_of,
)
from embmap.conversion.explicit import explicit
from embmap.conversion.over_time import write_steps
from embmap.conversion.report import ConversionReport
from embmap.conversion.rows import Converted, Lengths, Selected, Stacked
from embmap.conversion.source import INPUT_FORMATS, Request, Source, open_source
from embmap.conversion.targets import TARGETS, Output, Target
from embmap.conversion.words import Chosen, choose
from embmap.io.atomic_write import refuse_overwriting
from embmap.progress import Progress
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import Quantized
from embmap.vectors.quantizer import quantize as quantize_rows
from embmap.words.beside import digests_beside, words_beside
from embmap.words.given import Words

__all__ = ["convert"]

_SUBWORDS = ("keep", "explicit", "none")
_CACHE_NBYTES = 32 << 20  # of what DWE inputs keep decoded, all together


@dataclass(frozen=True)
class _Wishes:
    """What the caller wants of the output."""

    path: Path
    format: str
    target: Target
    dtype: np.dtype[Any] | None
    normalize: bool | None
    lossy: bool
    wanted: Sequence[str] | None
    metadata: str | Mapping[str, Any] | None
    subwords: str
    compression: str | None
    quantize: int | None
    opq: bool
    layout: str | None
    progress: Progress | None


def convert(
    src: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dst: str | os.PathLike[str],
    *,
    input_format: str | None = None,
    output_format: str | None = None,
    dtype: npt.DTypeLike | None = None,
    normalize: bool | None = None,
    lossy: bool = False,
    limit: int | None = None,
    words: Words | None = None,
    metadata: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    vocab: Words | None = None,
    tensor: str | None = None,
    timestep: int | None = None,
    layout: str | None = None,
    output_layout: str | None = None,
    subwords: str = "keep",
    compression: str | None = None,
    quantize: int | None = None,
    opq: bool = False,
    bits: int = 8,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert an embedding file to another format.

    Vectors are streamed: a conversion takes at most 150 MB of memory beyond the words, whatever
    number of vectors there is. The output appears under its name only once it is whole, in place
    of what was there.

    Parameters
    ----------
    src : path-like or sequence of path-like
        The file to read; several become the time steps of a DWE file.
    dst : path-like
        The file to create or replace; none of those that are read.
    input_format : str, optional
        "finalfusion", "embd", "cvc", "dwe", "word2vec" (binary), "word2vec-text" (or "textdims"),
        "glove" (or "text"), "floret", "fasttext", "npy", "npz", "safetensors" or "gensim"; by
        default the bytes decide.
    output_format : str, optional
        "finalfusion", "embd", "cvc", "dwe", "word2vec", "word2vec-text", "glove", "npy" or
        "safetensors"; by default the extension decides.
    dtype : dtype-like, optional
        Type of the numbers written, where the format has a choice. With it, quantized vectors are
        decoded.
    normalize : bool, optional
        True scales rows to unit length; False gives them the lengths they had before a finalfusion
        file stored them with norms. By default rows stay what they are in the input, except that
        finalfusion files are made of unit rows and norms.
    lossy : bool
        Put U+FFFD in place of bytes that are not UTF-8, and leave out words that the output cannot
        hold, instead of raising.
    limit : int, optional
        Convert no more than the first words of the input.
    words : path-like or sequence of str, optional
        Convert these words alone: a text file with one word per line, or the words. They keep the
        order of the input.
    metadata : path-like or mapping, optional
        A TOML file, or values, in place of the metadata of the input.
    vocab : path-like or sequence of str, optional
        Words for an input that carries none. Without it, ``INPUT.words.txt`` beside the input is
        taken if it is there; it is refused if it was written with other vectors.
    tensor : str, optional
        Which tensor, array or column of the input holds the vectors.
    timestep : int, optional
        Which step of a DWE file; -1 is the last.
    layout : str, optional
        The dialect that the input is read as.
    output_layout : str, optional
        The dialect that is written: "flat" of EMBD, "stream" of DWE, the version of CVC.
    subwords : {"keep", "explicit", "none"}
        What becomes of subwords in a finalfusion file: buckets may be replaced by the n-grams of
        the vocabulary.
    compression : {"fp16", "int8", "lossless"}, optional
        How vectors of CVC files are stored.
    quantize : int, optional
        Product-quantize the rows of a finalfusion file, this many bytes each; divides their length.
    opq : bool
        Learn a rotation for it first, which loses less.
    bits : int
        Bits of a number in a DWE file.
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    ConversionReport
        What was written and what was left out.

    Raises
    ------
    EmbmapError
        When the input is damaged, of no known format, or holds words that the output cannot; when
        the words beside it were written with other vectors.
    ValueError
        When arguments do not fit each other or the formats.
    OSError
        When a file cannot be read or written.
    """
    sources = [src] if isinstance(src, str | os.PathLike) else list(src)
    inputs = [Path(os.fsdecode(path)) for path in sources]
    path = Path(os.fsdecode(dst))
    name = output_format_of(path, output_format)
    target = TARGETS.get(name, TARGETS["npy"])
    kind = known_format(input_format, INPUT_FORMATS, "input_format")
    if limit is not None and limit < 0:
        raise ValueError(f"limit cannot be {limit}")
    if subwords not in _SUBWORDS:
        raise ValueError(f"subwords must be one of {', '.join(_SUBWORDS)}, not {subwords!r}")
    if (quantize is not None or opq) and name != "finalfusion":
        raise ValueError(f"quantize is for finalfusion files, not for {name}")
    if opq and quantize is None:
        raise ValueError("opq goes with quantize: say how many bytes a row shall have")
    if compression is not None and name != "cvc":
        raise ValueError(f"compression is for CVC files, not for {name}")
    given = [words, vocab, metadata]
    read = [*inputs, *(Path(os.fsdecode(p)) for p in given if isinstance(p, str | os.PathLike))]
    beside = [words_beside(path), digests_beside(path)] if target.beside else []
    refuse_overwriting([path, *beside], read)
    request = Request(
        kind,
        layout,
        absolute(vocab),
        tensor,
        timestep,
        limit,
        None if dtype is None else np.dtype(dtype),
        progress,
        path.absolute().parent,
        _CACHE_NBYTES // max(len(inputs), 1),
    )
    wishes = _Wishes(
        path,
        name,
        target,
        request.dtype,
        normalize,
        lossy,
        None if words is None else listed_words(words),
        given_metadata(metadata),
        subwords,
        compression,
        quantize,
        opq,
        output_layout,
        progress,
    )
    with ExitStack() as stack:
        if name == "dwe":
            opened = [open_source(item, request, stack) for item in inputs]
            prepared = [_prepared(item, wishes) for item in opened]
            steps = [(chosen, vectors) for chosen, vectors, _ in prepared]
            n_words, n_dropped = write_steps(
                path, steps, bits=bits, layout=output_layout or "blocks", progress=progress
            )
            first = prepared[0][0]
            return ConversionReport(
                path,
                opened[0].format,
                name,
                n_words,
                opened[0].vectors.shape[1],
                "int16",
                0 if first is None else first.n_duplicates,
                n_dropped + (0 if first is None else first.n_dropped),
                0 if first is None else first.n_missing,
                prepared[0][2],
                (),
                None if first is None else words_beside(path),
            )
        if len(inputs) != 1:
            raise ValueError(f"several inputs are time steps of a DWE file, not of {name}")
        return _convert(open_source(inputs[0], request, stack), wishes)


def _prepared(source: Source, wishes: _Wishes) -> tuple[Chosen | None, Converted, str]:
    """Return the words of an input to be converted, their rows, and what became of lengths."""
    chosen = None
    vectors, norms = source.vectors, source.norms
    if source.words is not None:
        chosen = choose(
            source.words, wanted=wishes.wanted, refuse=wishes.target.refuse, lossy=wishes.lossy
        )
        if len(chosen.rows) != len(vectors):
            vectors = Selected(vectors, chosen.rows)
            norms = None if norms is None else Selected(norms, chosen.rows)
    elif wishes.wanted is not None:
        raise ValueError("the input has no words to choose from; give it a vocab")
    elif wishes.target.needs_words and not _is_floret(source):
        raise ValueError("the input has no words; give it a vocab: a file with one word per line")
    dtype = wishes.target.dtype(vectors.dtype, wishes.dtype)
    finalfusion = wishes.format == "finalfusion"
    unit = wishes.normalize
    if unit is None:
        unit = finalfusion and source.format not in ("finalfusion", "floret")
    original = wishes.normalize is False and norms is not None
    lengths = Lengths(len(vectors)) if unit and finalfusion else None
    converted = Converted(
        vectors,
        dtype,
        norms=norms if original or lengths is not None else None,
        unit=unit,
        lengths=lengths,
        progress=wishes.progress,
    )
    return chosen, converted, "unit" if unit else "original" if original else "stored"


def _convert(source: Source, wishes: _Wishes) -> ConversionReport:
    if _is_floret(source) and (wishes.format != "finalfusion" or wishes.subwords != "keep"):
        raise ValueError(
            "a floret table holds no words, only rows for n-grams; it can become a finalfusion file"
        )
    chosen, vectors, lengths = _prepared(source, wishes)
    metadata = source.metadata if wishes.metadata is None else wishes.metadata
    output = Output(
        wishes.path,
        None if chosen is None else chosen.words,
        vectors,
        metadata=metadata,
        compression=wishes.compression,
        layout=wishes.layout,
    )
    if wishes.format == "finalfusion":
        output = _with_subwords(source, wishes, chosen, output, lengths)
    wishes.target.write(output)
    beside = wishes.target.beside and chosen is not None
    return ConversionReport(
        wishes.path,
        source.format,
        wishes.format,
        len(vectors),
        source.vectors.shape[1],
        str(vectors.dtype),
        *((chosen.n_duplicates, chosen.n_dropped, chosen.n_missing) if chosen else (0, 0, 0)),
        lengths,
        _left_out(source, wishes, output, lengths),
        words_beside(wishes.path) if beside else None,
    )


def _with_subwords(
    source: Source, wishes: _Wishes, chosen: Chosen | None, output: Output, lengths: str
) -> Output:
    """Add what only finalfusion files hold: norms, subwords, quantized vectors."""
    vectors = cast(Converted, output.vectors)
    norms: Matrix | Lengths | None = vectors.lengths
    if lengths == "stored" and source.norms is not None:
        norms = source.norms
        if chosen is not None and len(chosen.rows) != len(norms):
            norms = Selected(source.norms, chosen.rows)
    indexer, buckets = source.subwords, source.buckets
    used = None
    if wishes.subwords == "none":
        indexer = buckets = None
    elif indexer is not None and wishes.subwords == "explicit" and indexer.kind != "explicit":
        indexer, used = explicit(indexer, cast(Chosen, chosen).words)
        buckets = Selected(cast(Matrix, buckets), used)
    quantized = None
    if source.quantized is not None and lengths == "stored" and wishes.dtype is None:
        n_words = len(source.vectors) if source.words is None else len(source.words)
        rows = np.arange(n_words) if chosen is None else chosen.rows
        if buckets is not None:
            first = len(source.quantized) - len(cast(Matrix, source.buckets))
            numbers = np.arange(len(buckets)) if used is None else used
            rows = np.concatenate((rows, first + numbers))
        quantized = _chosen_codes(source, rows)
    if buckets is not None:
        buckets = Converted(buckets, vectors.dtype)
    if wishes.quantize is not None:
        every = vectors if buckets is None else Stacked(vectors, buckets)
        projection: Literal["opq"] | None = "opq" if wishes.opq else None
        quantized = quantize_rows(
            every, wishes.quantize, projection=projection, progress=wishes.progress
        )
    return replace(output, norms=norms, subwords=indexer, buckets=buckets, quantized=quantized)


def _chosen_codes(source: Source, rows: npt.NDArray[np.int64]) -> Quantized:
    matrix = cast(Any, source.quantized)
    norms = matrix.norms
    return Quantized(
        Selected(matrix.codes, rows),
        matrix.codebooks,
        matrix.projection,
        None if norms is None else norms[rows],
    )


def _left_out(source: Source, wishes: _Wishes, output: Output, lengths: str) -> tuple[str, ...]:
    left = []
    if source.norms is not None and output.norms is None and lengths != "original":
        left.append("norms")
    if source.subwords is not None and output.subwords is None:
        left.append("subwords")
    if source.quantized is not None and output.quantized is None:
        left.append("quantization")
    if output.metadata and wishes.format in ("word2vec", "word2vec-text", "glove", "npy"):
        left.append("metadata")
    return tuple(left)


def _is_floret(source: Source) -> bool:
    return source.subwords is not None and source.subwords.kind == "floret"
