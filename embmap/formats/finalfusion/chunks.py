"""The chunks of finalfusion files: their identifiers, names, and the types of their numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CHUNK_HEAD",
    "CHUNK_IDS",
    "CHUNK_NAMES",
    "DTYPES",
    "FORMAT",
    "VOCABULARIES",
    "Chunk",
]

FORMAT = "finalfusion"
VOCABULARIES = {1: "simple", 3: "bucket", 7: "fasttext", 8: "explicit", 9: "floret"}
CHUNK_NAMES = {
    1: "simple vocabulary",
    2: "ndarray",
    3: "bucket vocabulary",
    4: "quantized array",
    5: "metadata",
    6: "norms",
    7: "fastText vocabulary",
    8: "explicit vocabulary",
    9: "floret vocabulary",
}
CHUNK_IDS = {
    "simple": 1,
    "ndarray": 2,
    "bucket": 3,
    "quantized": 4,
    "metadata": 5,
    "norms": 6,
    "fasttext": 7,
    "explicit": 8,
    "floret": 9,
}
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
CHUNK_HEAD = 12


@dataclass(frozen=True)
class Chunk:
    """One chunk as it stands in the file.

    Attributes
    ----------
    id : int
        Its identifier.
    name : str
        What the identifier means; "unknown" otherwise.
    offset : int
        Where its identifier stands.
    nbytes : int
        Bytes after its identifier and length.
    stated_nbytes : int
        What its length field says; other than `nbytes` where a writer got it wrong.
    """

    id: int
    name: str
    offset: int
    nbytes: int
    stated_nbytes: int

    @property
    def data_offset(self) -> int:
        """Where its data starts."""
        return self.offset + CHUNK_HEAD

    @property
    def end(self) -> int:
        """Where the next chunk starts."""
        return self.data_offset + self.nbytes
