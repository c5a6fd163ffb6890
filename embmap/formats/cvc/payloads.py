"""Writing the payloads of CVC files, a few rows at a time.

fp16 encodes each number by itself. int8 needs the range of all numbers of a chunk first, and
lossless the counts of all its bytes, so their rows are kept in a temporary file and read again.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from embmap.codecs.affine import AffineEncoder, encode_affine
from embmap.codecs.half import encode_half
from embmap.codecs.planes import PlanesEncoder
from embmap.formats.cvc.header_writer import align, write_with_header
from embmap.io.atomic_write import replacing, spool_beside

__all__ = ["ChunkSpool", "Encoded", "Record", "encode", "spool_chunks"]

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


@dataclass(kw_only=True)
class ChunkSpool:
    """The chunks of a file that is being written, in a temporary file until the header is known.

    `held` is another temporary file, for the encoders. `aligned` chunks start on pages. `entries`
    are the entries of the chunks in the header, `n` their rows.
    """

    out: BinaryIO
    spool: BinaryIO
    held: BinaryIO
    dialect: str
    aligned: bool
    entries: list[dict[str, Any]] = field(default_factory=list)
    n: int = 0

    @contextlib.contextmanager
    def add(self, *, keeps_empty: bool = False) -> Iterator[tuple[Record, dict[str, Any]]]:
        """Add a chunk: the block writes the payload and fills in the entry, with its rows.

        A chunk without rows is not stored, unless `keeps_empty` is true.
        """
        end = self.spool.tell()
        start = self.spool.seek(align(end)) if self.aligned else end
        record = Record(self.spool, self.dialect)
        entry: dict[str, Any] = {}
        yield record, entry
        record.end()
        if not entry["rows"] and not keeps_empty:
            self.spool.seek(end)
            self.spool.truncate()
            return
        if self.aligned:
            entry["file_offset"] = start  # the size of the header is added later
        self.entries.append(entry)
        self.n += entry["rows"]

    def finish(self, header: dict[str, Any], *, again: bool = False) -> None:
        """Write the file; `again` is for :func:`write_with_header`."""
        write_with_header(self.out, self.spool, header, self.dialect, again=again)


@contextlib.contextmanager
def spool_chunks(
    path: str | os.PathLike[str], dialect: str, *, aligned: bool = False
) -> Iterator[ChunkSpool]:
    """Replace a file with the chunks that the block adds and the header that it finishes with."""
    with replacing(path) as out, spool_beside(path) as spool, spool_beside(path) as held:
        yield ChunkSpool(out=out, spool=spool, held=held, dialect=dialect, aligned=aligned)


class Encoded(NamedTuple):
    """The shape of a chunk of a column that was written, and its entry in the header."""

    rows: int
    columns: int
    entry: dict[str, Any]


def encode(
    record: Record,
    pieces: Iterable[npt.NDArray[Any]],
    compression: str,
    where: str,
    *,
    allow_overflow: bool,
    held: BinaryIO,
) -> Encoded:
    """Write the payload of `pieces`, blocks of rows; `held` is a temporary file.

    `where` names them in errors. With `allow_overflow`, fp16 stores numbers beyond 65504 as
    infinities.
    """
    entry: dict[str, Any] = {"compression": compression}
    n = columns = 0
    if compression in ("fp16", "none"):
        for piece in pieces:
            n, columns = n + len(piece), piece.shape[1]
            if compression == "fp16":
                with _about(where):
                    piece = encode_half(piece, allow_overflow=allow_overflow)
            record.write(_stored(piece))
        return Encoded(n, columns, entry)
    encoder = AffineEncoder() if compression == "int8" else PlanesEncoder()
    held.seek(0)
    held.truncate()
    dtype = np.dtype(np.float32)
    for piece in pieces:
        n, columns = n + len(piece), piece.shape[1]
        with _about(where):
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
    with _about(where):
        scale, minimum = encoder.fit()
    for values in again():
        record.write(_stored(encode_affine(values, scale, minimum)))
    return Encoded(n, columns, {**entry, "min": float(minimum), "scale": float(scale)})


@contextlib.contextmanager
def _about(where: str) -> Iterator[None]:
    """Name the chunk or column in an error of an encoder."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _single(piece: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if piece.dtype.itemsize > 4:
        raise ValueError(f"lossless vectors must be float16 or float32, not {piece.dtype}")
    return piece.astype(np.float32, copy=False)


def _stored(values: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of values in row-major and little-endian order."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data
