"""The errors that embmap raises.

A damaged file raises only these classes, so that it is enough to catch :class:`EmbmapError`. A
message names the fault, its place, and what to do; the attributes contain the same facts. All
errors can be pickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = [
    "ArgumentError",
    "ChecksumError",
    "Closed",
    "ClosedError",
    "EmbmapError",
    "FormatError",
    "StaleIndexError",
    "StaleIndexWarning",
    "TruncatedError",
    "UnknownWordError",
    "UnsupportedError",
]


def _rebuild(cls: type[EmbmapError], args: tuple[Any, ...], state: dict[str, Any]) -> EmbmapError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


_LONGEST = 200  # characters of a value in a message


class EmbmapError(Exception):
    """Base class of every error that embmap raises about a file or a word."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle needs: it cannot pass the keywords of the constructors."""
        return _rebuild, (type(self), self.args, self.__dict__)


class ArgumentError(ValueError):
    """An argument is wrong, or contradicts a file.

    The message that is passed has the names of arguments in braces, which are not shown.
    """

    def __init__(self, message: str) -> None:
        self._message = message
        super().__init__(self.rename(str))

    def rename(self, name: Callable[[str], str]) -> str:
        """Return the message with other names for arguments, such as options of a command."""
        return re.sub(r"\{([a-z_]+)\}", lambda found: name(found[1]), self._message)


class FormatError(EmbmapError, ValueError):
    """The bytes of a file violate its format.

    Parameters
    ----------
    message : str
        The fault, and what to do about it.
    path : path-like, optional
        The damaged file.
    format : str, optional
        The format that the file was read as, such as "finalfusion".
    offset : int, optional
        Position of the fault, in bytes from the start of the file.
    field : str, optional
        The field with the wrong value, as the description of the format names it.
    found, expected : object, optional
        The value in the file, and the values that are allowed.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,
        offset: int | None = None,
        field: str | None = None,
        found: object = None,
        expected: object = None,
    ) -> None:
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.format = format
        self.offset = offset
        self.field = field
        self.found = found
        self.expected = expected
        super().__init__(self._text())

    def _text(self) -> str:
        where = []
        if self.path is not None:
            where.append(str(self.path))
        if self.offset is not None:
            where.append(f"byte {self.offset}")
        if self.field is not None:
            where.append(self.field)
        text = f"{', '.join(where)}: {self.message}" if where else self.message
        details = []
        if self.found is not None:
            details.append(f"found {_shortened(self.found)}")
        if self.expected is not None:
            details.append(f"expected {_shortened(self.expected)}")
        return f"{text} ({', '.join(details)})" if details else text


def _shortened(value: object) -> str:
    """Return a value from a file as text that is short enough for a message."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class TruncatedError(FormatError):
    """The file ends before its data, according to its header, or shrank while it was open."""


class ChecksumError(FormatError):
    """A checksum stored in the file does not match the bytes it covers."""


class UnsupportedError(FormatError):
    """The file has a version, type or dialect that embmap does not read or write."""


class StaleIndexError(EmbmapError):
    """An index file is missing, damaged, or about other data.

    Raised if the file was opened with ``index="require"`` or with the path of an index.
    """


class StaleIndexWarning(UserWarning):
    """An index file was found but ignored: it is damaged or about other data."""


class UnknownWordError(EmbmapError, KeyError):
    """A word is not in the vocabulary and cannot be composed from subwords.

    Parameters
    ----------
    word : str
        The word, or the first unknown word of a batch.
    path : path-like, optional
        The file in which the word was looked up.
    n_unknown : int, optional
        Number of unknown words in the batch.
    wordless : bool
        True if the file has no words.
    """

    def __init__(
        self,
        word: str,
        *,
        path: str | os.PathLike[str] | None = None,
        n_unknown: int = 1,
        wordless: bool = False,
    ) -> None:
        self.word = word
        self.path = None if path is None else os.fspath(path)
        self.n_unknown = n_unknown
        self.wordless = wordless
        super().__init__(word)

    def __str__(self) -> str:
        """Return the message; KeyError would return only the key."""
        where = "" if self.path is None else f" in {self.path}"
        more = "" if self.n_unknown == 1 else f" and {self.n_unknown - 1} more"
        word = self.word if len(self.word) <= 100 else f"{self.word[:100]}..."
        hint = ", which has no words: open it with vocab=" if self.wordless else ""
        return f"no vector for {word!r}{more}{where}{hint}"


class ClosedError(EmbmapError, ValueError):
    """An operation on a file after ``close()``."""


class Closed:
    """Replaces the parts of a closed file: any use raises ClosedError."""

    def __init__(self, path: os.PathLike[str] | None) -> None:
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
