"""The arguments of a conversion: formats by name and extension, words and metadata from files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import BFLOAT16
from embmap.formats.format import Format
from embmap.formats.registry import get_written_formats
from embmap.words.given import Words, read_words

__all__ = [
    "choose_output_format",
    "find_format",
    "list_words",
    "make_absolute",
    "parse_dtype",
    "read_metadata",
]


def find_format(format: str | None, formats: Mapping[str, Format], argument: str) -> Format | None:
    """Return a format by its name or an alias; None for None."""
    if format is None:
        return None
    for each in formats.values():
        if format == each.name or format in each.aliases:
            return each
    raise ValueError(f"{argument} must be one of {', '.join(formats)}, not {format!r}")


def choose_output_format(path: Path, format: str | None) -> Format:
    """Return the format to write: by its name, else by the extension of the path."""
    formats = get_written_formats()
    named = find_format(format, formats, "output_format")
    if named is not None:
        return named
    for each in formats.values():
        if path.suffix.lower() in each.extensions:
            return each
    raise ValueError(
        f"{path}: no format has the extension {path.suffix!r}; name one with output_format: "
        f"{', '.join(formats)}"
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
