"""What a format is: one class with all that the rest of embmap needs to know about it.

A :class:`Format` recognises its files and reads them for a conversion. The formats that
:func:`embmap.open` opens are :class:`FileFormat`; those that a conversion writes have a
:class:`Writer`. Each format has one class in its own folder and one line in
:mod:`embmap.formats.registry`; opening, conversion, the server and the command line derive from it.

A format's class is imported when a file or a listing asks for it. It imports what conversions need
when they need it, unless opening a file takes it anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from embmap.embedding_file import EmbeddingFile
from embmap.errors import ArgumentError
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix
from embmap.words.given import Words
from embmap.words.index_source import IndexChoice

if TYPE_CHECKING:
    from contextlib import ExitStack
    from typing import Any

    import numpy as np

    from embmap.formats.exchange import Input, Output, Request

__all__ = ["FLOATS", "OTHER_STEPS", "WORD_COUNTS", "FileFormat", "Format", "Writer"]

FLOATS = ("float32", "float16", "float64")
OTHER_STEPS = "other time steps"
"""What reports call the time steps of which one is converted."""
WORD_COUNTS = "word counts"
"""What reports call how often each word occurred in the training."""


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
        from embmap.words.beside_writer import refuse_line_end

        return refuse_line_end(word) if self.words_beside else None

    def find_kept(self, output: Output) -> frozenset[str]:
        """Return what the file holds of the input: `holds`, and which parts of the original."""
        return self.holds

    def choose_dtype(self, stored: np.dtype[Any], asked: np.dtype[Any] | None) -> np.dtype[Any]:
        """Return the dtype to write: the one that is asked for, else the stored one if possible."""
        import numpy as np

        from embmap.codecs.bfloat import name_dtype

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
        from embmap.formats.exchange import Input
        from embmap.vectors.streamed import Selected
        from embmap.words.table import WordTable

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
