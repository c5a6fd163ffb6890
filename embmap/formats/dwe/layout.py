"""The layout of DWE files: from bytes to frozen offsets, as far as opening needs them.

Two dialects share a magic and a version: blocks, which point to each other, and a stream with a
table of entry points. The sizes of the entropy models usually fit only one of them; otherwise the
models and the tables are compared too. docs/formats/dwe.md has the details.
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
    "DIALECTS",
    "FORMAT",
    "HEADER_NBYTES",
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
DIALECTS = ("blocks", "stream")


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The fields of the header.

    Attributes
    ----------
    minor : int
        Minor version of the format.
    address : int
        The field meta_size of blocks, or jump_table_address of a stream.
    dim : int
        Length of a vector.
    group : int
        Number of words in a group, the unit of compression: a chunk of blocks, or a row of the
        jump table of a stream. The last group may be smaller.
    scale : float
        Factor from integers to numbers; exactly a float32.
    """

    minor: int
    address: int
    n_steps: int
    n_words: int
    dim: int
    group: int
    scale: float


@dataclass(frozen=True, kw_only=True)
class DweLayout(_Header):
    """The offsets and sizes of a file, all inside it; models and entries are checked when used.

    Attributes
    ----------
    model_offsets, model_sizes : tuple of int
        Offset of each time step's entropy model, in bytes, and its number of symbols.
    table_offsets : tuple of int
        Offset of the entries of each time step's groups, in bytes.
    data_offset, data_halfwords : int
        Offset from which entries are counted, in bytes, and the number of halfwords after it.
    """

    dialect: str
    model_offsets: tuple[int, ...]
    model_sizes: tuple[int, ...]
    table_offsets: tuple[int, ...]
    data_offset: int
    data_halfwords: int

    @property
    def n_groups(self) -> int:
        """Number of groups of a time step."""
        return -(-self.n_words // self.group)

    def group_words(self, number: int) -> int:
        """Return the number of words in a group."""
        return min(self.group, self.n_words - number * self.group)


@dataclass(frozen=True, kw_only=True)
class Entries:
    """Where the decoder starts each of n groups, and where it must end. Arrays of shape (n,).

    Attributes
    ----------
    steps, groups : numpy.ndarray
        The groups: their time steps and their numbers.
    positions, states : numpy.ndarray
        The first halfword of a group, counted from the start of the data, and the first state.
    ends, end_states : numpy.ndarray
        Position and state after a group; -1 if the format does not prescribe them.
    """

    steps: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    states: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.int64]
    end_states: npt.NDArray[np.int64]


def parse(file: ByteSource, dialect: str | None = None) -> DweLayout:
    """Parse a DWE file, as `dialect` if one is given; by default the bytes decide."""
    header = _header(file)
    found, reasons = [], []
    for name in DIALECTS if dialect is None else (dialect,):
        try:
            read = _blocks if name == "blocks" else _stream
            found.append(_check_plausible(file, read(file, header)))
        except FormatError as error:
            reasons.append(error.with_traceback(None))  # a traceback would keep frames alive
    if len(found) == 2:
        found, reasons = _readable(file, found)
    if len(found) == 1:
        return found[0]
    if len(reasons) == 1:
        raise reasons.pop()  # in a local variable, error and frame would keep each other alive
    if found:
        raise FormatError(
            "the file can be read as blocks and as a stream; choose with layout=",
            path=file.path,
            format=FORMAT,
        )
    both = "; ".join(
        f"not {name}: {reason.message}" for name, reason in zip(DIALECTS, reasons, strict=True)
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
            "the size of the file differs from its file_size",
            **reader.where("file_size", 12),
            found=f"{file.nbytes} bytes",
            expected=f"{4 * size} bytes",
        )
    address = reader.u32("meta_size or jump_table_address")

    def count(field: str, least: int) -> int:
        value = reader.u32(field)
        if value < least:
            raise reader.error(f"must be at least {least}", field, back=4, found=value)
        return value

    n_steps = count("num_timesteps", 2)
    n_words = count("vocab_size", 1)
    dim = count("embedding_dim", 1)
    group = count("chunk_size or jump_interval", 1)
    return _Header(
        minor=minor,
        address=address,
        n_steps=n_steps,
        n_words=n_words,
        dim=dim,
        group=group,
        scale=struct.unpack("<f", reader.raw(4, "scale_factor"))[0],
    )


def _blocks(file: ByteSource, header: _Header) -> DweLayout:
    """Parse the file as blocks that point to each other, but not the models and chunks."""
    size = file.nbytes // 4
    if header.n_words % header.group:
        expected = f"a divisor of {header.n_words}"
        raise _out_of_range(file, "chunk_size", 32, found=header.group, expected=expected)
    first = HEADER_NBYTES // 4 + header.n_steps
    if not first <= header.address <= size:
        expected = f"{first} to {size}"
        raise _out_of_range(file, "meta_size", 16, found=header.address, expected=expected)
    addresses = _u32(file, HEADER_NBYTES, header.n_steps, "timestep_addrs").astype(np.int64)
    wrong = np.flatnonzero((addresses < first) | (addresses >= size))
    if wrong.size:
        t = int(wrong[0])
        where = f"timestep_addrs[{t}]", HEADER_NBYTES + 4 * t
        expected = f"{first} to {size - 1}"
        raise _out_of_range(file, *where, found=int(addresses[t]), expected=expected)
    n_groups = header.n_words // header.group
    sizes, tables = [], []
    for t, address in enumerate(addresses.tolist()):
        offset = 4 * address
        n, end = _model_size(file, offset, file.nbytes, t)
        table = end + (end - offset) % 4
        if table + 4 * n_groups > file.nbytes:
            raise TruncatedError(
                f"the {n_groups} chunk addresses of timestep {t} exceed the file",
                **_where(file, "chunk_addrs", table),
            )
        sizes.append(n)
        tables.append(table)
    return DweLayout(
        **vars(header),
        dialect="blocks",
        model_offsets=tuple((addresses * 4).tolist()),
        model_sizes=tuple(sizes),
        table_offsets=tuple(tables),
        data_offset=0,
        data_halfwords=file.nbytes // 2,
    )


def _stream(file: ByteSource, header: _Header) -> DweLayout:
    """Parse the file as models, jump table and a stream, but not the models themselves."""
    if header.group > header.n_words:
        expected = f"1 to {header.n_words}"
        raise _out_of_range(file, "jump_interval", 32, found=header.group, expected=expected)
    table = 4 * header.address
    if not HEADER_NBYTES < table <= file.nbytes:
        where = "jump_table_address", 16
        expected = f"{HEADER_NBYTES // 4 + 1} to {file.nbytes // 4}"
        raise _out_of_range(file, *where, found=header.address, expected=expected)
    n_groups = -(-header.n_words // header.group)
    data = table + 8 * n_groups * header.n_steps
    if data > file.nbytes:
        raise TruncatedError(
            f"the jump table of {header.n_steps} x {n_groups} rows exceeds the file",
            **_where(file, "jump_table", table),
        )
    offset, offsets, sizes = HEADER_NBYTES, [], []
    for t in range(header.n_steps):
        offsets.append(offset)
        n, offset = _model_size(file, offset, table, t)
        sizes.append(n)
    if table - offset > 2:
        message = f"the models end {table - offset} bytes before the jump table"
        raise FormatError(message, **_where(file, "jump_table_address", 16))
    return DweLayout(
        **vars(header),
        dialect="stream",
        model_offsets=tuple(offsets),
        model_sizes=tuple(sizes),
        table_offsets=tuple(range(table, data, 8 * n_groups)),
        data_offset=data,
        data_halfwords=(file.nbytes - data) // 2,
    )


def _check_plausible(file: ByteSource, layout: DweLayout) -> DweLayout:
    """Refuse sizes that the data cannot encode, before anything is allocated for them."""
    if layout.n_words * layout.dim > most_symbols(layout.data_halfwords):
        raise FormatError(
            f"{2 * layout.data_halfwords} bytes of data cannot encode {layout.n_words} words of "
            f"{layout.dim} dimensions in groups of {layout.group}",
            **_where(file, "embedding_dim", 28),
        )
    return layout


def _readable(
    file: ByteSource, layouts: list[DweLayout]
) -> tuple[list[DweLayout], list[FormatError]]:
    """Return the layouts whose models and entries are valid, and the errors of the others."""
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
    halfwords = file.array(offset, "<u2", model_size(layout.model_sizes[t]))
    try:
        return parse_model(halfwords)
    except ValueError as error:
        message = f"the entropy model of timestep {t} is not valid: {error}"
        raise FormatError(message, **_where(file, "frequencies", offset)) from None


def entries_of(
    file: ByteSource,
    layout: DweLayout,
    steps: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
) -> Entries:
    """Return the entries of all pairs of `steps` and `groups`, which are broadcast."""
    file.check_whole()
    steps, groups = (each.reshape(-1) for each in np.broadcast_arrays(steps, groups))
    tables = np.array(layout.table_offsets)[steps]
    if layout.dialect == "stream":
        field, read = "jump_table", _stream_entries
    else:
        field, read = "chunk_addrs", _block_entries
    entries = Entries(steps=steps, groups=groups, **read(file, layout, tables, groups))
    outside = (entries.positions < 0) | (entries.positions > layout.data_halfwords)
    wrong = outside | (entries.states < LOWEST)
    if wrong.any():
        i = int(wrong.argmax())
        what = "starts outside the data" if outside[i] else "starts in an impossible state"
        raise FormatError(
            f"group {int(groups[i])} of timestep {int(steps[i])} {what}",
            **_where(file, field, int(tables[i])),
        )
    return entries


def _stream_entries(
    file: ByteSource, layout: DweLayout, tables: npt.NDArray[np.int64], groups: npt.NDArray[Any]
) -> dict[str, npt.NDArray[Any]]:
    # A group must end where the next group of its step starts, so the next row is read, too.
    followed = groups + 1 < layout.n_groups
    nbytes = np.where(followed, 16, 8)
    rows = file.gather(tables + 8 * groups, nbytes).view("<u4").reshape(-1, 2)
    own = (nbytes // 8).cumsum() - nbytes // 8
    after = np.where(followed, np.minimum(own + 1, len(rows) - 1), -1)
    ends = np.append(rows[:, 0].astype(np.int64), -1)
    end_states = np.append(rows[:, 1].astype(np.int64), -1)
    return {
        "positions": ends[own],
        "states": rows[own, 1].astype(np.uint32),
        "ends": ends[after],
        "end_states": end_states[after],
    }


def _block_entries(
    file: ByteSource, layout: DweLayout, tables: npt.NDArray[np.int64], groups: npt.NDArray[Any]
) -> dict[str, npt.NDArray[Any]]:
    # An address counts units of four bytes; the first unit of a chunk is its state.
    four = np.full(groups.size, 4)
    addresses = file.gather(tables + 4 * groups, four).view("<u4").astype(np.int64)
    lowest = HEADER_NBYTES // 4 + layout.n_steps
    inside = (addresses >= lowest) & (4 * addresses < file.nbytes)
    heads = file.gather(np.where(inside, 4 * addresses, 0), four).view("<u2").reshape(-1, 2)
    states = heads[:, 0].astype(np.uint32) << np.uint32(16) | heads[:, 1]
    return {
        "positions": np.where(inside, 2 * addresses + 2, -1),
        "states": states,
        "ends": np.full(groups.size, -1),
        "end_states": np.full(groups.size, LOWEST),
    }


def _model_size(file: ByteSource, offset: int, end: int, t: int) -> tuple[int, int]:
    """Return the number of symbols of a model that must end before `end`, and where it ends."""
    n = int.from_bytes(file.fetch[offset : offset + 2], "little") if offset + 2 <= end else 0
    stop = offset + 2 * model_size(n)
    if not 2 <= n <= TOTAL or stop > end:
        message = f"the entropy model of timestep {t} cannot have {n} symbols"
        raise FormatError(message, **_where(file, "num_symbols", offset))
    return n, stop


def _u32(file: ByteSource, offset: int, n: int, field: str) -> npt.NDArray[np.uint32]:
    if offset + 4 * n > file.nbytes:
        raise TruncatedError(f"{n} numbers exceed the file", **_where(file, field, offset))
    return file.array(offset, "<u4", n)


def _out_of_range(
    file: ByteSource, field: str, offset: int, *, found: int, expected: str
) -> FormatError:
    where = _where(file, field, offset)
    return FormatError(f"{field} is out of range", **where, found=found, expected=expected)


def _where(file: ByteSource, field: str, offset: int) -> dict[str, Any]:
    return {"path": file.path, "format": FORMAT, "offset": offset, "field": field}
