"""An open CVC file: its chunks, columns and sections."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError
from embmap.formats.cvc.chunks import Chunk, ChunkedMatrix
from embmap.formats.cvc.header import FORMAT
from embmap.formats.cvc.layout import Section, parse
from embmap.io.mapping import ByteSource
from embmap.io.parsing import jsonable
from embmap.progress import Progress
from embmap.report import Report
from embmap.vectors.matrix import Matrix
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice

__all__ = ["CvcFile"]

_BLOCK_NBYTES = 1 << 20


class _Columns(dict[str, ChunkedMatrix]):
    """The columns that can be read, by name; a column that cannot be read raises its error."""

    def __init__(
        self, matrices: Mapping[str, ChunkedMatrix], unreadable: Mapping[str, FormatError]
    ) -> None:
        super().__init__(matrices)
        self.unreadable = unreadable

    def __missing__(self, name: str) -> ChunkedMatrix:
        """Raise the error of a column that cannot be read."""
        if name in self.unreadable:
            raise copy(self.unreadable[name])
        raise KeyError(name)


class CvcFile(EmbeddingFile):
    """A CVC file: chunks of vectors, in one column or several, and sections.

    Only the requested rows are decoded, straight from the file. A checksum is compared when its
    whole chunk is decoded; :meth:`verify` compares all of them.

    Parameters
    ----------
    file : ByteSource
        The bytes of the file.
    dialect : {"0.1", "1.0", "2.0"}, optional
        How to read it; by default the bytes decide.
    index : str or path-like
        Which index over `vocab` to use; see :func:`embmap.open`.
    vocab : path-like or sequence of str, optional
        A word for each row; CVC files have no words of their own.

    Raises
    ------
    FormatError
        If it is not a valid CVC file.
    StaleIndexError
        If an index is required and does not match.
    ValueError
        If `vocab` does not have as many words as the file has rows.
    """

    format: ClassVar[str] = FORMAT
    _parts = ("_chunks", "_columns")

    def __init__(
        self,
        file: ByteSource,
        dialect: str | None = None,
        index: IndexChoice = "auto",
        vocab: Words | None = None,
    ) -> None:
        layout = self._offsets = parse(file, dialect)
        matrices = tuple(ChunkedMatrix(file, layout, i) for i in range(len(layout.columns)))
        only = matrices[0] if len(matrices) == 1 and not layout.unreadable else None
        words = words_of(file, None, vocab, layout.n, FORMAT, index)
        super().__init__(file, layout.dialect, words, only)
        named = {matrix.column.name: matrix for matrix in matrices}
        columns = self._columns = _Columns(named, layout.unreadable)
        self._chunks = tuple(
            Chunk(file, i, chunk, columns) for i, chunk in enumerate(layout.chunks)
        )

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks in order."""
        self._check_open()
        return self._chunks

    @property
    def columns(self) -> Mapping[str, Matrix]:
        """The columns by name; the only column of versions 0.1 and 1.0 is called "vectors".

        A damaged or unknown column does not hide the others: the mapping does not list it, and
        asking for it raises FormatError or UnsupportedError. :meth:`verify` and :meth:`info` name
        such columns. A file without any column that can be read is refused by `embmap.open`.
        """
        self._check_open()
        return _Columns(self._columns, self._columns.unreadable)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections in order: start row, stop row and metadata of each."""
        self._check_open()
        return self._offsets.sections

    @property
    def metadata(self) -> dict[str, Any]:
        """The keys of the header that the format does not define, with their values."""
        self._check_open()
        return dict(self._offsets.metadata)

    def section(self, /, **match: Any) -> npt.NDArray[np.int64]:
        """Return the rows of every section and of every chunk whose metadata match.

        Parameters
        ----------
        **match : object
            Keys of the metadata with the values that they must have.

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: the rows of sections in their order, then the rows of chunks that are
            not in these sections.
        """
        self._check_open()
        none = np.empty(0, np.int64)

        def matches(metadata: dict[str, Any]) -> bool:
            return all(key in metadata and metadata[key] == match[key] for key in match)

        rows = [
            np.arange(section.start, section.stop)
            for section in self._offsets.sections
            if matches(section.metadata)
        ]
        more = [
            np.arange(chunk.start, chunk.start + chunk.rows)
            for chunk in self._offsets.chunks
            if chunk.metadata and matches(chunk.metadata)
        ]
        if rows and more:
            more = [np.setdiff1d(np.concatenate(more), np.concatenate(rows))]
        return np.concatenate((none, *rows, *more))

    def _find_sections(self, match: dict[str, Any]) -> npt.NDArray[np.int64]:
        return self.section(**match)

    def __len__(self) -> int:
        """Return the number of rows."""
        self._check_open()
        return self._offsets.n

    def info(self) -> dict[str, Any]:
        """Return what is known about the file without reading its data.

        Returns
        -------
        dict
            The keys of :meth:`EmbeddingFile.info`, and n_rows, columns, sections and chunks. A
            column that cannot be read has an error in place of dim and dtype. Chunks have metadata
            if one of them has some.
        """
        info = super().info()
        layout = self._offsets
        info["n_rows"] = layout.n
        info["columns"] = [
            {"name": jsonable(column.name), "dim": column.dimension, "dtype": column.dtype[1:]}
            for column in layout.columns
        ]
        info["columns"] += [
            {"name": jsonable(name), "error": jsonable(str(error))}
            for name, error in layout.unreadable.items()
        ]
        info["sections"] = [
            {"start": section.start, "stop": section.stop, "metadata": jsonable(section.metadata)}
            for section in layout.sections
        ]
        is_described = any(chunk.metadata for chunk in layout.chunks)
        info["chunks"] = [
            {
                "name": f"chunk {i}",
                "rows": chunk.rows,
                "compression": ", ".join(part.compression for part in chunk.parts),
                **({"metadata": jsonable(chunk.metadata)} if is_described else {}),
                "offset": chunk.offset,
                "nbytes": chunk.nbytes,
            }
            for i, chunk in enumerate(layout.chunks)
        ]
        return info

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        if self.layout == "0.1":
            report.skipped("checksums: version 0.1 has none")
        else:
            report.checked.append("checksums")
        report.checked.append("gaps")
        for start, stop in self._offsets.gaps():
            blocks = range(start, stop, _BLOCK_NBYTES)
            if any(any(self._file.read(at, min(_BLOCK_NBYTES, stop - at))) for at in blocks):
                message = f"{stop - start} bytes that belong to no chunk are not zero"
                report.warning(message, start)
        report.checked.append("vectors")
        for error in self._offsets.unreadable.values():
            report.error(str(error), error.offset)
        for i, chunk in enumerate(self._chunks):
            report.attempt(chunk.check)
            for name in self._columns:
                report.attempt(chunk.decode_unchecked, name)
            if progress is not None:
                progress("checking chunks", i + 1, len(self._chunks))
