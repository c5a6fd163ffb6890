"""The layout of DWE files: from bytes to frozen offsets, as far as opening needs them.

Two layouts share a magic and a version: blocks, which point to each other, and a stream with a
table of entry points. The sizes of the entropy models tell them apart; what those cannot, the
models and the tables themselves do. docs/formats/dwe.md has the details.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.ans import LOWEST, most_symbols
from embmap.codecs.entropy_model import TOTAL, EntropyModel, model_size, parse_model
from embmap.errors import FormatError, TruncatedError, UnsupportedError
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource

__all__ = [
    "FORMAT",
    "HEADER_NBYTES",
    "LAYOUTS",
    "MAGIC",
    "DweLayout",
    "Entries",
    "entries_of",
    "model_of",
    "parse",
]

FORMAT = "dwe"
MAGIC = b"\x00dwe"
HEADER_NBYTES = 40
LAYOUTS = ("blocks", "stream")


@dataclass(frozen=True)
class DweLayout:
    """Everything an open file needs to know. A group is a chunk, or a row of the jump table.

    Attributes
    ----------
    layout : str
        "blocks" or "stream".
    minor : int
        Minor version.
    n_steps, n_words, dim : int
        Time steps, words, length of a vector.
    group : int
        Words of a group; the last may have fewer.
    scale : float
        What an integer is multiplied with; exactly float32.
    model_offsets, model_sizes : tuple of int
        Of each time step's model: where it is, in bytes, and how many symbols it has.
    table_offsets : tuple of int
        Of each time step: where the entries of its groups are, in bytes.
    data_offset, data_words : int
        What the entries count from, in bytes, and how many 16-bit words follow it.
    """

    layout: str
    minor: int
    n_steps: int
    n_words: int
    dim: int
    group: int
    scale: float
    model_offsets: tuple[int, ...]
    model_sizes: tuple[int, ...]
    table_offsets: tuple[int, ...]
    data_offset: int
    data_words: int

    @property
    def n_groups(self) -> int:
        """Groups of a time step."""
        return -(-self.n_words // self.group)

    def group_words(self, number: int) -> int:
        """Return how many words a group has."""
        return min(self.group, self.n_words - number * self.group)


@dataclass(frozen=True)
class Entries:
    """Where the coder enters groups, and what it has to arrive at.

    Attributes
    ----------
    steps, groups : numpy.ndarray
        Shape (n,), int64: which they are.
    positions, states : numpy.ndarray
        Shape (n,), int64 and uint32: the first word to take in, counted from the data, and the
        state before.
    ends, end_states : numpy.ndarray
        Shape (n,), int64: the same behind each group; -1 where the format promises nothing.
    """

    steps: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    states: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.int64]
    end_states: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Header:
    """The fields both layouts share; `address` is meta_size or jump_table_address."""

    minor: int
    address: int
    n_steps: int
    n_words: int
    dim: int
    group: int
    scale: float


def parse(file: ByteSource, layout: str | None = None) -> DweLayout:
    """Parse a DWE file."""
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    header = _header(file)
    found, reasons = [], []
    for name in LAYOUTS if layout is None else (layout,):
        try:
            read = _blocks if name == "blocks" else _stream
            found.append(_justified(file, read(file, header)))
        except FormatError as error:
            reasons.append(error.with_traceback(None))  # which would keep this frame and callers'
    if len(found) == 2:
        found, reasons = _checked(file, found)
    if len(found) == 1:
        return found[0]
    if len(reasons) == 1:
        raise reasons.pop()  # not by a name of this frame, which the error would keep alive
    if found:
        raise FormatError(
            "can be read as blocks and as a stream; choose with layout=",
            path=file.path,
            format=FORMAT,
        )
    both = "; ".join(
        f"not {name}: {reason.message}" for name, reason in zip(LAYOUTS, reasons, strict=True)
    )
    raise FormatError(f"neither layout fits: {both}", path=file.path, format=FORMAT)


def _header(file: ByteSource) -> _Header:
    reader = FieldReader(file, FORMAT)
    magic = reader.raw(4, "magic")
    if magic != MAGIC:
        raise FormatError("not a DWE file", **reader.where("magic", 0), found=magic)
    major = reader.u32("major_version")
    if major != 1:
        where = reader.where("major_version", 4)
        raise UnsupportedError("this embmap reads version 1", **where, found=major)
    minor = reader.u32("minor_version")
    size = reader.u32("file_size")
    if 4 * size != file.nbytes:
        kind = TruncatedError if 4 * size > file.nbytes else FormatError
        raise kind(
            "the file does not have the size it says",
            **reader.where("file_size", 12),
            found=f"{file.nbytes} bytes",
            expected=f"{4 * size} bytes",
        )
    address = reader.u32("meta_size or jump_table_address")

    def count(field: str, least: int) -> int:
        value = reader.u32(field)
        if value < least:
            message = f"must be {least} at least"
            raise reader.error(message, field, back=4, found=value, expected=f">= {least}")
        return value

    n_steps = count("num_timesteps", 2)
    n_words = count("vocab_size", 1)
    dim = count("embedding_dim", 1)
    group = count("chunk_size or jump_interval", 1)
    scale = struct.unpack("<f", reader.raw(4, "scale_factor"))[0]
    return _Header(minor, address, n_steps, n_words, dim, group, scale)


def _blocks(file: ByteSource, header: _Header) -> DweLayout:
    """Read the file as blocks that point to each other, as far as the sizes of the models."""
    size = file.nbytes // 4
    if header.n_words % header.group:
        raise _wrong("chunk_size", 32, header.group, f"a divisor of {header.n_words}", file)
    first = HEADER_NBYTES // 4 + header.n_steps
    if not first <= header.address <= size:
        raise _wrong("meta_size", 16, header.address, f"{first} to {size}", file)
    addresses = _u32(file, HEADER_NBYTES, header.n_steps, "timestep_addrs").astype(np.int64)
    wrong = np.flatnonzero((addresses < first) | (addresses >= size))
    if wrong.size:
        t = int(wrong[0])
        field = f"timestep_addrs[{t}]"
        raise _wrong(field, HEADER_NBYTES + 4 * t, int(addresses[t]), f"{first} to {size}", file)
    n_groups = header.n_words // header.group
    sizes, tables = [], []
    for t, address in enumerate(addresses.tolist()):
        offset = 4 * address
        n = _model_size(file, offset, file.nbytes, t)
        table = offset + 4 * ((model_size(n) + 1) // 2)
        if table + 4 * n_groups > file.nbytes:
            raise TruncatedError(
                f"{n_groups} addresses of the chunks of timestep {t} do not fit into the file",
                **_where(file, "chunk_addrs", table),
            )
        sizes.append(n)
        tables.append(table)
    return DweLayout(
        "blocks",
        header.minor,
        header.n_steps,
        header.n_words,
        header.dim,
        header.group,
        header.scale,
        tuple((addresses * 4).tolist()),
        tuple(sizes),
        tuple(tables),
        0,
        file.nbytes // 2,
    )


def _stream(file: ByteSource, header: _Header) -> DweLayout:
    """Read the file as models, jump table and one stream, as far as the sizes of the models."""
    if header.group > header.n_words:
        raise _wrong("jump_interval", 32, header.group, f"1 to {header.n_words}", file)
    table = 4 * header.address
    if not HEADER_NBYTES < table <= file.nbytes:
        expected = f"{HEADER_NBYTES // 4 + 1} to {file.nbytes // 4}"
        raise _wrong("jump_table_address", 16, header.address, expected, file)
    n_groups = -(-header.n_words // header.group)
    data = table + 8 * n_groups * header.n_steps
    if data > file.nbytes:
        raise TruncatedError(
            f"a jump table of {header.n_steps} x {n_groups} rows does not fit into the file",
            **_where(file, "jump_table", table),
        )
    offset, offsets, sizes = HEADER_NBYTES, [], []
    for t in range(header.n_steps):
        n = _model_size(file, offset, table, t)
        offsets.append(offset)
        sizes.append(n)
        offset += 2 * model_size(n)
    if table - offset > 2:
        raise FormatError(
            f"the models end {table - offset} bytes before the jump table",
            **_where(file, "jump_table_address", 16),
        )
    return DweLayout(
        "stream",
        header.minor,
        header.n_steps,
        header.n_words,
        header.dim,
        header.group,
        header.scale,
        tuple(offsets),
        tuple(sizes),
        tuple(range(table, data, 8 * n_groups)),
        data,
        (file.nbytes - data) // 2,
    )


def _justified(file: ByteSource, layout: DweLayout) -> DweLayout:
    """Refuse sizes that the data cannot hold, before anything is allocated for them."""
    if layout.n_words * layout.dim > most_symbols(layout.data_words):
        raise FormatError(
            f"{layout.n_words} words of {layout.dim} dimensions in groups of {layout.group} cannot "
            f"come from {layout.data_words} words of data",
            **_where(file, "embedding_dim", 28),
        )
    return layout


def _checked(
    file: ByteSource, layouts: list[DweLayout]
) -> tuple[list[DweLayout], list[FormatError]]:
    """Return those of the readings whose models and entries are valid, and why others are not."""
    valid, reasons = [], []
    for layout in layouts:
        try:
            for t in range(layout.n_steps):
                model_of(file, layout, t)
                entries_of(file, layout, np.array([t]), np.arange(layout.n_groups))
            valid.append(layout)
        except FormatError as error:
            reasons.append(error.with_traceback(None))
    return valid, reasons


def model_of(file: ByteSource, layout: DweLayout, t: int) -> EntropyModel:
    """Return the entropy model of a time step."""
    file.check_whole()
    offset = layout.model_offsets[t]
    words = file.array(offset, "<u2", model_size(layout.model_sizes[t]))
    try:
        return parse_model(words)
    except ValueError as error:
        raise FormatError(
            f"the entropy model of timestep {t} is wrong: {error}",
            **_where(file, "frequencies", offset),
        ) from None


def entries_of(
    file: ByteSource,
    layout: DweLayout,
    steps: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
) -> Entries:
    """Return where the coder enters groups of time steps."""
    file.check_whole()
    steps, groups = (each.reshape(-1) for each in np.broadcast_arrays(steps, groups))
    tables = np.array(layout.table_offsets)[steps]
    if layout.layout == "stream":
        entries = _stream_entries(file, layout, tables, steps, groups)
        outside = entries.positions > layout.data_words
    else:
        entries = _block_entries(file, layout, tables, steps, groups)
        outside = entries.positions < 0
    field = "jump_table" if layout.layout == "stream" else "chunk_addrs"
    wrong = outside | (entries.states < LOWEST)
    if wrong.any():
        i = int(wrong.argmax())
        what = "begins outside the data" if outside[i] else "begins in an impossible state"
        raise FormatError(
            f"group {int(groups[i])} of timestep {int(steps[i])} {what}",
            **_where(file, field, int(tables[i])),
        )
    return entries


def _stream_entries(
    file: ByteSource,
    layout: DweLayout,
    tables: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
) -> Entries:
    # A row and, but for the last group of a step, the next one, where this one has to end.
    followed = groups + 1 < layout.n_groups
    nbytes = np.where(followed, 16, 8)
    rows = file.gather(tables + 8 * groups, nbytes).view("<u4").reshape(-1, 2)
    own = (nbytes // 8).cumsum() - nbytes // 8
    after = np.where(followed, np.minimum(own + 1, len(rows) - 1), -1)
    ends = np.append(rows[:, 0].astype(np.int64), -1)
    end_states = np.append(rows[:, 1].astype(np.int64), -1)
    return Entries(
        steps, groups, ends[own], rows[own, 1].astype(np.uint32), ends[after], end_states[after]
    )


def _block_entries(
    file: ByteSource,
    layout: DweLayout,
    tables: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
) -> Entries:
    # An address in units of four bytes, where the state stands before the words.
    four = np.full(groups.size, 4)
    addresses = file.gather(tables + 4 * groups, four).view("<u4").astype(np.int64)
    lowest = HEADER_NBYTES // 4 + layout.n_steps
    inside = (addresses >= lowest) & (4 * addresses < file.nbytes)
    heads = file.gather(np.where(inside, 4 * addresses, 0), four).view("<u2").reshape(-1, 2)
    states = heads[:, 0].astype(np.uint32) << np.uint32(16) | heads[:, 1]
    positions = np.where(inside, 2 * addresses + 2, -1)
    anywhere = np.full(groups.size, -1)
    return Entries(steps, groups, positions, states, anywhere, np.full(groups.size, LOWEST))


def _model_size(file: ByteSource, offset: int, end: int, t: int) -> int:
    """Return how many symbols a model has that has to end inside a range."""
    n = int.from_bytes(file.read(offset, 2), "little") if offset + 2 <= end else 0
    if not 2 <= n <= TOTAL or offset + 2 * model_size(n) > end:
        raise FormatError(
            f"the entropy model of timestep {t} cannot have {n} symbols",
            **_where(file, "num_symbols", offset),
        )
    return n


def _u32(file: ByteSource, offset: int, n: int, field: str) -> npt.NDArray[np.uint32]:
    if offset + 4 * n > file.nbytes:
        raise TruncatedError(f"{n} numbers do not fit into the file", **_where(file, field, offset))
    return file.array(offset, "<u4", n)


def _wrong(field: str, offset: int, found: int, expected: str, file: ByteSource) -> FormatError:
    where = _where(file, field, offset)
    return FormatError(f"{field} is out of range", **where, found=found, expected=expected)


def _where(file: ByteSource, field: str, offset: int) -> dict[str, Any]:
    return {"path": file.path, "format": FORMAT, "offset": offset, "field": field}
