"""Word indexes in a file beside the data: FILE.embx.

The file contains the tables of ``word_index`` as they are in memory, so that they are mapped and
all processes share one copy. An index belongs to a data file of the same size and modification
time. If these differ, or may be equal by chance, a digest of the words decides.

A damaged table gives no wrong answer: the word in the data file confirms a hit, and a miss checks
the blocks of 64 KiB that it read against their checksums, each block once.

docs/word-index.md describes the format for other implementations.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from embmap.errors import EmbmapError, StaleIndexError
from embmap.io.atomic_write import replacing
from embmap.io.backends import open_mapped
from embmap.io.mapping import Backend, ByteSource
from embmap.words.records import Records
from embmap.words.word_index import EMPTY, WordIndex, n_slots_for

__all__ = ["SUFFIX", "IndexFile", "MappedWordIndex", "digest", "write_index"]

SUFFIX = ".embx"
MAGIC = b"EMBX\r\n\x1a\n"
VERSION = 1
BLOCK = 1 << 16
_ALIGN = 64
_MAX_TABLES = 8
_HEADER = struct.Struct("<8sIIQqQQQQ")
_TABLE = struct.Struct("<QQQII16sQQQQII")
_READ = 1 << 22
_SAMPLED = 4  # words of a batch whose pages are looked for in memory
_ASKED = 1 << 14  # words whose pages are asked for at once
_LONGEST_CHAIN = 64  # slots of a word that are asked for; damage may make a chain of all slots
_RECORD = 64  # bytes of a word that are asked for; few are longer
_SECOND = 10**9
_MOST_SECONDS = 2**32 - 1
_TICK_NS = 2 * _SECOND  # the coarsest time stamps of a file system, FAT


@dataclass(frozen=True)
class _Table:
    """The descriptor of one table in the index file."""

    offset: int
    nbytes: int
    n: int
    prefix: int
    suffix: int
    digest: bytes
    n_slots: int
    slots_offset: int
    slots_length: int
    starts_offset: int
    starts_itemsize: int
    indexed: int  # seconds since the epoch; 0 if unknown


class IndexFile:
    """The tables of an index file, mapped."""

    def __init__(
        self, path: str | os.PathLike[str], data: ByteSource, backend: Backend = "mmap"
    ) -> None:
        self.path = Path(os.fsdecode(path))
        self._data = data
        try:
            self._file = open_mapped(path, backend=backend)
        except BlockingIOError:
            raise
        except (OSError, EmbmapError) as error:
            raise StaleIndexError(f"{self.path}: cannot be opened: {error}") from error
        self._tables = self._parse()
        self._checked = bytearray(self._n_blocks)

    def _parse(self) -> list[_Table]:
        nbytes = self._file.nbytes
        if nbytes < _HEADER.size:
            raise self._damaged("the file ends inside its header")
        head = self._file.read(0, _HEADER.size)
        magic, version, n_tables, data_nbytes, mtime, index_nbytes, body, sums, checksum = (
            _HEADER.unpack(head)
        )
        if magic != MAGIC:
            raise self._damaged("not an embmap word index")
        if version != VERSION:
            raise StaleIndexError(
                f"{self.path}: version {version}; this embmap reads version {VERSION}"
            )
        end = _HEADER.size + n_tables * _TABLE.size
        if not 1 <= n_tables <= _MAX_TABLES or end > nbytes or index_nbytes != nbytes:
            raise self._damaged("its size is not the one in its header")
        rows = self._file.read(_HEADER.size, n_tables * _TABLE.size)
        if xxhash.xxh3_64_intdigest(head[:-8] + rows) != checksum:
            raise self._damaged("the checksum of its header does not match")
        self._n_blocks = -(-(sums - body) // BLOCK)
        if not end <= body <= sums or sums + 8 * self._n_blocks != nbytes:
            raise self._damaged("its blocks do not fill the file")
        self._body, self._sums_offset = body, sums
        self._data_id = (data_nbytes, mtime)
        tables = [_Table(*row) for row in _TABLE.iter_unpack(rows)]
        if sums > _most_nbytes(tables):
            raise self._damaged("it is larger than its words require")
        return tables

    def _has_room(self, table: _Table) -> bool:
        """Whether the data file is large enough for the words of a table."""
        least = table.n * max(table.prefix + table.suffix, 1)
        return least <= table.nbytes + table.suffix <= self._data.nbytes + table.suffix

    def copy_to(self, out: BinaryIO) -> None:
        """Write a copy, of the size that the index file had when it was opened."""
        if not all(map(self._has_room, self._tables)):
            raise StaleIndexError(f"{self.path}: is about other data; build the index again")
        nbytes = self._file.nbytes
        try:
            for start in range(0, nbytes, _READ):
                part = self._file.read(start, min(_READ, nbytes - start))
                out.write(part)
        except EmbmapError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> StaleIndexError:
        return StaleIndexError(f"{self.path}: {why}; build the index again")

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)

    def table(self, number: int, records: Records) -> WordIndex:
        """Return a table as an index over the words of the data file.

        StaleIndexError is raised if the table is damaged or about other words.
        """
        if number >= len(self._tables):
            raise StaleIndexError(f"{self.path}: table {number} is missing; build the index again")
        table = self._tables[number]
        asked = (records.offset, records.n, records.prefix, records.suffix)
        if (table.offset, table.n, table.prefix, table.suffix) != asked:
            raise StaleIndexError(f"{self.path}: is about other data; build the index again")
        starts_fit = table.starts_itemsize in (4, 8) and (
            table.starts_offset + (table.n + 1) * table.starts_itemsize <= self._sums_offset
        )
        slots_fit = table.slots_offset + 4 * table.slots_length <= self._sums_offset
        sizes_fit = table.n_slots & (table.n_slots - 1) == 0 < table.n_slots < table.slots_length
        if not (starts_fit and slots_fit and sizes_fit):
            raise self._damaged("a table does not lie inside the file")
        if table.slots_offset % 4 or table.starts_offset % table.starts_itemsize:
            raise self._damaged("a table is not aligned")
        kind = f"<u{table.starts_itemsize}"
        starts = self._file.scattered(table.starts_offset, kind, table.n + 1)
        slots = self._file.scattered(table.slots_offset, "<u4", table.slots_length)
        fills = table.nbytes == records.nbytes if records.exact else table.nbytes <= records.nbytes
        if not fills:
            raise self._damaged("a table does not end as it should")
        index = MappedWordIndex(self, table, records, starts, slots)
        if self._data_id != (self._data.nbytes, self._data.mtime_ns):
            index.check_words()
        return index

    def is_settled(self, table: _Table) -> bool:
        """Whether the times show that the words have not changed since they were indexed.

        They do not if the last change was within a tick of the clock: another change in the same
        tick leaves the same times.
        """
        return self._data.changed_ns + _TICK_NS < table.indexed * _SECOND

    def check_words(self, table: _Table) -> None:
        """Check the words of a table against their digest."""
        inside = table.offset + table.nbytes <= self._data.nbytes
        if not inside or digest(self._data, table.offset, table.nbytes) != table.digest:
            raise StaleIndexError(f"{self.path}: the words changed; build the index again")

    def check(self, offset: int, nbytes: int) -> None:
        """Check the blocks that contain a range against their checksums, each block once."""
        first = (offset - self._body) // BLOCK
        last = (offset + max(nbytes, 1) - 1 - self._body) // BLOCK
        for block in range(first, last + 1):
            if not self._checked[block]:
                start = self._body + block * BLOCK
                nbytes = min(BLOCK, self._sums_offset - start)
                found = xxhash.xxh3_64_digest(self._file.array(start, np.uint8, nbytes).data)
                if found[::-1] != self._file.read(self._sums_offset + 8 * block, 8):
                    raise self._damaged(f"the checksum of its block {block} does not match")
                self._checked[block] = 1

    def check_all(self) -> None:
        """Check every block against its checksum, and the words against their digests."""
        self.check(self._body, self._sums_offset - self._body)
        for table in self._tables:
            self.check_words(table)


class MappedWordIndex(WordIndex):
    """An index from a file, which believes in a miss only after checking what it read."""

    __slots__ = ("_ends", "_index_file", "_table", "_trusted")

    def __init__(
        self,
        index_file: IndexFile,
        table: _Table,
        records: Records,
        starts: npt.NDArray[Any],
        slots: npt.NDArray[np.uint32],
    ) -> None:
        super().__init__(index_file._data, records, starts, slots, table.n_slots - 1)
        self._index_file = index_file
        self._table = table
        self._trusted = index_file.is_settled(table)
        self._ends = False  # whether check_ends found nothing wrong

    def check_ends(self) -> None:
        """Check the first and the last item of each part: three pages that one word does not need.

        A single hit does not rely on them; code that reads many items calls this first.
        """
        if self._ends:
            return
        table, records = self._table, self.records
        # The last line of a text may lack its newline. The starts count it; the digest does not.
        lacking = 0 if records.exact else records.suffix
        ends = 0 <= int(self.starts[table.n]) - table.nbytes <= lacking and int(self.starts[0]) == 0
        if not ends or self.slots[-1] != EMPTY:
            raise self._index_file._damaged("a table does not end as it should")
        self._ends = True

    def prefetch(self, words: Sequence[str]) -> None:
        """Ask for what a look-up of words will read, here and in the data, if it is not in memory.

        The words that share a slot are told apart by their lengths, which is nearly always enough.
        """
        n = min(math.isqrt(len(words)) // 8, _SAMPLED)
        if not n or not self._lacks(words[i] for i in range(0, len(words), len(words) // n)):
            return
        words = list(words)
        index, data = self._index_file._file, self._index_file._data
        table, records = self._table, self.records
        for first in range(0, len(words), _ASKED):
            slots, sizes = self._homes(words[first : first + _ASKED])
            for _ in range(_LONGEST_CHAIN):
                if not slots.size:
                    break
                index.prefetch(table.slots_offset + 4 * slots, 4)
                rows = self.slots[slots].astype(np.int64)
                known = rows < table.n
                slots, sizes, rows = slots[known], sizes[known], rows[known]
                size = table.starts_itemsize
                index.prefetch(table.starts_offset + size * rows, 2 * size)
                starts = self.starts[rows].astype(np.int64)
                other = self.starts[rows + 1].astype(np.int64) - starts != sizes
                here = (starts >= 0) & (starts < records.nbytes)
                data.prefetch(records.offset + starts[here], _RECORD)
                slots, sizes = slots[other] + 1, sizes[other]
                inside = slots < len(self.slots)
                slots, sizes = slots[inside], sizes[inside]

    def _lacks(self, words: Iterable[str]) -> bool:
        """Whether something is not in memory that a look-up of one of a few words reads."""
        index, data = self._index_file._file, self._index_file._data
        table = self._table
        for word in words:
            slot = xxhash.xxh3_64_intdigest(str(word).encode(errors="replace")) & self._mask
            if index.lacks((table.slots_offset + 4 * slot,)):
                return True
            row = self._slots[slot]
            if row < table.n and (
                index.lacks((table.starts_offset + table.starts_itemsize * row,))
                or data.lacks((min(self.records.offset + self._starts[row], data.nbytes),))
            ):
                return True
        return False

    def _homes(self, words: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first slots of words, and the sizes of their records: (n,) int64 both."""
        encoded = [str(word).encode(errors="replace") for word in words]
        hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(encoded))
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        sizes += self.records.prefix + self.records.suffix
        return (hashes & np.uint64(self._mask)).astype(np.int64), sizes

    def check_words(self) -> None:
        """Check the words against their digest; later misses rely on it."""
        self._index_file.check_words(self._table)
        self._trusted = True

    def confirm_miss(self, word: str) -> None:
        """Check the words and the blocks that the look-up of an unknown word read."""
        if not self._trusted:
            self.check_words()
        try:
            home, rows = self.probe(word)
        except (UnicodeEncodeError, IndexError):
            home, rows = 0, []
        table, check = self._table, self._index_file.check
        check(table.slots_offset + 4 * home, 4 * (len(rows) + 1))
        for row in rows:
            if row >= table.n:
                raise self._index_file._damaged(
                    f"it names row {row}, but there are {table.n} words"
                )
            self.check_starts(row, row + 1)

    def check_starts(self, first: int, last: int) -> None:
        """Check the blocks that contain the starts of a range of words."""
        size = self._table.starts_itemsize
        nbytes = size * (last - first + 1)
        self._index_file.check(self._table.starts_offset + size * first, nbytes)


def digest(file: ByteSource, offset: int, nbytes: int) -> bytes:
    """Return the xxh3_128 digest of a range of a file: 16 bytes."""
    file.check_whole()
    state = xxhash.xxh3_128()
    for start in range(offset, offset + nbytes, _READ):
        state.update(file.array(start, np.uint8, min(_READ, offset + nbytes - start)).data)
    return state.digest()


def write_index(
    path: str | os.PathLike[str], data: ByteSource, tables: Iterable[WordIndex]
) -> Path:
    """Write an index file with tables over the words of `data`; return its path."""
    with replacing(path) as out:
        # The clock of a network disk is another one; the earlier time is the safe one.
        now = min(os.fstat(out.fileno()).st_mtime_ns, time.time_ns())
        _write(out, data, list(tables), min(max(now // _SECOND, 0), _MOST_SECONDS))
    return Path(os.fsdecode(path))


def _write(out: BinaryIO, data: ByteSource, tables: Sequence[WordIndex], indexed: int) -> None:
    body = position = _body(len(tables))
    rows, sections = [], []
    for table in tables:
        slots_offset, starts_offset = position, _aligned(position + table.slots.nbytes)
        position = _aligned(starts_offset + table.starts.nbytes)
        sections += [(slots_offset, table.slots), (starts_offset, table.starts)]
        records = table.records
        nbytes = min(int(table.starts[-1]), records.nbytes)  # the last line may lack its newline
        rows.append(
            _TABLE.pack(
                records.offset,
                nbytes,
                records.n,
                records.prefix,
                records.suffix,
                digest(data, records.offset, nbytes),
                table.n_slots,
                slots_offset,
                table.slots.size,
                starts_offset,
                table.starts.itemsize,
                indexed,
            )
        )
    sums_offset, n_blocks = position, -(-(position - body) // BLOCK)
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        len(tables),
        data.nbytes,
        data.mtime_ns,
        sums_offset + 8 * n_blocks,
        body,
        sums_offset,
        0,
    )
    checksum = xxhash.xxh3_64_intdigest(head[:-8] + b"".join(rows))
    out.write(head[:-8] + struct.pack("<Q", checksum) + b"".join(rows))
    for offset, section in sections:
        out.seek(offset)
        out.write(section.data)
    out.truncate(sums_offset)
    sums = [_block_sum(out, body + i * BLOCK, sums_offset) for i in range(n_blocks)]
    out.seek(sums_offset)
    out.write(b"".join(sums))


def _body(n_tables: int) -> int:
    """Return the offset of the body of an index file with `n_tables` tables."""
    return -(-(_HEADER.size + n_tables * _TABLE.size) // 4096) * 4096


def _most_nbytes(tables: Sequence[_Table]) -> int:
    """Return the largest offset at which the body of these tables can end."""
    position = _body(len(tables))
    for table in tables:
        position = _aligned(position + 4 * (n_slots_for(table.n) + table.n + 1))
        position = _aligned(position + 8 * (table.n + 1))
    return position


def _block_sum(out: BinaryIO, start: int, end: int) -> bytes:
    out.seek(start)
    return xxhash.xxh3_64_digest(out.read(min(BLOCK, end - start)))[::-1]


def _aligned(position: int) -> int:
    return -(-position // _ALIGN) * _ALIGN
