"""What is converted: words, a matrix with a row for each, and whatever else a file has.

:func:`open_source` opens files of every format that is read; the bytes decide which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.conversion.arrays import read_npy, read_npz, read_safetensors
from embmap.conversion.fasttext import MAGIC as FASTTEXT_MAGIC
from embmap.conversion.fasttext import FastTextWords, read_fasttext
from embmap.conversion.keyed_vectors import looks_like_gensim, read_keyed_vectors
from embmap.conversion.rows import ArrayMatrix, Selected
from embmap.conversion.text import read_floret_head, read_head, read_lines
from embmap.conversion.word2vec import read_sizes, read_word2vec
from embmap.conversion.words import WordTable
from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError, UnsupportedError
from embmap.formats.cvc.file import CvcFile
from embmap.formats.embd.file import EmbdFile
from embmap.formats.finalfusion.file import FinalfusionFile
from embmap.io.atomic_write import spool_beside
from embmap.io.backends import open_mapped
from embmap.io.mapping import ByteSource
from embmap.opening import FORMATS
from embmap.opening import open as open_embedding
from embmap.progress import Progress
from embmap.vectors.bfloat import BFloat16Matrix
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix
from embmap.words.beside import find_words
from embmap.words.given import Words, vocabulary_of
from embmap.words.subwords import FloretIndexer, SubwordIndexer

__all__ = ["INPUT_FORMATS", "Request", "Source", "open_source", "recognize"]

TEXTS = ("word2vec-text", "glove", "floret")
INPUT_FORMATS = (
    *FORMATS,
    "word2vec",
    *TEXTS,
    "fasttext",
    "npy",
    "npz",
    "safetensors",
    "gensim",
)


@dataclass(frozen=True)
class Source:
    """An input, open.

    Attributes
    ----------
    format : str
        Its format.
    words : WordTable or None
        Its words; None where it has none.
    vectors : Matrix
        A row for each word.
    norms : Matrix or None
        Shape (words, 1): what the rows have to be multiplied with to have their first lengths.
    metadata : str or mapping
        TOML or values; empty where it has none.
    subwords : SubwordIndexer or None
        Gives n-grams the rows of `buckets`.
    buckets : Matrix or None
        The rows of the subwords.
    quantized : ProductMatrix or None
        All rows, words first, where they are stored quantized.
    """

    format: str
    words: WordTable | None
    vectors: Matrix
    norms: Matrix | None = None
    metadata: str | Mapping[str, Any] = ""
    subwords: SubwordIndexer | None = None
    buckets: Matrix | None = None
    quantized: ProductMatrix | None = None


@dataclass(frozen=True)
class Request:
    """How an input is to be read; the parameters of :func:`embmap.convert`."""

    format: str | None = None
    layout: str | None = None
    vocab: Words | None = None
    tensor: str | None = None
    timestep: int | None = None
    limit: int | None = None
    dtype: np.dtype[Any] | None = None
    progress: Progress | None = None
    folder: Path | None = None
    cache_nbytes: int = 0


def recognize(file: ByteSource) -> str:
    """Return the format of an input from its content."""
    if not file.nbytes:
        raise FormatError("the file is empty", path=file.path)
    for name, (recognizes, _) in FORMATS.items():
        if recognizes(file):
            return name
    start = file.read(0, min(128, file.nbytes))
    for magic, name in (
        (FASTTEXT_MAGIC, "fasttext"),
        (b"\x93NUMPY", "npy"),
        (b"PK\x03\x04", "npz"),
    ):
        if start.startswith(magic):
            return name
    if looks_like_gensim(start):
        return "gensim"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= file.nbytes - 8:
        return "safetensors"
    if start.startswith(b"\x1f\x8b"):
        raise UnsupportedError("the file is compressed; unpack it with gunzip", path=file.path)
    if read_floret_head(file) is not None:
        return "floret"
    head = read_head(file)
    if head is not None:
        return "glove" if head.n is None else "word2vec-text"
    if read_sizes(file) is not None:
        return "word2vec"
    raise FormatError(
        f"not a file of a known format ({', '.join(INPUT_FORMATS)})",
        path=file.path,
        offset=0,
        found=start[:8],
    )


def open_source(path: Path, request: Request, stack: ExitStack) -> Source:
    """Open an input."""
    file = open_mapped(path, access="sequential")
    name = request.format or recognize(file)
    for asked, formats, what in (
        (request.timestep, ("dwe",), "time steps"),
        (request.tensor, ("embd", "cvc", "npz", "safetensors"), "tensors"),
        (request.layout, tuple(FORMATS), "layout"),
    ):
        if asked is not None and name not in formats:
            raise ValueError(f"{path} is {name}, which has no {what} to choose from")
    source = _OPENERS.get(name, _open_own)(file, replace(request, format=name), stack)
    if source.words is not None:
        if request.vocab is not None:
            raise ValueError(f"{path} has words of its own; vocab= is for files without")
        n = len(source.words)
    else:
        n = len(source.vectors)
        vocab = request.vocab
        if vocab is None and source.subwords is None:
            vocab = find_words(file)
        if vocab is not None:
            words = WordTable.of(vocabulary_of(vocab, n, name, vectors=file), request.limit)
            source = replace(source, words=words)
    if request.limit is not None and request.limit < n:
        n = request.limit
        if source.words is not None:
            source = replace(source, words=source.words.only(np.arange(n)))
    if len(source.vectors) != n and source.subwords is None:
        source = replace(source, vectors=Selected(source.vectors, range(n)))
    return source


def _open_own(file: ByteSource, request: Request, stack: ExitStack) -> Source:
    """Open a file of the formats that :func:`embmap.open` opens."""
    opened = open_embedding(cast(Path, file.path), format=request.format, layout=request.layout)
    stack.enter_context(opened)
    words = None
    if opened.vocab is not None:
        words = WordTable.of(opened.vocab, request.limit)
    if opened.num_timesteps is not None and request.timestep is None:
        raise ValueError(
            f"{opened.path} has {opened.num_timesteps} time steps; choose one, -1 is the last"
        )
    if opened.num_timesteps is not None:
        cast(Any, opened).cache_nbytes = request.cache_nbytes
    try:
        opened = opened.at(request.timestep)
    except IndexError as error:
        raise ValueError(f"{opened.path}: {error}") from None
    matrix = _own_matrix(opened, request)
    if isinstance(opened, FinalfusionFile):
        return _finalfusion(opened, matrix, words)
    n_rows = len(matrix) if opened.vocab is None else len(opened.vocab)
    if n_rows > len(matrix):
        raise ValueError(f"{opened.path}: {len(matrix)} rows for {n_rows} words")
    if n_rows < len(matrix):
        matrix = Selected(matrix, range(n_rows))
    return Source(opened.format, words, matrix, metadata=opened.metadata)


def _own_matrix(opened: EmbeddingFile, request: Request) -> Matrix:
    if isinstance(opened, EmbdFile) and request.tensor is not None:
        return _tensor(opened, request.tensor)
    if isinstance(opened, CvcFile) and (request.tensor is not None or len(opened.columns) > 1):
        column = opened.columns.get(request.tensor or "")
        if column is None:
            names = ", ".join(opened.columns)
            raise ValueError(f"{opened.path}: choose a column with tensor: {names}")
        return column
    if opened.vectors is None:
        hint = "; choose a tensor" if isinstance(opened, EmbdFile) else ""
        raise ValueError(f"{opened.path} has no vectors{hint}")
    return opened.vectors


def _tensor(opened: EmbdFile, name: str) -> Matrix:
    if name not in opened.tensors:
        raise ValueError(f"{opened.path} has no tensor {name!r}, but {', '.join(opened.tensors)}")
    array = opened.tensors[name]
    if array.ndim != 2:
        raise ValueError(f"{opened.path}: tensor {name!r} has {array.ndim} dimensions, not 2")
    if opened.tensors.layout(name).dtype == "bfloat16":
        return BFloat16Matrix(ArrayMatrix(array))
    return ArrayMatrix(array)


def _finalfusion(opened: FinalfusionFile, matrix: Matrix, words: WordTable | None) -> Source:
    n_words = 0 if opened.vocab is None else len(opened.vocab)
    quantized = matrix if isinstance(matrix, ProductMatrix) else None
    subwords = opened.subwords
    if opened.vocab is None and subwords is None:  # a matrix alone
        n_words = len(matrix)
    norms = None if opened.norms is None else ArrayMatrix(opened.norms[:, np.newaxis])
    buckets = None if subwords is None else Selected(matrix, range(n_words, len(matrix)))
    return Source(
        opened.format,
        words,
        Selected(matrix, range(n_words if words is None else len(words))),
        norms,
        opened.metadata_toml or "",
        subwords,
        buckets,
        quantized,
    )


def _open_word2vec(file: ByteSource, request: Request, _: ExitStack) -> Source:
    words, vectors = read_word2vec(file, limit=request.limit)
    return Source("word2vec", words, vectors)


def _open_text(file: ByteSource, request: Request, _: ExitStack) -> Source:
    name = cast(str, request.format)
    head = read_head(file, name)
    if head is None:
        raise FormatError("no text of vectors", path=file.path, format=name, offset=0)
    words, vectors = read_lines(
        file, head, name, limit=request.limit, dtype=_parsed(request), progress=request.progress
    )
    return Source(name, words, vectors)


def _open_floret(file: ByteSource, request: Request, _: ExitStack) -> Source:
    found = read_floret_head(file)
    if found is None:
        raise FormatError(
            "the first line of a floret table has eight fields: buckets, dimensions, shortest and "
            "longest n-gram, hashes, seed, and the brackets of words",
            path=file.path,
            format="floret",
            offset=0,
        )
    head, (min_n, max_n, n_hashes, seed), bow, eow = found
    try:
        indexer = FloretIndexer(min_n, max_n, head.n or 0, n_hashes, seed, bow, eow)
    except ValueError as error:
        raise FormatError(str(error), path=file.path, format="floret", offset=0) from None
    if head.dim < 1:
        raise FormatError("a row needs a number", path=file.path, format="floret", offset=0)
    numbers, buckets = read_lines(
        file, head, "floret", dtype=_parsed(request), progress=request.progress
    )
    for row, number in enumerate(numbers.encoded()):
        if number != b"%d" % row:
            raise numbers.error(row, f"the rows are numbered; this one says {number[:20]!r}")
    return Source("floret", None, Selected(buckets, range(0)), subwords=indexer, buckets=buckets)


def _parsed(request: Request) -> npt.DTypeLike:
    """Return what numbers in a text are parsed as: more digits only where they are kept."""
    return np.float64 if request.dtype == np.float64 else np.float32


def _open_fasttext(file: ByteSource, *_: object) -> Source:
    model = read_fasttext(file)
    n = len(model.words)
    if model.indexer is None:
        return Source(
            "fasttext", model.words, Selected(model.matrix, range(n)), None, model.metadata
        )
    buckets = Selected(model.matrix, range(n, n + model.indexer.n_buckets))
    vectors = FastTextWords(model)
    return Source("fasttext", model.words, vectors, None, model.metadata, model.indexer, buckets)


def _open_npy(file: ByteSource, *_: object) -> Source:
    return Source("npy", None, read_npy(cast(Path, file.path)))


def _open_npz(file: ByteSource, request: Request, stack: ExitStack) -> Source:
    # Beside the output, where there is room for it.
    spool = stack.enter_context(spool_beside((request.folder or Path()) / "array.npy"))
    return Source("npz", None, read_npz(cast(Path, file.path), request.tensor, spool))


def _open_safetensors(file: ByteSource, request: Request, _: ExitStack) -> Source:
    matrix, metadata = read_safetensors(file, request.tensor)
    return Source("safetensors", None, matrix, metadata=metadata)


def _open_gensim(file: ByteSource, *_: object) -> Source:
    words, vectors = read_keyed_vectors(file)
    table = WordTable.of(vocabulary_of(_encodable(words), len(words), "gensim"))
    return Source("gensim", table, vectors)


def _encodable(words: Iterable[str]) -> list[str]:
    """Return words that UTF-8 can hold; gensim keeps what it cannot as surrogates or worse."""
    return [word.encode(errors="replace").decode() for word in words]


_OPENERS: dict[str, Callable[[ByteSource, Request, ExitStack], Source]] = {
    "word2vec": _open_word2vec,
    "word2vec-text": _open_text,
    "glove": _open_text,
    "floret": _open_floret,
    "fasttext": _open_fasttext,
    "npy": _open_npy,
    "npz": _open_npz,
    "safetensors": _open_safetensors,
    "gensim": _open_gensim,
}
