"""The formats, one line each: opening, conversion, the server and the command line derive from it.

The order is the order of recognition: formats with a magic first, then those that are guessed from
their first lines.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar, cast

from embmap.errors import FormatError, UnsupportedError
from embmap.formats.cvc.format import CvcFormat
from embmap.formats.dwe.format import DweFormat
from embmap.formats.embd.format import EmbdFormat
from embmap.formats.fasttext.format import FastTextFormat
from embmap.formats.finalfusion.format import FinalfusionFormat
from embmap.formats.format import FileFormat, Format
from embmap.formats.gensim.format import GensimFormat
from embmap.formats.npy.format import NpyFormat, NpzFormat
from embmap.formats.parquet.format import ParquetFormat
from embmap.formats.safetensors.format import SafetensorsFormat
from embmap.formats.text.format import FloretFormat, GloveFormat, Word2VecTextFormat
from embmap.formats.word2vec.format import Word2VecFormat
from embmap.io.compressed import ZIP, detect_compression
from embmap.io.mapping import ByteSource

__all__ = [
    "FORMATS",
    "get_file_formats",
    "get_written_formats",
    "recognize",
    "recognize_opened",
]

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        FinalfusionFormat(),
        EmbdFormat(),
        CvcFormat(),
        DweFormat(),
        FastTextFormat(),
        NpyFormat(),
        NpzFormat(),
        ParquetFormat(),
        GensimFormat(),
        SafetensorsFormat(),
        FloretFormat(),
        Word2VecTextFormat(),
        GloveFormat(),
        Word2VecFormat(),
    )
}

F = TypeVar("F", bound=Format)


def get_file_formats() -> dict[str, FileFormat]:
    """Return the formats that :func:`embmap.open` opens, by name."""
    opened = {name: each for name, each in FORMATS.items() if each.is_opened}
    return cast("dict[str, FileFormat]", opened)


def get_written_formats() -> dict[str, Format]:
    """Return the formats that a conversion writes, by name."""
    return {name: each for name, each in FORMATS.items() if each.writer is not None}


def recognize(data: ByteSource, formats: Iterable[F]) -> F:
    """Return the format of a file, by its bytes and never by its name."""
    if not data.nbytes:
        raise FormatError("the file is empty", path=data.path)
    names = []
    for format in formats:
        if format.recognizes(data):
            return format
        names.append(format.name)
    raise FormatError(
        f"not a file of a known format ({', '.join(names)})",
        path=data.path,
        offset=0,
        field="magic",
        found=data.read(0, min(8, data.nbytes)),
    )


def recognize_opened(data: ByteSource) -> FileFormat:
    """Return the format of a file that is opened; an error suggests a conversion for others."""
    try:
        format = recognize(data, FORMATS.values())
    except FormatError:
        kind = compression = detect_compression(data)
        if kind is None:
            raise
    else:
        if format.is_opened:
            return cast(FileFormat, format)
        compression = detect_compression(data)
        kind = format.title if compression in (None, ZIP) else compression  # npz are zip archives
    path = cast(Path, data.path)
    shown = Path(path.name) if path.parent == Path.cwd() else path
    stem = shown if compression is None else shown.with_suffix("")
    command = ["embmap", "convert", str(shown), str(stem.with_suffix(".fifu"))]
    raise UnsupportedError(
        f"{kind} files cannot be opened in place; convert the file: {shlex.join(command)}",
        path=path,
    )
