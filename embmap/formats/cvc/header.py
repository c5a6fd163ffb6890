"""The JSON header of CVC files: where it is, and its values with their types checked."""

from __future__ import annotations

from typing import Any

from embmap.errors import FormatError, UnsupportedError
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_json

__all__ = ["DIALECTS", "FORMAT", "MAGIC", "PAGE_NBYTES", "Header", "read_header"]

FORMAT = "cvc"
MAGIC = b"CVCF"
DIALECTS = ("0.1", "1.0", "2.0")
PAGE_NBYTES = 4096  # on which chunks start if the file is mmap_optimized


class Header:
    """The JSON header, which ends at `end`.

    It checks the types of values and names the field in every error.
    """

    def __init__(self, source: ByteSource, dialect: str, reader: FieldReader, nbytes: int) -> None:
        self.source = source
        self.dialect = dialect
        where: dict[str, Any] = {"path": source.path, "format": FORMAT, "offset": reader.offset}
        self._where = where
        self.end = reader.offset + nbytes
        self.document = self._parse(reader.raw(nbytes, "header"))

    def _parse(self, data: bytes) -> dict[str, Any]:
        def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            record = dict(pairs)
            if len(record) != len(pairs):
                raise ValueError("an object has the same key twice")
            return record

        try:
            document = parse_json(data, refuse_repeats)
        except ValueError as error:
            raise self.error(f"the header is not JSON: {error}", "header") from None
        if not isinstance(document, dict):
            raise self.error("the header is not a JSON object", "header")
        return document

    def error(self, message: str, field: str, **details: Any) -> FormatError:
        """Return an error about a field."""
        return FormatError(message, field=field, **self._where, **details)

    def unsupported(self, message: str, field: str) -> UnsupportedError:
        """Return an error about a field that embmap does not read."""
        return UnsupportedError(message, field=field, **self._where)

    def get(self, record: Any, key: str, kinds: type | tuple[type, ...], field: str) -> Any:
        """Return a required value of one of these types; a bool does not count as an int."""
        if not isinstance(record, dict):
            raise self.error("must be an object", field, found=type(record).__name__)
        if key not in record:
            raise self.error(f"{key!r} is missing", field)
        value = record[key]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise self.error(f"{key!r} cannot be {value!r:.80}", field)
        return value

    def number(self, record: Any, key: str, field: str) -> float:
        """Return a required number."""
        value = self.get(record, key, (int, float), field)
        try:
            return float(value)
        except OverflowError:
            raise self.error(f"{key!r} is too large for float64", field) from None

    def count(self, record: Any, key: str, field: str) -> int:
        """Return a required integer that is not negative."""
        value: int = self.get(record, key, int, field)
        if not 0 <= value < 2**63:
            raise self.error(f"{key!r} cannot be {value!s:.80}", field)
        return value

    def counts(self, record: Any, keys: tuple[str, str], field: str) -> tuple[int, int]:
        """Return two of them."""
        return self.count(record, keys[0], field), self.count(record, keys[1], field)


def read_header(source: ByteSource, dialect: str | None = None) -> Header:
    """Read the header of a file, as `dialect` if one is given; by default the bytes decide."""
    reader = FieldReader(source, FORMAT)
    magic = reader.raw(4, "magic")
    if magic != MAGIC:
        raise FormatError("not a CVC file", **reader.where("magic", 0), found=magic)
    word = reader.u32("header length or version")
    if dialect is None:
        dialect = _recognize(source, reader, word)
    return Header(
        source, dialect, reader, word if dialect == "0.1" else reader.u32("header length")
    )


def _recognize(source: ByteSource, reader: FieldReader, word: int) -> str:
    """Return the dialect, given the 32-bit number after the magic."""
    if word in (1, 2):
        return f"{word}.0"
    major, minor = word & 0xFFFF, word >> 16
    looks_newer = 1 <= major <= 10 and minor <= 100
    if looks_newer and source.nbytes > 12 and source.read(12, 1) == b"{":
        raise UnsupportedError(
            f"this embmap reads CVC files of versions {', '.join(DIALECTS)}",
            **reader.where("version", 4),
            found=f"{major}.{minor}",
        )
    return "0.1"
