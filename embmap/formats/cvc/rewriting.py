"""Writing a CVC file again, with all that it holds, for conversions from CVC to CVC.

Chunks keep their boundaries. Stored rows are copied as they are unless another compression is asked
for, so that nothing is rounded twice. Sections and chunks shrink to the rows that are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from embmap.errors import ArgumentError
from embmap.formats.cvc.chunks import ChunkedMatrix
from embmap.formats.cvc.header import read_header
from embmap.formats.cvc.header_writer import (
    add_metadata,
    add_sections_to_chunks,
    align,
    write_with_header,
)
from embmap.formats.cvc.layout import ChunkLayout, Column, CvcLayout, Part
from embmap.formats.cvc.payloads import Record, encode
from embmap.formats.cvc.writer import check_compression
from embmap.io.atomic_write import replacing, spool_beside
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.vectors.matrix import BLOCK_NBYTES, Matrix

__all__ = ["Rewriting"]

# The keys of a chunk or of a column in it that are written anew.
_STORED = {"rows", "columns", "compression", "min", "scale", "offset", "size", "file_offset"}


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A CVC file that is written again.

    `rows` are the rows that are kept, in order; None for all. `column` is the only column that is
    kept; None for all. `vectors`, if given, replace the rows of the only column. None for
    `compression`, `dialect` and `metadata` keeps what the file has.
    """

    source: ByteSource
    layout: CvcLayout
    matrices: Mapping[str, ChunkedMatrix]
    column: str | None = None
    rows: npt.NDArray[np.int64] | None = None
    vectors: Matrix | None = None
    compression: str | None = None
    dialect: str | None = None
    metadata: Mapping[str, Any] | None = None
    progress: Progress | None = None

    def find_lost(self) -> set[str]:
        """Return which of sections, chunk metadata and other columns lose something."""
        lost = set()
        if self.column is not None or (self.layout.unreadable and not self._is_verbatim()):
            lost.add("other columns")
        if any(
            each.start < each.stop and not self._count(each.start, each.stop)
            for each in self.layout.sections
        ):
            lost.add("sections")
        if self.rows is not None and any(
            each.metadata and not self._count(each.start, each.start + each.rows)
            for each in self.layout.chunks
        ):
            lost.add("chunk metadata")
        return lost

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; an existing one is kept until the new one is complete."""
        columns = self._columns()
        dialect = self._dialect()
        if dialect != "2.0" and len(columns) != 1:
            raise ArgumentError(
                f"version {dialect} has one matrix; choose a column with {{tensor}}: "
                f"{', '.join(self.matrices)}"
            )
        if self.vectors is not None and len(columns) != 1:
            raise ArgumentError(
                "the rows of one column can be scaled, cut or cast; choose it with {tensor}: "
                f"{', '.join(self.matrices)}"
            )
        for matrix in columns:
            for part in (*matrix.parts, None):
                check_compression(self._choose(matrix.column, part), dialect)
        document = read_header(self.source, self.layout.dialect).document
        aligned = bool(document.get("mmap_optimized")) and dialect != "0.1"
        n = self._count(0, self.layout.n)
        with replacing(path) as out, spool_beside(path) as spool, spool_beside(path) as held:
            listed: list[dict[str, Any]] = []
            done = 0
            for number, chunk in enumerate(self.layout.chunks):
                kept = self._select(chunk)
                if kept is not None and not len(kept):
                    continue
                next(iter(self.matrices.values())).check_chunk(number)
                if aligned:
                    spool.seek(align(spool.tell()))
                start = spool.tell()
                record = Record(spool, dialect)
                parts = _Parts(self, number, kept, first=done, held=held)
                entry = parts.write(record, document["chunks"][number], columns)
                record.end()
                if aligned:
                    entry["file_offset"] = start  # the size of the header is added later
                listed.append(entry)
                done += entry["rows"]
                if self.progress is not None:
                    self.progress("converting rows", done, n)
            header = self._make_header(document, listed, columns)
            if not aligned:
                header.pop("mmap_optimized", None)
            write_with_header(out, spool, header, dialect, again=True)

    def _columns(self) -> list[ChunkedMatrix]:
        if self.column is not None:
            return [self.matrices[self.column]]
        return list(self.matrices.values())

    def _dialect(self) -> str:
        given, stored = self.dialect, self.layout.dialect
        needed = "1.0" if self.compression == "lossless" and stored == "0.1" else stored
        return given or needed

    def _choose(self, column: Column, part: Part | None) -> str:
        """Return how a part of a column is written; without a part, the default of the column."""
        stored = column.compression if part is None else part.compression
        is_kept = self._dialect() == "2.0" and column.dtype[1] in "iu"
        return stored if self.compression is None or is_kept else self.compression

    def _is_verbatim(self) -> bool:
        """Whether all payloads are copied whole."""
        families = {self.layout.dialect == "2.0", self._dialect() == "2.0"}
        is_whole = self.rows is None and self.column is None and self.vectors is None
        return is_whole and len(families) == 1 and not self._compresses_anew()

    def _compresses_anew(self) -> bool:
        return any(
            self._choose(each.column, part) != part.compression
            for each in self.matrices.values()
            for part in each.parts
        )

    def _count(self, start: int, stop: int) -> int:
        first, last = self._place(start), self._place(stop)
        return last - first

    def _place(self, row: int) -> int:
        """Return how many of the rows before a row are kept."""
        return row if self.rows is None else int(np.searchsorted(self.rows, row))

    def _select(self, chunk: ChunkLayout) -> npt.NDArray[np.int64] | None:
        """Return the rows of a chunk that are kept, counted from its first; None for all."""
        if self.rows is None:
            return None
        stop = chunk.start + chunk.rows
        return self.rows[self._place(chunk.start) : self._place(stop)] - chunk.start

    def _make_header(
        self, old: dict[str, Any], chunks: list[dict[str, Any]], columns: list[ChunkedMatrix]
    ) -> dict[str, Any]:
        """Return the header, with the keys of the old one that the format does not define."""
        shape = {"format_type", "columns", "dimension", "compression"}
        is_same = (self.layout.dialect == "2.0") == (self._dialect() == "2.0")
        dropped = set(self.layout.metadata) if self.metadata is not None else set()
        dropped |= set() if is_same else shape
        header = {key: value for key, value in old.items() if key not in dropped}
        header["num_vectors"] = sum(each["rows"] for each in chunks)
        header["chunks"] = chunks
        if self._dialect() != "2.0":
            (matrix,) = columns
            header["dimension"] = matrix.shape[1] if self.vectors is None else self.vectors.shape[1]
            header["compression"] = self._choose(matrix.column, None)
        elif not self._is_verbatim():
            described = {each["name"]: each for each in old["columns"]} if is_same else {}
            new = {"dimension": self.layout.columns[0].dimension, "dtype": "float32"}
            cut = {} if self.vectors is None else {"dimension": self.vectors.shape[1]}
            header["format_type"] = "columnar"
            header["columns"] = [
                {
                    **described.get(name := each.column.name, {"name": name, **new}),
                    **cut,
                    "compression": self._choose(each.column, None),
                }
                for each in columns
            ]
        if old.get("sections"):
            header["sections"] = list(self._shrink(old["sections"]))
            add_sections_to_chunks(header)
        if self.metadata is not None:
            add_metadata(header, self.metadata)
        return header

    def _shrink(self, sections: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for section in sections:
            start, stop = self._place(section["start_index"]), self._place(section["end_index"])
            if start < stop or section["start_index"] == section["end_index"]:
                place = {"start_index": start, "end_index": stop, "num_vectors": stop - start}
                yield {**section, **place}


class _Parts:
    """The payload of one chunk: `kept` are its rows, the first of which is row `first` of all."""

    def __init__(
        self,
        plan: Rewriting,
        number: int,
        kept: npt.NDArray[np.int64] | None,
        *,
        first: int,
        held: BinaryIO,
    ) -> None:
        self._plan = plan
        self._number = number
        self._chunk = plan.layout.chunks[number]
        self._kept = kept
        self._n = self._chunk.rows if kept is None else len(kept)
        self._first = first
        self._held = held

    def write(
        self, record: Record, old: dict[str, Any], columns: list[ChunkedMatrix]
    ) -> dict[str, Any]:
        """Write the payload and return its entry in the header."""
        if self._plan._is_verbatim():
            self._copy(record, self._chunk.offset, self._chunk.nbytes)
            return {key: value for key, value in old.items() if key != "file_offset"}
        entry = {"rows": self._n} | _get_unknown(old)
        if self._kept is not None:
            entry.pop("sections", None)  # made anew from the sections of the header
        entries = {}
        for matrix in columns:
            name, start = matrix.column.name, record.nbytes
            stored = old["columns"][name] if self._plan.layout.dialect == "2.0" else old
            place = self._write_part(record, matrix, stored)
            entries[name] = place | {"offset": start, "size": record.nbytes - start}
            if self._plan._dialect() != "2.0":
                return entry | place
            if stored is not old:
                entries[name] |= _get_unknown(stored)
        return entry | {"columns": entries}

    def _write_part(
        self, record: Record, matrix: ChunkedMatrix, stored: dict[str, Any]
    ) -> dict[str, Any]:
        """Write the part of a column and return how it is compressed."""
        plan, part = self._plan, matrix.parts[self._number]
        compression = plan._choose(matrix.column, part)
        is_stored = plan.vectors is None and compression == part.compression
        entry = {"compression": compression}
        entry |= {key: stored[key] for key in ("min", "scale") if compression == "int8"}
        if is_stored and self._kept is None:
            self._copy(record, part.offset, part.nbytes)
            return entry
        if is_stored and compression != "lossless":
            for rows in self._blocks(matrix):
                first, last = int(rows[0]), int(rows[-1])
                values = matrix.stored_rows(self._number, first, last + 1)[rows - first]
                record.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
            return entry
        field = f"chunk {self._number}, column {matrix.column.name!r}"
        pieces = self._decode(matrix)
        encoded = encode(record, pieces, compression, field, allow_overflow=False, held=self._held)
        return encoded.entry

    def _decode(self, matrix: ChunkedMatrix) -> Iterator[npt.NDArray[Any]]:
        """Return the rows in blocks, as float32."""
        at = self._first
        for rows in self._blocks(matrix):
            if self._plan.vectors is not None:
                block = self._plan.vectors[at : at + len(rows)]
            else:
                block = matrix.take(rows + self._chunk.start)
            at += len(rows)
            yield block.astype(np.float32, copy=False)

    def _blocks(self, matrix: Matrix) -> Iterator[npt.NDArray[np.int64]]:
        """Return the rows that are kept in blocks, counted from the first row of the chunk."""
        step = max(BLOCK_NBYTES // max(matrix.shape[1] * 4, 1), 1)
        for start in range(0, self._n, step):
            stop = min(start + step, self._n)
            yield np.arange(start, stop) if self._kept is None else self._kept[start:stop]

    def _copy(self, record: Record, offset: int, nbytes: int) -> None:
        for start in range(0, nbytes, BLOCK_NBYTES):
            size = min(BLOCK_NBYTES, nbytes - start)
            record.write(self._plan.source.array(offset + start, np.uint8, size).data)


def _get_unknown(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a chunk or a column in it that embmap does not write itself."""
    return {key: value for key, value in entry.items() if key not in _STORED}
