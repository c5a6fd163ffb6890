"""The arguments of a conversion: formats by name and extension, words and metadata from files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import BFLOAT16
from embmap.errors import ArgumentError
from embmap.formats.format import Format, Writer
from embmap.formats.registry import get_written_formats
from embmap.words.given import Words, read_words

__all__ = [
    "check_choices",
    "check_numbers",
    "choose_output_format",
    "find_format",
    "list_titles",
    "list_words",
    "make_absolute",
    "parse_dtype",
    "read_metadata",
]

_SUBWORDS = ("keep", "explicit", "none")


def find_format(format: str | None, formats: Mapping[str, Format], argument: str) -> Format | None:
    """Return a format by its name or an alias; None for None."""
    if format is None:
        return None
    for each in formats.values():
        if format == each.name or format in each.aliases:
            return each
    raise ArgumentError(f"{{{argument}}} must be one of {', '.join(formats)}, not {format!r}")


def choose_output_format(path: Path, format: str | None) -> Format:
    """Return the format to write: by its name, else by the extension of the path."""
    formats = get_written_formats()
    named = find_format(format, formats, "output_format")
    if named is not None:
        return named
    for each in formats.values():
        if path.suffix.lower() in each.extensions:
            return each
    raise ArgumentError(
        f"{path}: no format has the extension {path.suffix!r}; name one with {{output_format}}: "
        f"{', '.join(formats)}"
    )


def list_titles(able: Callable[[Writer], Any]) -> str:
    """Return the titles of the formats whose writer can do something."""
    formats = get_written_formats().values()
    return " or ".join(each.title for each in formats if each.writer and able(each.writer))


def check_numbers(**numbers: tuple[int | None, int]) -> None:
    """Refuse numbers that are below their bounds."""
    for name, (number, bound) in numbers.items():
        if number is not None and number < bound:
            raise ArgumentError(f"{{{name}}} must be at least {bound}, not {number}")


def check_choices(
    target: Format,
    *,
    n_inputs: int,
    subwords: str,
    quantize: int | None,
    opq: bool,
    compression: str | None,
    bits: int | None,
    output_layout: str | None,
) -> None:
    """Refuse what the format of the output does not have."""
    writer = cast(Writer, target.writer)
    for what, is_given, able in (
        ("{quantize}", quantize is not None or opq, lambda each: "quantization" in each.holds),
        ("{compression}", compression is not None, lambda each: each.compressions),
        ("{output_layout}", output_layout is not None, lambda each: each.dialects),
        ("{bits}", bits is not None, lambda each: each.over_time),
        ("{subwords} explicit", subwords == "explicit", lambda each: "explicit" in each.subwords),
    ):
        if is_given and not able(writer):
            raise ArgumentError(f"{what} is for {list_titles(able)} files, not {target.title}")
    for name, value, choices in (
        ("subwords", subwords, _SUBWORDS),
        ("compression", compression, writer.compressions),
        ("output_layout", output_layout, writer.dialects),
    ):
        if value is not None and value not in choices:
            raise ArgumentError(f"{{{name}}} must be one of {', '.join(choices)}, not {value!r}")
    if opq and quantize is None:
        raise ArgumentError("{opq} needs {quantize}, the number of bytes of a row")
    if n_inputs != 1 and not writer.over_time:
        raise ValueError(
            f"several inputs are the time steps of {list_titles(lambda each: each.over_time)} "
            f"files; {target.title} takes one, not {n_inputs}"
        )


def parse_dtype(dtype: npt.DTypeLike | None) -> np.dtype[Any] | None:
    """Return a dtype; numpy has no bfloat16, and ml_dtypes may be missing."""
    if dtype is None:
        return None
    return BFLOAT16 if str(dtype) == "bfloat16" else np.dtype(dtype)


def make_absolute(words: Words | None) -> Words | None:
    """Return words with their path made absolute, if they are a path.

    A relative path then keeps its meaning if the process changes its folder.
    """
    return Path(os.fsdecode(words)).absolute() if isinstance(words, str | os.PathLike) else words


def list_words(words: Words) -> list[str]:
    """Return the words to select: from a text file with one word per line, or as given."""
    if not isinstance(words, str | os.PathLike):
        return list(words)
    return list(filter(None, read_words(words)))


def read_metadata(
    metadata: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> str | Mapping[str, Any] | None:
    """Return the metadata to write: the text of a file, or the values as given."""
    if not isinstance(metadata, str | os.PathLike):
        return metadata
    data = Path(os.fsdecode(metadata)).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fsdecode(metadata)}, byte {error.start}: not UTF-8") from None
