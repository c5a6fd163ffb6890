"""Little-endian fields, in the order in which a format lists them.

A :class:`FieldReader` walks over a range of a file and names the path, the offset and the field in
every error, so that a parser reads like the table of its format.
"""

from __future__ import annotations

import struct
from typing import Any

from embmap.errors import FormatError, TruncatedError
from embmap.io.mapping import ByteSource

__all__ = ["FieldReader"]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class FieldReader:
    """Reads consecutive fields from a range of a file.

    Attributes
    ----------
    offset : int
        Where the next field starts.
    end : int
        Offset that no field may pass.
    """

    def __init__(
        self, file: ByteSource, format: str, offset: int = 0, end: int | None = None
    ) -> None:
        self._file = file
        self._format = format
        self.offset = offset
        self.end = file.nbytes if end is None else end

    @property
    def remaining(self) -> int:
        """Bytes left before the end of the range."""
        return self.end - self.offset

    def raw(self, nbytes: int, field: str) -> bytes:
        """Return the next bytes and step over them."""
        if nbytes > self.remaining:
            raise TruncatedError(
                f"{nbytes} bytes are needed but only {max(self.remaining, 0)} are left",
                **self.where(field),
            )
        data = self._file.read(self.offset, nbytes)
        self.offset += nbytes
        return data

    def u32(self, field: str) -> int:
        """Return the next unsigned 32-bit integer."""
        value: int = _U32.unpack(self.raw(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        """Return the next unsigned 64-bit integer."""
        value: int = _U64.unpack(self.raw(8, field))[0]
        return value

    def string(self, field: str) -> str:
        """Return the next string: a u32 length in bytes, then the UTF-8 bytes."""
        data = self.raw(self.u32(f"{field} length"), field)
        return self.decode(data, self.offset - len(data), field)

    def decode(self, data: bytes, offset: int, field: str) -> str:
        """Return bytes decoded as strict UTF-8; `offset` is where they start in the file."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"not UTF-8: {error.reason}", **self.where(field, offset + error.start)
            ) from None

    def error(self, message: str, field: str, *, back: int = 0, **details: Any) -> FormatError:
        """Return a FormatError about the field that ended `back` bytes ago."""
        return FormatError(message, **self.where(field, self.offset - back), **details)

    def where(self, field: str, offset: int | None = None) -> dict[str, Any]:
        """Return the keywords of a FormatError about a field."""
        return {
            "path": self._file.path,
            "format": self._format,
            "offset": self.offset if offset is None else offset,
            "field": field,
        }
