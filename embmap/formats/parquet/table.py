"""Reading Parquet: which columns hold words and vectors, and their rows in bounded memory.

pyarrow parses the file. Whatever it raises about the bytes becomes a FormatError.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.columns import VECTOR, WORD, count_rows, import_arrow
from embmap.errors import ArgumentError, FormatError
from embmap.formats.parquet import FORMAT
from embmap.io.atomic_write import spool_beside
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import ArrayMatrix, Streamed
from embmap.words.table import WordTable

__all__ = ["ParquetTable"]

_WORDS_PER_BATCH = 1 << 16
_NUMBERS_PER_BATCH = 1 << 18
_OF_LIBRARIES = (b"ARROW:schema", b"huggingface", b"pandas")  # they describe the columns


class ParquetTable:
    """A Parquet file with a column of vectors: the one called `name`, or the only one.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns.
    word, vector : str or None
        The names of the columns of words, if there is one, and of vectors.
    n_rows : int
        The number of rows.
    metadata : dict of str to str
        The metadata, without what libraries note about columns.
    library_metadata : dict of bytes to bytes
        What libraries note about columns.
    """

    def __init__(self, data: ByteSource, name: str | None = None) -> None:
        self._arrow = import_arrow()
        self._data = data
        from pyarrow import parquet

        with self._checked():
            # Of a map, pages that are not compressed are decoded without being read into memory.
            whole = self._arrow.py_buffer(data.array(0, np.uint8, data.nbytes))
            self._file = parquet.ParquetFile(self._arrow.BufferReader(whole))
            self.schema = self._file.schema_arrow
            stored = self._file.metadata
            groups = [stored.row_group(i).num_rows for i in range(stored.num_row_groups)]
            self.n_rows: int = stored.num_rows
            metadata = self.schema.metadata or {}
            names = list(map(str, self.schema.names))
        self._starts = list(accumulate(groups, initial=0))
        if min(groups, default=0) < 0 or self._starts[-1] != self.n_rows:
            raise self.error(f"{self.n_rows} rows in groups of {groups[:10]}")
        if len(set(names)) < len(names):
            raise self.error(f"columns must have different names, not {', '.join(names)[:200]}")
        self.metadata = {
            key.decode(errors="replace"): value.decode(errors="replace")
            for key, value in metadata.items()
            if key not in _OF_LIBRARIES
        }
        self.library_metadata = {key: metadata[key] for key in _OF_LIBRARIES if key in metadata}
        self.vector = self._choose_vectors(name)
        self.word = self._choose_words()

    def error(self, message: str, column: str | None = None) -> FormatError:
        """Return an error about the file, or about a column."""
        field = None if column is None else f"column {column[:100]!r}"
        return FormatError(message, path=self._data.path, format=FORMAT, field=field)

    def _choose_vectors(self, name: str | None) -> str:
        found = [field.name for field in self.schema if self._number_type(field.type) is not None]
        if name is not None:
            if name not in self.schema.names:
                listed = ", ".join(self.schema.names)
                raise ArgumentError(
                    f"{self._data.path} has no column {name!r} for {{tensor}}; it has {listed}"
                )
            if name not in found:
                type = self.schema.field(name).type
                raise self.error(f"vectors must be lists of numbers, not {type}", name)
            return name
        if not found:
            listed = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
            raise self.error(f"no column holds vectors, which are lists of numbers: {listed[:500]}")
        if len(found) > 1 and VECTOR not in found:
            listed = ", ".join(found)
            raise ArgumentError(
                f"{self._data.path} has several columns of vectors; choose one with {{tensor}}: "
                f"{listed}"
            )
        return VECTOR if VECTOR in found else found[0]

    def _choose_words(self) -> str | None:
        found = [field.name for field in self.schema if self._is_text(field.type)]
        if WORD in found:
            return WORD
        return found[0] if len(found) == 1 else None

    def _number_type(self, type: Any) -> Any:
        """Return the type of the numbers in lists; None for any other type."""
        types = self._arrow.types
        stored = _storage_of(type)
        lists = (types.is_fixed_size_list, types.is_list, types.is_large_list)
        if not any(is_list(stored) for is_list in lists):
            return None
        inner = stored.value_type
        return inner if types.is_floating(inner) or types.is_integer(inner) else None

    def _is_text(self, type: Any) -> bool:
        types = self._arrow.types
        if types.is_dictionary(type):
            type = type.value_type
        return any(is_text(type) for is_text in (types.is_string, types.is_large_string))

    def words(self, limit: int | None) -> WordTable | None:
        """Return the words, or the first `limit` of them; None without a column of words."""
        if self.word is None:
            return None
        data, ends, n = bytearray(), [np.empty(0, np.int64)], 0
        for start, batch in self.batches([self.word], _WORDS_PER_BATCH):
            if limit is not None and n >= limit:
                break
            words = batch.column(0)
            if words.null_count:
                row = start + int(np.argmax(words.is_null().to_numpy(zero_copy_only=False)))
                raise self.error("there is no word: null", f"{self.word}, row {row}")
            with self._checked():
                if self._arrow.types.is_dictionary(words.type):
                    words = words.dictionary_decode()
                words = words.cast(self._arrow.large_binary())
            _, offsets, letters = words.buffers()
            bounds = np.frombuffer(offsets, np.int64)[words.offset :][: len(words) + 1]
            ends.append(bounds[1:] - bounds[0] + len(data))
            if letters is not None:
                data += memoryview(letters)[bounds[0] : bounds[-1]]
            n += len(words)
        return WordTable(data, np.concatenate(ends)[:limit], self._data, FORMAT)

    def vectors(self) -> Matrix:
        """Return the vectors, which are decoded as they are asked for."""
        type = _storage_of(self.schema.field(self.vector).type)
        dtype = np.dtype(self._number_type(type).to_pandas_dtype())
        if self._arrow.types.is_fixed_size_list(type):
            dim = type.list_size
        else:
            first = next(self.batches([self.vector], 1), None)
            dim = 0 if first is None else len(self.numbers(*first, None)[0])
        return ParquetMatrix(self, (self.n_rows, dim), dtype)

    def copied(self, vectors: Matrix, folder: Path, stack: ExitStack) -> Matrix:
        """Return vectors copied into a temporary file, for callers that want them in any order."""
        if not vectors.nbytes:
            return vectors
        spool = stack.enter_context(spool_beside(folder / "array"))
        for _, block in vectors.blocks():
            spool.write(np.ascontiguousarray(block).data)
        spool.flush()
        return ArrayMatrix(np.memmap(spool, vectors.dtype, "r", shape=vectors.shape))

    def batches(
        self, columns: Sequence[str], n_rows: int, group: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield rows of some columns as record batches, each with its first row.

        By default the rows of all groups follow each other.
        """
        for i in range(len(self._starts) - 1) if group is None else (group,):
            start, stop = self._starts[i : i + 2]
            with self._checked():
                found = self._file.iter_batches(n_rows, row_groups=[i], columns=columns)
            while start < stop:
                self._data.check_whole()
                with self._checked():
                    batch = next(found, None)
                if batch is None or batch.num_columns != len(columns) or not batch.num_rows:
                    raise self.error(f"rows must follow row {start - 1}, up to {stop - 1}")
                yield start, batch
                start += batch.num_rows

    def group_of(self, row: int) -> tuple[int, int]:
        """Return which group of rows a row is in, and its first row."""
        group = bisect_right(self._starts, row) - 1
        return group, self._starts[group]

    def numbers(self, start: int, batch: Any, dim: int | None) -> npt.NDArray[Any]:
        """Return a column of vectors: shape (n, dim), where None for `dim` takes any one."""
        column = batch.column(0)
        column = getattr(column, "storage", column)
        n = len(column)
        if column.null_count:
            row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise self.error("there is no vector: null", f"{self.vector}, row {row}")
        values = column.flatten()
        if not self._arrow.types.is_fixed_size_list(column.type):
            lengths = np.diff(column.offsets.to_numpy())
            dim = int(lengths[0]) if dim is None else dim
            if (lengths != dim).any():
                row = int(np.argmax(lengths != dim))
                message = f"vectors must have {dim} numbers like those before, not {lengths[row]}"
                raise self.error(message, f"{self.vector}, row {start + row}")
        if values.null_count:
            place = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            row = start + place // (dim or 1)
            raise self.error("a number is missing: null", f"{self.vector}, row {row}")
        found: npt.NDArray[Any] = values.to_numpy().reshape(n, dim)
        return found

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Turn what pyarrow raises about damaged bytes into a FormatError."""
        try:
            yield
        except (self._arrow.ArrowException, OSError, OverflowError, UnicodeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise self.error(f"damaged, or not Parquet: {reason[:300]}") from None


class ParquetMatrix(Streamed):
    """Vectors in a Parquet file, which are decoded forwards from the start of a group of rows."""

    def __init__(self, table: ParquetTable, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._table = table
        self._group = -1
        self._first = 0
        self._block = np.empty((0, shape[1]), dtype)
        self._batches: Iterator[tuple[int, Any]] = iter(())

    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        parts = []
        while start < stop:
            self._move_to(start)
            part = self._block[start - self._first : stop - self._first]
            parts.append(part)
            start += len(part)
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), self.dtype)

    def _move_to(self, row: int) -> None:
        """Decode rows until the block holds a row."""
        if self._first <= row < self._first + len(self._block):
            return
        table = self._table
        group, first = table.group_of(row)
        if group != self._group or row < self._first:
            rows = count_rows(self, _NUMBERS_PER_BATCH)
            self._batches = table.batches([table.vector], rows, group)
            self._group, self._first, self._block = group, first, self._block[:0]
        while row >= self._first + len(self._block):
            self._first, batch = next(self._batches)
            self._block = table.numbers(self._first, batch, self.shape[1])


def _storage_of(type: Any) -> Any:
    """Return the type in which values of an extension type are stored."""
    return getattr(type, "storage_type", type)
