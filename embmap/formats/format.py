"""What a format is: one class with all that the rest of embmap needs to know about it.

A :class:`Format` recognises its files and reads them for a conversion. The formats that
:func:`embmap.open` opens are :class:`FileFormat`; those that a conversion writes have a
:class:`Writer`. Each format has one class in its own folder and one line in
:mod:`embmap.formats.registry`; opening, conversion, the server and the command line derive from it.

A format's class is imported with embmap. It imports its reader and its writer when they are needed,
unless opening a file takes them anyway.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import name_dtype
from embmap.embedding_file import EmbeddingFile
from embmap.errors import ArgumentError
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_toml
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix, Quantized
from embmap.vectors.streamed import Selected
from embmap.words.beside_writer import refuse_line_end
from embmap.words.given import Words
from embmap.words.index_source import IndexChoice
from embmap.words.subwords import SubwordIndexer
from embmap.words.table import WordTable
from embmap.words.time_labels import TimeLabel, check_labels, find_step

__all__ = [
    "FLOATS",
    "OTHER_STEPS",
    "WORD_COUNTS",
    "FileFormat",
    "Format",
    "Input",
    "Original",
    "Output",
    "Request",
    "Writer",
    "as_texts",
]

FLOATS = ("float32", "float16", "float64")
_READ = 1 << 22
OTHER_STEPS = "other time steps"
"""What reports call the time steps of which one is converted."""
WORD_COUNTS = "word counts"
"""What reports call how often each word occurred in the training."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """How an input is read: the arguments of :func:`embmap.convert` that concern inputs.

    Attributes
    ----------
    output_format : str or None
        The format of the output if this is its only input. An input of that format is kept whole,
        with every tensor, column or time step, unless one of them is chosen.
    over_time : bool
        Whether this is the only input of an output that holds several time steps.
    labels : tuple of int or str
        Labels of the time steps.
    scale : float or None
        Factor from integers to numbers, for arrays of integers over time.
    folder : pathlib.Path
        Where to spool what the input keeps compressed: the folder of the output.
    cache_nbytes : int
        How many decoded bytes an input may keep.
    """

    format: str | None = None
    dialect: str | None = None
    vocab: Words | None = None
    tensor: str | None = None
    timestep: int | str | None = None
    limit: int | None = None
    dtype: np.dtype[Any] | None = None
    progress: Progress | None = None
    output_format: str | None = None
    over_time: bool = False
    labels: tuple[TimeLabel, ...] = ()
    scale: float | None = None
    folder: Path = Path()
    cache_nbytes: int = 0

    def keeps_whole(self, format: str) -> bool:
        """Whether an input of a format is written in that format, with all that it holds."""
        return self.output_format == format and self.tensor is None and self.timestep is None

    def choose_step(self, path: Path | None, n: int) -> int | None:
        """Return which of `n` time steps to convert; None if the output holds all of them."""
        check_labels(self.labels, n)
        if self.timestep is None:
            if not self.over_time:
                raise ValueError(f"{path} has {n} time steps; choose one, -1 is the last")
            return None
        try:
            return find_step(self.timestep, n, self.labels)
        except IndexError as error:
            raise ValueError(f"{path}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input, open.

    Attributes
    ----------
    words : WordTable or None
        None if the file contains no words.
    vectors : Matrix
        A row for each word; of no numbers if the file has no vectors.
    norms : Matrix or None
        Shape (words, 1): the lengths of the rows before they were scaled.
    metadata : str or mapping
        TOML or values.
    subwords : SubwordIndexer or None
        Gives n-grams their rows in `buckets`.
    quantized : ProductMatrix or None
        All rows, first of words, then of n-grams, if the file stores them quantized.
    file : EmbeddingFile or None
        The open file, from which the writer of its own format copies `parts`.
    parts : tuple of str
        What the file holds beyond the other attributes, by its names in reports, for example "other
        tensors".
    steps : sequence of Matrix
        The vectors at every time step, if the file has several and all of them are converted.
    scale : float or None
        Factor from `steps` to numbers if they are integers.
    data : ByteSource or None
        The bytes of the file, if its writer copies them.
    attributes : mapping
        Further numbers of the words by name, each of shape (words,), for the writer of the format.
    is_whole : bool
        Whether the file is written again with every tensor, column or time step; see
        :meth:`Request.keeps_whole`.
    """

    format: str
    words: WordTable | None
    vectors: Matrix
    norms: Matrix | None = None
    metadata: str | Mapping[str, Any] = ""
    subwords: SubwordIndexer | None = None
    buckets: Matrix | None = None
    quantized: ProductMatrix | None = None
    file: EmbeddingFile | None = None
    parts: tuple[str, ...] = ()
    steps: Sequence[Matrix] = ()
    scale: float | None = None
    data: ByteSource | None = None
    attributes: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    is_whole: bool = False

    @property
    def has_only_ngrams(self) -> bool:
        """Whether the rows belong to n-grams and none to words, as in a floret table."""
        return self.subwords is not None and self.subwords.kind == "floret"


@dataclass(frozen=True, kw_only=True)
class Original:
    """The only input of an output of the same format, or with the same time steps.

    Attributes
    ----------
    rows : numpy.ndarray or None
        Shape (n,), int64: the rows that are written; None if these are all rows.
    changed : bool
        Whether rows differ from the stored ones: they are scaled or cut, or the caller chose their
        dtype.
    dim : int or None
        How many numbers of each row are written, if the rows are cut and not changed otherwise.
    words_changed : bool
        Whether words differ from the stored ones: bytes that are not UTF-8 were replaced.
    """

    source: Input
    rows: npt.NDArray[np.int64] | None = None
    changed: bool = False
    dim: int | None = None
    words_changed: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the input is written again as a whole, with every row as it is stored."""
        return self.source.is_whole and not self.changed and self.rows is None


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a :class:`Writer` writes.

    Attributes
    ----------
    words : WordTable or None
        None only if the writer does not need words, or if all rows belong to n-grams.
    vectors : Matrix
        A row for each word, in the dtype to store.
    steps : sequence
        Integers within int16 at every time step, in formats that hold several: matrices, or
        iterables of blocks of rows.
    scale : float
        Factor from `steps` to numbers, exactly a float32.
    norms : array-like or None
        Shape (words,): the lengths that the rows had; complete once the rows have been written.
    subwords : SubwordIndexer or None
        Gives n-grams their rows in `buckets`.
    quantized : Quantized or None
        The rows to store in place of `vectors` and `buckets`.
    original : Original or None
        The input if its parts are kept where that is possible.
    """

    path: Path
    words: WordTable | None
    vectors: Matrix
    steps: Sequence[Blocks] = ()
    scale: float = 1.0
    norms: npt.ArrayLike | None = None
    metadata: str | Mapping[str, Any] = ""
    subwords: SubwordIndexer | None = None
    buckets: Matrix | None = None
    quantized: Quantized | None = None
    compression: str | None = None
    dialect: str | None = None
    tensor: str = "embeddings.word_embeddings.weight"
    progress: Progress | None = None
    original: Original | None = None

    def values(self) -> dict[str, Any]:
        """Return the metadata as values."""
        if not isinstance(self.metadata, str):
            return dict(self.metadata)
        try:
            return parse_toml(self.metadata)
        except ValueError as error:
            raise ValueError(f"the metadata are not TOML: {error}") from None

    def texts(self) -> dict[str, str]:
        """Return the metadata as text, and as JSON where a value is not text."""
        return as_texts(self.values())

    def pairs(self) -> Iterator[tuple[bytes, npt.NDArray[Any]]]:
        """Return the words, encoded, each with its row."""
        words = iter(() if self.words is None else self.words.encoded())
        for _, block in self.vectors.blocks():
            for row in block:
                yield next(words), row

    def write_rows(self, out: BinaryIO, vectors: Matrix | None = None) -> None:
        """Write the vectors, or others, row after row, little-endian."""
        for _, block in (self.vectors if vectors is None else vectors).blocks():
            little = block.astype(block.dtype.newbyteorder("<"), copy=False)
            out.write(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)

    def copy_bytes(self, out: BinaryIO, data: ByteSource, start: int = 0) -> None:
        """Write the bytes of a file from `start` on as they are, a few megabytes at a time."""
        for begin in range(start, data.nbytes, _READ):
            data.check_whole()
            stop = min(begin + _READ, data.nbytes)
            out.write(data.array(begin, np.uint8, stop - begin).data)
            if self.progress is not None:
                self.progress("copying bytes", stop, data.nbytes)


def as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as text, and as JSON where they are not text."""
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in values.items()
    }


class Writer(ABC):
    """How a conversion writes a format.

    Attributes
    ----------
    dtypes : tuple of str
        The dtypes that it stores; the first replaces every other one.
    stored_dtype : str or None
        The dtype of the file if it stores others than those that it takes.
    holds : frozenset of str
        What it stores beside words and vectors: "norms", "quantization", "metadata". A format that
        holds norms gets rows of unit length.
    subwords : frozenset of str
        The kinds of indexers that it stores, with a row for each bucket.
    needs_words : bool
        Whether an input without words cannot be written.
    needs_vectors : bool
        Whether an input without vectors cannot be written.
    words_beside : bool
        Whether words go into a text file beside the output.
    over_time : bool
        Whether several inputs become time steps.
    compressions : tuple of str
        The choices of `compression`.
    dialects : tuple of str
        The choices of `dialect`.
    keeps_repeats : bool
        Whether a file of this format that is written again keeps the rows of repeated words.
    keeps_dtype : bool
        Whether such a file keeps any dtype, also one that is not in `dtypes`.
    """

    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    stored_dtype: ClassVar[str | None] = None
    holds: ClassVar[frozenset[str]] = frozenset()
    subwords: ClassVar[frozenset[str]] = frozenset()
    needs_words: ClassVar[bool] = True
    needs_vectors: ClassVar[bool] = True
    words_beside: ClassVar[bool] = False
    over_time: ClassVar[bool] = False
    compressions: ClassVar[tuple[str, ...]] = ()
    dialects: ClassVar[tuple[str, ...]] = ()
    keeps_repeats: ClassVar[bool] = False
    keeps_dtype: ClassVar[bool] = False

    @abstractmethod
    def write(self, output: Output) -> None:
        """Write the file."""

    def refuse(self, word: str) -> str | None:
        """Return why the format cannot hold a word; None if it can."""
        return refuse_line_end(word) if self.words_beside else None

    def find_kept(self, output: Output) -> frozenset[str]:
        """Return what the file holds of the input: `holds`, and which parts of the original."""
        return self.holds

    def choose_dtype(self, stored: np.dtype[Any], asked: np.dtype[Any] | None) -> np.dtype[Any]:
        """Return the dtype to write: the one that is asked for, else the stored one if possible."""
        if asked is not None and name_dtype(asked) not in self.dtypes:
            choices = " or ".join(self.dtypes)
            raise ArgumentError(f"{{dtype}} must be {choices}, not {name_dtype(asked)}")
        chosen = asked or (stored if stored.name in self.dtypes else np.dtype(self.dtypes[0]))
        return chosen.newbyteorder("=")


class Format(ABC):
    """A format: how its files are recognised, read by a conversion, and written.

    Attributes
    ----------
    name : str
        The name in arguments and reports.
    title : str
        The name in messages.
    aliases : tuple of str
        Further names in arguments.
    extensions : tuple of str
        Outputs with one of these extensions are written in this format by default.
    dialects : tuple of str
        The choices of `layout`.
    magic : bytes
        The bytes that every file starts with.
    is_opened : bool
        Whether :func:`embmap.open` opens its files. An attribute, because opening a file asks every
        format, and isinstance with an abstract class takes a microsecond.
    is_streamed : bool
        Whether :meth:`read` reads a file forwards, so that it may be a stream.
    has_tensors : bool
        Whether a file may hold several matrices.
    has_timesteps : bool
        Whether a file may hold vectors over time.
    is_scaled : bool
        Whether a file may hold integers over time without a scale.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    extensions: ClassVar[tuple[str, ...]] = ()
    dialects: ClassVar[tuple[str, ...]] = ()
    magic: ClassVar[bytes] = b""
    is_opened: ClassVar[bool] = False
    is_streamed: ClassVar[bool] = False
    has_tensors: ClassVar[bool] = False
    has_timesteps: ClassVar[bool] = False
    is_scaled: ClassVar[bool] = False
    writer: ClassVar[Writer | None] = None

    def recognizes(self, data: ByteSource) -> bool:
        """Return whether the bytes of a file, which is not empty, look like this format."""
        magic, n = self.magic, len(self.magic)
        return 0 < n <= data.nbytes and data.fetch[0:n] == magic

    @abstractmethod
    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        """Open an input; `stack` closes what has to be closed after the conversion."""


class FileClass(Protocol):
    """A class of files, such as :class:`embmap.cvc.CvcFile`; `dialect` has been checked."""

    def __call__(
        self, data: ByteSource, dialect: str | None, index: IndexChoice, vocab: Words | None, /
    ) -> EmbeddingFile:
        """Open a file."""
        ...


class FileFormat(Format):
    """A format whose files :func:`embmap.open` opens."""

    is_opened = True
    file_class: ClassVar[FileClass]

    def open(
        self,
        data: ByteSource,
        dialect: str | None = None,
        index: IndexChoice = "auto",
        vocab: Words | None = None,
    ) -> EmbeddingFile:
        """Open a file; the arguments are as for :func:`embmap.open`."""
        if dialect is not None and dialect not in self.dialects:
            dialects = ", ".join(self.dialects)
            raise ArgumentError(f"{{layout}} must be one of {dialects}, not {dialect!r}")
        return self.file_class(data, dialect, index, vocab)

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        """Open an input through its file, a row of the chosen matrix for each word."""
        file = stack.enter_context(self.open(data, request.dialect))
        matrix = self.choose_matrix(file, request)
        words = None if file.vocab is None else WordTable.of(file.vocab, request.limit)
        n = len(matrix) if file.vocab is None else len(file.vocab)
        if n > len(matrix):
            raise ValueError(f"{file.path}: {len(matrix)} rows for {n} words")
        if n < len(matrix):
            matrix = Selected(matrix, range(n))
        return Input(
            format=self.name, words=words, vectors=matrix, metadata=file.metadata, file=file
        )

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        """Return the matrix of a file that is converted."""
        if file.vectors is None:
            hint = "; choose one with {tensor}" if self.has_tensors else ""
            raise ArgumentError(f"{file.path} has no vectors{hint}")
        return file.vectors
