"""Compressed files as streams: gzip, bzip2, xz, and the members of zip archives.

They are recognised by their bytes. A stream is decompressed a block at a time and checked to its
end, so that neither its size nor its damage is known before. Memory is bounded for any input.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, TruncatedError, UnsupportedError
from embmap.io.mapping import ByteSource

__all__ = ["ZIP", "Decompressed", "detect_compression", "list_members"]

ZIP = "zip"
# What a file of each kind starts with, the module that decompresses it, its class and arguments.
_KINDS: dict[str, tuple[bytes, str, str, dict[str, int]]] = {
    "gzip": (b"\x1f\x8b", "zlib", "decompressobj", {"wbits": 31}),
    "bzip2": (b"BZh", "bz2", "BZ2Decompressor", {}),
    # xz -9 needs 65 MiB; a file may ask for 4 GiB.
    "xz": (b"\xfd7zXZ\0", "lzma", "LZMADecompressor", {"memlimit": 96 << 20}),
}
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # of data, and of an empty file
_MEMBERS = (b"PK\3\4", b"PK\5\6")  # of an archive, and of one without members
_CHUNK = 1 << 18  # compressed bytes read at once
_BLOCK = 1 << 20  # decompressed bytes made at once
_QUOTED = 200  # characters of another library's message, which may quote names of any length


def detect_compression(data: ByteSource) -> str | None:
    """Return how a file is compressed: "gzip", "bzip2", "xz" or "zip"; None if it is not."""
    start = data.read_at_most(0, 10)
    if start.startswith(_MEMBERS):
        return ZIP
    for kind, (magic, *_) in _KINDS.items():
        if start.startswith(magic):
            return kind if kind != "bzip2" or start[4:] in _BZIP2_BLOCKS else None
    return None


def list_members(path: Path) -> list[str]:
    """Return the names of the files in a zip archive, without what macOS adds to them."""
    import zipfile

    with _reading(path, ZIP), zipfile.ZipFile(path) as archive:
        names = [each.filename for each in archive.infolist() if not each.is_dir()]
    return [name for name in names if not name.startswith("__MACOSX/")]


class Decompressed(ByteSource):
    """What a compressed file contains, read forwards; a step back decompresses it again.

    `nbytes` grows until the end is reached. `path` is the compressed file, and for a member of an
    archive the member in it, as in ``glove.6B.zip/glove.6B.50d.txt``.
    """

    backend = "stream"

    def __init__(self, packed: ByteSource, kind: str, member: str | None = None) -> None:
        archive = cast(Path, packed.path)
        self.path = archive if member is None else archive / member
        self.mtime_ns, self.changed_ns = packed.mtime_ns, packed.changed_ns
        self.identity = packed.identity
        self._packed = packed
        self._kind = kind
        self._member = member
        self.fetch = self
        self.nbytes = 0
        self.ends = False
        self._offset, self._block = 0, b""  # the block made last, and where it starts
        self._blocks = self._begin()
        # Every format looks at the start; it is read once.
        self._head = b""
        self._head = self[0:_BLOCK]

    @property
    def zero_copy(self) -> bool:
        return False

    def __getitem__(self, item: slice) -> bytes:
        """Return a range of bytes, which the end of the stream may cut short."""
        start, stop = item.start, item.stop
        if stop <= len(self._head):
            return self._head[start:stop]
        if start < self._offset:
            self._offset, self._block = 0, b""
            self._blocks = self._begin()
        parts: list[bytes] = []
        while True:
            end = self._offset + len(self._block)
            if end > start:
                parts.append(self._block[max(start - self._offset, 0) : stop - self._offset])
            if end >= stop:
                break
            block = next(self._blocks, None)
            if block is None:
                self.ends = True
                break
            self._offset, self._block = end, block
            self.nbytes = max(self.nbytes, end + len(block))
        result = b"".join(parts)
        if len(parts) > 1:  # a reader steps back to the start of a line or row
            self._block = result + self._block[stop - self._offset :]
            self._offset = start
        return result

    def read_at_most(self, offset: int, nbytes: int) -> bytes:
        return self[offset : offset + nbytes]

    def blocks(self) -> Iterator[bytes]:
        """Return all bytes in order, a block at a time."""
        yield from self._begin()

    def current_nbytes(self) -> int:
        return self.nbytes

    def close(self) -> None:
        """Close the archive."""
        self._blocks.close()

    def _array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=object))
        return np.frombuffer(self.read(offset, nbytes), dtype).reshape(shape)

    def _begin(self) -> Generator[bytes]:
        if self._member is not None:
            return _unzip(cast(Path, self._packed.path), self._member)
        return _decompress(self._packed, self._kind)


@contextmanager
def _reading(path: Path | None, kind: str) -> Iterator[None]:
    """Turn the errors of decompressors into FormatError; errors of the system stay as they are."""
    try:
        yield
    except (FormatError, MemoryError):
        raise
    except EOFError:
        raise TruncatedError(f"the {kind} data end early", path=path, format=kind) from None
    except Exception as error:  # zipfile raises errors of many classes about damaged archives
        # It seeks to offsets that the file gives, and the system refuses some of them.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        message = f"the {kind} data are damaged: {str(error)[:_QUOTED]}"
        raise FormatError(message, path=path, format=kind) from None


def _decompress(packed: ByteSource, kind: str) -> Generator[bytes]:
    """Return the content of a file that has one or several compressed streams, end to end."""
    magic, module, name, arguments = _KINDS[kind]
    make = getattr(import_module(module), name)
    stream, data, at = None, b"", 0
    while True:
        if not data and (stream is None or stream.eof or getattr(stream, "needs_input", True)):
            data = packed.read_at_most(at, _CHUNK)
            at += len(data)
            if not data and stream is not None and stream.eof:
                return
        if stream is None or stream.eof:
            if stream is not None:
                data = data.lstrip(b"\0")  # tapes and xz pad a stream
                if not data:
                    continue
            start = at - len(data)
            if packed.read_at_most(start, len(magic)) != magic:
                raise FormatError(
                    f"bytes that are not {kind} data follow the compressed data; cut them off",
                    path=packed.path,
                    offset=start,
                )
            stream = make(**arguments)
        given = data
        with _reading(packed.path, kind):
            block = stream.decompress(data, _BLOCK)
            data = stream.unused_data if stream.eof else getattr(stream, "unconsumed_tail", b"")
            if not given and not block and not stream.eof and at == packed.nbytes:
                raise EOFError
        if block:
            yield block


def _unzip(path: Path, member: str) -> Generator[bytes]:
    """Return the content of a member of an archive."""
    import zipfile

    with _reading(path, ZIP), zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(member)
        refusal = None
        if entry.flag_bits & 1:
            refusal = "is encrypted"
        elif entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            refusal = f"is compressed by method {entry.compress_type}"
        if refusal is not None:
            raise UnsupportedError(
                f"{member} {refusal}, which embmap does not read; unpack the archive", path=path
            )
        with archive.open(entry) as stream:
            while block := stream.read(_BLOCK):
                yield block
