"""Writing the payloads of CVC files, a few rows at a time.

fp16 encodes each number by itself. int8 needs the range of all numbers of a chunk first, and
lossless the counts of all its bytes, so their rows are kept in a temporary file and read again.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from embmap.codecs.affine import AffineEncoder, encode_affine
from embmap.codecs.half import encode_half
from embmap.codecs.planes import PlanesEncoder

__all__ = ["Encoded", "Record", "encode"]

_READ_NBYTES = 1 << 22  # a multiple of eight values, which lossless encodes together


class Record:
    """A chunk that is being written; its size and checksum are filled in at its end."""

    def __init__(self, spool: BinaryIO, dialect: str) -> None:
        self._spool = spool
        self._start = spool.tell()
        self._has_checksum = dialect != "0.1"
        self._checksum = 0
        self.nbytes = 0
        spool.write(bytes(8 if self._has_checksum else 4))

    def write(self, data: bytes | memoryview) -> None:
        """Write a part of the payload."""
        self.nbytes += len(data)
        if self.nbytes >= 2**32:
            raise ValueError("a chunk must stay below 4 GiB; chunk_rows must be smaller")
        if self._has_checksum:
            self._checksum = zlib.crc32(data, self._checksum)
        self._spool.write(data)

    def end(self) -> None:
        """Fill in the size and the checksum."""
        end = self._spool.tell()
        self._spool.seek(self._start)
        self._spool.write(struct.pack("<I", self.nbytes))
        if self._has_checksum:
            self._spool.write(struct.pack("<I", self._checksum))
        self._spool.seek(end)


class Encoded(NamedTuple):
    """The shape of a chunk of a column that was written, and its entry in the header."""

    rows: int
    columns: int
    entry: dict[str, Any]


def encode(
    record: Record,
    pieces: Iterable[npt.NDArray[Any]],
    compression: str,
    field: str,
    *,
    allow_overflow: bool,
    held: BinaryIO,
) -> Encoded:
    """Write the payload of `pieces`, blocks of rows; `held` is a temporary file.

    `field` names them in errors. With `allow_overflow`, fp16 stores numbers beyond 65504 as
    infinities.
    """
    entry: dict[str, Any] = {"compression": compression}
    n = columns = 0
    if compression in ("fp16", "none"):
        for piece in pieces:
            n, columns = n + len(piece), piece.shape[1]
            if compression == "fp16":
                with _about(field):
                    piece = encode_half(piece, allow_overflow=allow_overflow)
            record.write(_stored(piece))
        return Encoded(n, columns, entry)
    encoder = AffineEncoder() if compression == "int8" else PlanesEncoder()
    held.seek(0)
    held.truncate()
    dtype = np.dtype(np.float32)
    for piece in pieces:
        n, columns = n + len(piece), piece.shape[1]
        with _about(field):
            if compression == "lossless":
                piece = _single(piece)
            encoder.see(piece)
        dtype = piece.dtype
        held.write(_stored(piece))

    def again() -> Iterator[npt.NDArray[Any]]:
        held.seek(0)
        while data := held.read(_READ_NBYTES):
            yield np.frombuffer(data, dtype.newbyteorder("<"))

    if isinstance(encoder, PlanesEncoder):
        for part in encoder.encode(again):
            record.write(part)
        return Encoded(n, columns, entry)
    with _about(field):
        scale, minimum = encoder.fit()
    for values in again():
        record.write(_stored(encode_affine(values, scale, minimum)))
    return Encoded(n, columns, {**entry, "min": float(minimum), "scale": float(scale)})


@contextlib.contextmanager
def _about(field: str) -> Iterator[None]:
    """Name the chunk or column in an error of an encoder."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def _single(piece: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if piece.dtype.itemsize > 4:
        raise ValueError(f"lossless vectors must be float16 or float32, not {piece.dtype}")
    return piece.astype(np.float32, copy=False)


def _stored(values: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of values in row-major and little-endian order."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data
