"""Writing a CVC file again, with all that it holds, for conversions and for changes to a file.

Chunks keep their boundaries. Stored rows are copied as they are unless another compression is asked
for, so that nothing is rounded twice. Sections and chunks shrink to the rows that are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import ArgumentError
from embmap.formats.cvc.chunks import ChunkedMatrix
from embmap.formats.cvc.header import read_header
from embmap.formats.cvc.header_writer import add_metadata, add_sections_to_chunks
from embmap.formats.cvc.layout import ChunkLayout, CvcLayout
from embmap.formats.cvc.payloads import ChunkSpool, Record, encode, spool_chunks
from embmap.formats.cvc.writer import check_compression
from embmap.formats.exchange import Input
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.vectors.blocks import rechunk
from embmap.vectors.matrix import BLOCK_NBYTES, Matrix

__all__ = ["CvcInput", "Rewriting", "Target"]

# The keys of a chunk or of a column in it that are written anew.
_STORED = {"rows", "columns", "compression", "min", "scale", "offset", "size", "file_offset"}


@dataclass(frozen=True, kw_only=True)
class CvcInput(Input):
    """An open CVC file, and the only column of it that is converted if one of several is chosen."""

    column: str | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """A column that is written: the rows of a stored column, or `values`, blocks of rows.

    `described` is the entry of `values` in the header. If `values` replace a stored column, `dim`
    is the length of a row instead. None for `compression` keeps how the stored column is
    compressed.
    """

    name: str
    stored: ChunkedMatrix | None = None
    values: Iterator[npt.NDArray[Any]] | None = None
    dim: int | None = None
    described: Mapping[str, Any] | None = None
    compression: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A CVC file that is written again.

    `columns` are written, in order. `keeps_unreadable` keeps columns that cannot be read if
    payloads are copied whole. `rows` are the rows that are kept, in order; None for all. None for
    `compression`, `dialect` and `metadata` keeps what the file has.

    `append`, if given, adds chunks and returns the entries of their columns. Their rows become a
    section if `section`, its metadata, is not None.
    """

    source: ByteSource
    layout: CvcLayout
    matrices: Mapping[str, ChunkedMatrix]
    columns: Sequence[Target]
    keeps_unreadable: bool = True
    rows: npt.NDArray[np.int64] | None = None
    compression: str | None = None
    dialect: str | None = None
    metadata: Mapping[str, Any] | None = None
    allow_overflow: bool = False
    append: Callable[[ChunkSpool], Sequence[Mapping[str, Any]]] | None = None
    section: Mapping[str, Any] | None = None
    progress: Progress | None = None

    def find_lost(self) -> set[str]:
        """Return which of sections, chunk metadata and other columns lose something."""
        lost = set()
        if len(self.columns) < len(self.matrices) or (
            self.layout.unreadable and not self.is_verbatim
        ):
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
        columns, dialect = self.columns, self.dialect_written
        for problem, is_there in (
            (f"version {dialect} has one matrix; choose a column", dialect != "2.0"),
            (
                "the rows of one column can be scaled, cut or cast; choose it",
                any(each.described is None and each.values is not None for each in columns),
            ),
        ):
            if is_there and len(columns) != 1:
                known = ", ".join(self.matrices)
                raise ArgumentError(f"{problem} with {{tensor}}: {known}")
        for target in columns:
            for number in (*range(len(self.layout.chunks)), None):
                check_compression(self.choose(target, number), dialect)
        document = read_header(self.source, self.layout.dialect).document
        aligned = bool(document.get("mmap_optimized")) and dialect != "0.1"
        n = self._count(0, self.layout.n)
        kept = [self._select(chunk) for chunk in self.layout.chunks]
        sizes = [
            chunk.rows if rows is None else len(rows)
            for chunk, rows in zip(self.layout.chunks, kept, strict=True)
        ]
        given = {
            each.name: rechunk(each.values, (*sizes, 1))
            for each in columns
            if each.values is not None
        }
        with spool_chunks(path, dialect, aligned=aligned) as chunks:
            for number, rows in enumerate(kept):
                values = {name: next(each) for name, each in given.items()}
                if rows is not None and not len(rows):
                    continue
                next(iter(self.matrices.values())).check_chunk(number)
                parts = _Parts(self, number, rows, values=values, chunks=chunks)
                with chunks.add(keeps_empty=True) as (record, entry):
                    entry |= parts.write(record, document["chunks"][number])
                if self.progress is not None:
                    self.progress("copying rows", chunks.n, n)
            for name, each in given.items():
                if any(len(block) for block in next(each)):
                    raise ValueError(f"column {name!r} has more rows than the file, which has {n}")
            appended = self.append(chunks) if self.append is not None else ()
            header = self._make_header(document, chunks.entries, n)
            if appended and dialect != "2.0":
                header["dimension"] = appended[0]["dimension"]  # a file without rows may have none
            if not aligned:
                header.pop("mmap_optimized", None)
            chunks.finish(header, again=True)

    @cached_property
    def is_verbatim(self) -> bool:
        """Whether all payloads are copied whole; columns may follow in them."""
        copied = [each.stored for each in self.columns if each.values is None]
        families = {self.layout.dialect == "2.0", self.dialect_written == "2.0"}
        return (
            self.rows is None
            and len(families) == 1
            and copied == list(self.matrices.values())
            and (self.keeps_unreadable or not self.layout.unreadable)
            and not any(
                self.choose(each, number) != part.compression
                for each in self.columns
                if each.values is None and each.stored is not None
                for number, part in enumerate(each.stored.parts)
            )
        )

    @cached_property
    def dialect_written(self) -> str:
        """The version that is written."""
        given, stored = self.dialect, self.layout.dialect
        needed = "1.0" if self.compression == "lossless" and stored == "0.1" else stored
        return given or needed

    def choose(self, target: Target, number: int | None) -> str:
        """Return how a column is written in a chunk; without a number, its default."""
        if target.stored is None or target.compression is not None:
            return str(target.compression)
        column = target.stored.column
        stored = column.compression if number is None else target.stored.parts[number].compression
        is_kept = self.dialect_written == "2.0" and column.dtype[1] in "iu"
        return stored if self.compression is None or is_kept else self.compression

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
        self, old: dict[str, Any], chunks: list[dict[str, Any]], n_kept: int
    ) -> dict[str, Any]:
        """Return the header, with the keys of the old one that the format does not define."""
        shape = {"format_type", "columns", "dimension", "compression"}
        is_same = (self.layout.dialect == "2.0") == (self.dialect_written == "2.0")
        dropped = set(self.layout.metadata) if self.metadata is not None else set()
        dropped |= set() if is_same else shape
        header = {key: value for key, value in old.items() if key not in dropped}
        header["num_vectors"] = n = sum(each["rows"] for each in chunks)
        header["chunks"] = chunks
        described = {each["name"]: each for each in old.get("columns", ())} if is_same else {}
        entries = {
            each.stored.column.name if each.stored else each.name: self._describe(each, described)
            for each in self.columns
        }
        if self.dialect_written != "2.0":
            (entry,) = entries.values()
            header |= {key: entry[key] for key in ("dimension", "compression")}
        else:
            # Columns that cannot be read keep their places.
            places = {**described, **entries} if self.is_verbatim else entries
            header |= {"format_type": "columnar", "columns": list(places.values())}
        sections = list(self._shrink(old.get("sections") or ()))
        if self.section is not None and n > n_kept:
            place = {"start_index": n_kept, "end_index": n, "num_vectors": n - n_kept}
            sections.append({**place, "metadata": dict(self.section)})
        if sections or old.get("sections"):
            header["sections"] = sections
            add_sections_to_chunks(header)
        if self.metadata is not None:
            add_metadata(header, self.metadata)
        return header

    def _describe(self, target: Target, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry of a column; `described` has the entries of the stored columns."""
        entry: dict[str, Any] = {}
        if target.stored is not None:
            column = target.stored.column
            entry = {"dimension": column.dimension, "dtype": "float32"}
            entry = dict(described.get(column.name, entry))
            if target.values is not None:  # conversions scale, cut and cast to float32
                entry |= {"dtype": "float32", "dimension": target.dim or column.dimension}
        entry |= target.described or {}
        return entry | {"name": target.name, "compression": self.choose(target, None)}

    def _shrink(self, sections: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for section in sections:
            start, stop = self._place(section["start_index"]), self._place(section["end_index"])
            if start < stop or section["start_index"] == section["end_index"]:
                place = {"start_index": start, "end_index": stop, "num_vectors": stop - start}
                yield {**section, **place}


class _Parts:
    """The payload of one chunk: `kept` are its rows, `values` the rows of columns written anew."""

    def __init__(
        self,
        plan: Rewriting,
        number: int,
        kept: npt.NDArray[np.int64] | None,
        *,
        values: Mapping[str, Iterator[npt.NDArray[Any]]],
        chunks: ChunkSpool,
    ) -> None:
        self._plan = plan
        self._number = number
        self._chunk = plan.layout.chunks[number]
        self._kept = kept
        self._n = self._chunk.rows if kept is None else len(kept)
        self._values = values
        self._held = chunks.held

    def write(self, record: Record, old: dict[str, Any]) -> dict[str, Any]:
        """Write the payload and return its entry in the header."""
        plan, columns = self._plan, self._plan.columns
        entry = {"rows": self._n} | _get_unknown(old)
        if self._kept is not None:
            entry.pop("sections", None)  # made anew from the sections of the header
        entries = {}
        if plan.is_verbatim:
            self._copy(record, self._chunk.offset, self._chunk.nbytes)
            entry = {key: value for key, value in old.items() if key != "file_offset"}
            if plan.layout.dialect != "2.0":
                return entry
            names = {each.stored.column.name: each.name for each in columns if each.stored}
            entries = {names.get(name, name): each for name, each in old["columns"].items()}
            columns = [each for each in columns if each.values is not None]
        for target in columns:
            start = record.nbytes
            place = self._write_part(record, target, old)
            if plan.dialect_written != "2.0":
                return entry | place
            entries[target.name] = place | {"offset": start, "size": record.nbytes - start}
        return entry | {"columns": entries}

    def _write_part(self, record: Record, target: Target, old: dict[str, Any]) -> dict[str, Any]:
        """Write the part of a column and return its entry."""
        plan, number = self._plan, self._number
        compression = plan.choose(target, number)
        pieces = self._values.get(target.name)
        unknown: dict[str, Any] = {}
        if target.stored is not None:
            matrix, stored = target.stored, old
            if plan.layout.dialect == "2.0":
                stored = old["columns"][matrix.column.name]
                unknown = _get_unknown(stored)
            part = matrix.parts[number]
            is_same = pieces is None and compression == part.compression
            if is_same and (self._kept is None or compression != "lossless"):
                keys = ("min", "scale") if compression == "int8" else ()
                entry = {"compression": compression, **{key: stored[key] for key in keys}}
                if self._kept is None:
                    self._copy(record, part.offset, part.nbytes)
                else:
                    self._copy_rows(record, matrix)
                return entry | unknown
            if pieces is None:
                pieces = self._decode(matrix)
        encoded = encode(
            record,
            pieces or (),
            compression,
            f"chunk {number}, column {target.name!r}",
            allow_overflow=plan.allow_overflow,
            held=self._held,
        )
        if encoded.rows != self._n:
            n = plan.layout.n
            raise ValueError(f"column {target.name!r} has fewer rows than the file, which has {n}")
        return encoded.entry | unknown

    def _copy_rows(self, record: Record, matrix: ChunkedMatrix) -> None:
        for rows in self._blocks(matrix):
            first, last = int(rows[0]), int(rows[-1])
            values = matrix.stored_rows(self._number, first, last + 1)[rows - first]
            record.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def _decode(self, matrix: ChunkedMatrix) -> Iterator[npt.NDArray[Any]]:
        """Return the rows that are kept in blocks, as float32."""
        for rows in self._blocks(matrix):
            yield matrix.take(rows + self._chunk.start).astype(np.float32, copy=False)

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
