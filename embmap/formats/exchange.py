"""What a conversion passes to a format and gets from it: requests, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_toml
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix, Quantized
from embmap.words.given import Words
from embmap.words.subwords import SubwordIndexer
from embmap.words.table import WordTable
from embmap.words.time_labels import TimeLabel, check_labels, find_step

__all__ = ["Input", "Original", "Output", "Request", "as_texts"]

_READ = 1 << 22


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
    import json

    return {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in values.items()
    }
