"""Open files for other libraries and processes: streams of Arrow, and pickles by path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from embmap.io.mapping import ByteSource
from embmap.vectors.exchange import identify, reopen_same
from embmap.vectors.matrix import Matrix
from embmap.words.vocabulary import Vocabulary

__all__ = ["Exchangeable"]


class Exchangeable(ABC):
    """What an open file hands on."""

    _file: ByteSource
    _vocabulary: Vocabulary | None
    _matrix: Matrix | None
    _reopen: partial[Any] | None = None

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _stored_vectors(self) -> Matrix: ...

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the words and vectors as an Arrow stream, in batches of a few megabytes.

        The columns are ``word``, text, unless the file has no words, and ``vector``, lists of a
        fixed size. Vectors are views of the file if it is mapped and its rows follow each other.

        Parameters
        ----------
        requested_schema : PyCapsule, optional
            An Arrow schema: the same columns with other types, to which they are converted.

        Returns
        -------
        PyCapsule
            An Arrow C stream.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        FormatError
            If the file has no vectors, or shrank. What is wrong with words or vectors is found as
            the stream is read; the reader raises an error of its own, with the same message.
        TypeError, ValueError
            If other columns are requested, or types of another kind.
        """
        from embmap.columns import stream

        vectors = self._stored_vectors()
        self._file.check_whole()
        return stream(vectors, self._vocabulary).__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by path: the copy opens the file again and checks that it is the same."""
        self._check_open()
        if self._reopen is None:
            raise TypeError(f"{self!r} was not opened by embmap.open and cannot be pickled")
        return self._reopen.func, self._reopen.args

    def _reopen_with(self, reopen: Callable[[], Any]) -> None:
        """Let this file and its matrices be pickled; `reopen` opens the file again."""
        self._reopen = partial(reopen_same, reopen, *identify(self._file))
        for way, matrix in self._matrices():
            matrix.origin = self._reopen, way

    def _matrices(self) -> Iterator[tuple[tuple[str, ...], Matrix]]:
        """Yield the matrices of the file, with the names of attributes that lead to them."""
        if self._matrix is not None:
            yield ("vectors",), self._matrix
