"""The chunks of finalfusion files: their identifiers, names, and the types of their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

__all__ = ["CHUNK_HEAD", "DTYPES", "FORMAT", "Chunk", "ChunkType"]

FORMAT = "finalfusion"
CHUNK_HEAD = 12  # bytes of the identifier and the length before the data of a chunk
DTYPES = {
    0: "<i1",
    1: "<u1",
    2: "<i2",
    3: "<u2",
    4: "<i4",
    5: "<u4",
    6: "<i8",
    7: "<u8",
    10: "<f4",
    11: "<f8",
}


class ChunkType(IntEnum):
    """The types of chunks by their identifiers."""

    title: str
    vocabulary: str | None

    def __new__(cls, id: int, title: str, vocabulary: str | None = None) -> Self:
        """Return a member with its identifier and the name that people read.

        `vocabulary` is the kind of a vocabulary: "simple", or the kind of its subword indexer.
        """
        member = int.__new__(cls, id)
        member._value_ = id
        member.title, member.vocabulary = title, vocabulary
        return member

    SIMPLE = 1, "simple vocabulary", "simple"
    NDARRAY = 2, "ndarray"
    BUCKET = 3, "bucket vocabulary", "bucket"
    QUANTIZED = 4, "quantized array"
    METADATA = 5, "metadata"
    NORMS = 6, "norms"
    FASTTEXT = 7, "fastText vocabulary", "fasttext"
    EXPLICIT = 8, "explicit vocabulary", "explicit"
    FLORET = 9, "floret vocabulary", "floret"

    @classmethod
    def of(cls, id: int) -> ChunkType | None:
        """Return the type with an identifier, None for an unknown identifier."""
        # A call of the class takes a microsecond, and several when it fails.
        return cls._value2member_map_.get(id)  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One chunk of a file.

    Attributes
    ----------
    id : int
        Its identifier in the file.
    type : ChunkType or None
        What it holds; None if that is unknown. The identifiers of the draft differ.
    offset : int
        Where the chunk starts, in bytes: at its identifier.
    nbytes : int
        Length of its data, in bytes.
    stated_nbytes : int
        Its length field, which differs from `nbytes` if the writer got it wrong.
    """

    id: int
    type: ChunkType | None
    offset: int
    nbytes: int
    stated_nbytes: int

    @property
    def name(self) -> str:
        """The name of its type; "unknown" if it has none."""
        return "unknown" if self.type is None else self.type.title

    @property
    def data_offset(self) -> int:
        """Where its data start."""
        return self.offset + CHUNK_HEAD

    @property
    def end(self) -> int:
        """Where the next chunk starts."""
        return self.data_offset + self.nbytes
