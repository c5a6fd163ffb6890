"""The formats, one line each: opening, conversion, the server and the command line derive from it.

A format is imported when its first bytes, its name or a listing ask for it. The order is the order
of recognition: formats with a magic first, then those that are guessed from their first lines.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from embmap.errors import FormatError, UnsupportedError
from embmap.formats.format import FileFormat, Format
from embmap.io.mapping import ByteSource

__all__ = [
    "FORMATS",
    "get_file_formats",
    "get_written_formats",
    "recognize",
    "recognize_opened",
]


class _Line(NamedTuple):
    """Where the class of a format is, and the bytes by which its files are known.

    `sign` are the bytes at `offset`, or what they may be; every file has them unless the format has
    `others`.
    """

    module: str
    name: str
    sign: bytes | tuple[bytes, ...] = b""
    offset: int = 0
    others: bool = True


_LINES = {
    "finalfusion": _Line("finalfusion", "FinalfusionFormat", b"FiFu"),
    "embd": _Line("embd", "EmbdFormat", b"EMBD", others=False),
    "cvc": _Line("cvc", "CvcFormat", b"CVCF", others=False),
    "dwe": _Line("dwe", "DweFormat", b"\0dwe", others=False),
    "fasttext": _Line("fasttext", "FastTextFormat", b"\xba\x16O/"),
    "npy": _Line("npy", "NpyFormat", b"\x93NUMPY", others=False),
    "npz": _Line("npy", "NpzFormat", b"PK\3\4", others=False),
    "parquet": _Line("parquet", "ParquetFormat", b"PAR1", others=False),
    "gensim": _Line("gensim", "GensimFormat", (b"\x80", b"ccopy_reg\n"), others=False),
    "safetensors": _Line("safetensors", "SafetensorsFormat", b"{", offset=8, others=False),
    "floret": _Line("text", "FloretFormat"),
    "word2vec-text": _Line("text", "Word2VecTextFormat"),
    "glove": _Line("text", "GloveFormat"),
    "word2vec": _Line("word2vec", "Word2VecFormat"),
}
_SIGNS = [(each.sign, each.offset, name) for name, each in _LINES.items() if each.sign]
_START = 10  # bytes with every sign


class _Formats(MutableMapping[str, Format]):
    """The formats by name, each imported when it is first asked for."""

    def __init__(self) -> None:
        self._formats: dict[str, Format | None] = dict.fromkeys(_LINES)

    def __getitem__(self, name: str) -> Format:
        """Return a format."""
        format = self._formats[name]
        if format is None:
            line = _LINES[name]
            module = import_module(f"embmap.formats.{line.module}.format")
            format = self._formats[name] = getattr(module, line.name)()
        return format

    def __setitem__(self, name: str, format: Format) -> None:
        """Add a format."""
        self._formats[name] = format

    def __delitem__(self, name: str) -> None:
        """Take a format out."""
        del self._formats[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is a format of that name."""
        return name in self._formats

    def __iter__(self) -> Iterator[str]:
        """Return the names in the order of recognition."""
        return iter(self._formats)

    def __len__(self) -> int:
        """Return the number of formats."""
        return len(self._formats)


FORMATS = _Formats()


def get_file_formats() -> dict[str, FileFormat]:
    """Return the formats that :func:`embmap.open` opens, by name."""
    opened = {name: each for name, each in FORMATS.items() if each.is_opened}
    return cast("dict[str, FileFormat]", opened)


def get_written_formats() -> dict[str, Format]:
    """Return the formats that a conversion writes, by name."""
    return {name: each for name, each in FORMATS.items() if each.writer is not None}


def recognize(data: ByteSource) -> Format:
    """Return the format of a file, by its bytes and never by its name."""
    start = data.fetch[0 : min(data.nbytes, _START)]
    if not start:
        raise FormatError("the file is empty", path=data.path)
    for sign, offset, name in _SIGNS:
        if start.startswith(sign, offset) and FORMATS[name].recognizes(data):
            return FORMATS[name]
    for name in FORMATS:
        if (name not in _LINES or _LINES[name].others) and FORMATS[name].recognizes(data):
            return FORMATS[name]
    raise FormatError(
        f"not a file of a known format ({', '.join(FORMATS)})",
        path=data.path,
        offset=0,
        field="magic",
        found=start[:8],
    )


def recognize_opened(data: ByteSource) -> FileFormat:
    """Return the format of a file that is opened; an error suggests a conversion for others."""
    try:
        format = recognize(data)
    except FormatError:
        from embmap.io.compressed import detect_compression

        kind = compression = detect_compression(data)
        if kind is None:
            raise
    else:
        if format.is_opened:
            return cast(FileFormat, format)
        from embmap.io.compressed import ZIP, detect_compression

        compression = detect_compression(data)
        kind = format.title if compression in (None, ZIP) else compression  # npz are zip archives
    import shlex

    path = cast(Path, data.path)
    shown = Path(path.name) if path.parent == Path.cwd() else path
    stem = shown if compression is None else shown.with_suffix("")
    command = ["embmap", "convert", str(shown), str(stem.with_suffix(".fifu"))]
    raise UnsupportedError(
        f"{kind} files cannot be opened in place; convert the file: {shlex.join(command)}",
        path=path,
    )
