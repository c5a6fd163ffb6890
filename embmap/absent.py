"""What takes the place of parts that a file does not have, or that it has closed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy.typing as npt

from embmap.errors import ClosedError
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix
from embmap.words.index_source import IndexSource
from embmap.words.records import Records
from embmap.words.vocabulary import Vocabulary

__all__ = ["Closed", "NoRows", "no_words"]


class NoRows:
    """The rows of a file without vectors: any use raises the FormatError that says so."""

    def __init__(self, vectors: Callable[[], Matrix]) -> None:
        self._vectors = vectors

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        return self._vectors()[row]


class Closed:
    """Replaces the parts of a closed file: any use raises ClosedError."""

    def __init__(self, path: Path | None) -> None:
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> NoReturn:
        self._raise()

    def __getitem__(self, item: object) -> NoReturn:
        self._raise()

    def __iter__(self) -> NoReturn:
        self._raise()

    def __len__(self) -> NoReturn:
        self._raise()

    def _raise(self) -> NoReturn:
        raise ClosedError(f"{self._path} is closed")


def no_words(file: ByteSource, format: str) -> Vocabulary:
    """Return the vocabulary of a file without words."""
    return Vocabulary(file, Records(0, 0, 0, format), IndexSource(file, "memory"))
