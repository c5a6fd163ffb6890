"""What callers say, made definite: formats by name and extension, words and metadata from files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embmap.conversion.targets import TARGETS
from embmap.words.given import Words, read_words

__all__ = [
    "OUTPUT_FORMATS",
    "absolute",
    "given_metadata",
    "known_format",
    "listed_words",
    "output_format_of",
]

OUTPUT_FORMATS = (*TARGETS, "dwe")
_ALIASES = {"text": "glove", "textdims": "word2vec-text"}
_EXTENSIONS = {
    ".fifu": "finalfusion",
    ".weights": "embd",
    ".embd": "embd",
    ".cvc": "cvc",
    ".dwe": "dwe",
    ".bin": "word2vec",
    ".vec": "word2vec-text",
    ".txt": "glove",
    ".npy": "npy",
    ".safetensors": "safetensors",
}


def known_format(format: str | None, known: Sequence[str], what: str) -> str | None:
    """Return a format by its name."""
    if format is None:
        return None
    name = _ALIASES.get(format, format)
    if name not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, not {format!r}")
    return name


def output_format_of(path: Path, format: str | None) -> str:
    """Return the format that a file is to be written in."""
    name = known_format(format, OUTPUT_FORMATS, "output_format")
    if name is None:
        name = _EXTENSIONS.get(path.suffix.lower())
    if name is None:
        raise ValueError(
            f"{path}: no format has the extension {path.suffix!r}; name one with output_format: "
            f"{', '.join(OUTPUT_FORMATS)}"
        )
    return name


def absolute(words: Words | None) -> Words | None:
    """Return the path of words as it is now, wherever the process goes later."""
    return Path(os.fsdecode(words)).absolute() if isinstance(words, str | os.PathLike) else words


def listed_words(words: Words) -> list[str]:
    """Return the words to select."""
    if not isinstance(words, str | os.PathLike):
        return list(words)
    return list(filter(None, read_words(words)))


def given_metadata(
    metadata: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> str | Mapping[str, Any] | None:
    """Return the metadata that the caller gives."""
    if not isinstance(metadata, str | os.PathLike):
        return metadata
    data = Path(os.fsdecode(metadata)).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fsdecode(metadata)}, byte {error.start}: not UTF-8") from None
