"""The tensors of an EMBD file: the index of a "spec" file, and the walk over a "flat" one.

A file may have thousands of tensors. Opening checks all of them at once and keeps their names; a
tensor is described when it is asked for. If something looks wrong, the tensors are checked one by
one, so that an error names the tensor.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError, TruncatedError
from embmap.formats.embd.fields import DESCRIPTOR, DTYPES, FORMAT, HEADER, TensorLayout
from embmap.formats.tensors import TensorTable
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource, MemoryMap
from embmap.io.positional_reads import PositionalFetch, pread

__all__ = ["DescribedTensors", "WalkedTensors"]

# Bytes of a number by dtype + 256 * ndim of a descriptor; 0 where one of them is not valid.
_ITEMSIZES = np.zeros(5 * 256 + 1)
for _number, _dtype in DTYPES.items():
    _bits = TensorLayout(name="", dtype=_dtype, shape=(), offset=0).bits
    _ITEMSIZES[256 + _number : -1 : 256] = _bits // 8
_UNUSED = np.ones((256, 4), np.uint32) - np.tri(256, 4, -1, np.uint32)  # by ndim: which dims
_U32 = struct.Struct("<I").unpack_from
_LONGEST_NAME = 1 << 10  # bytes of the names that the walk expects; longer ones take longer
_LARGE = 1 << 12  # bytes of a tensor that the walk steps over without reading
_NEAR, _FAR = 1 << 16, 1 << 8  # bytes read at once: after a small tensor, and after a large one
_SMALL = 1 << 19  # bytes of a file that is not opened once more


class DescribedTensors(TensorTable[TensorLayout]):
    """The tensors of the index of a spec file: descriptors, then names."""

    def __init__(
        self, file: ByteSource, reader: FieldReader, n: int, *, data: tuple[int, int]
    ) -> None:
        """Read the index where `reader` is; `data` is the offset and size of the tensor data."""
        self._file, self._reader, self._data = file, reader, data
        self._offset, nbytes = reader.offset, n * DESCRIPTOR.size
        if not HEADER.size <= self._offset <= reader.end or nbytes > reader.remaining:
            raise TruncatedError(
                f"an index of {n} tensors exceeds the file",
                **reader.where("tensor_index_count", 32),
            )
        self._table = reader.raw(nbytes, "tensor index")
        fields = np.frombuffer(self._table, "<u2").reshape(n, DESCRIPTOR.size // 2)
        self._kinds = fields[:, 2]  # dtype + 256 * ndim
        names = _read_names(reader, fields[:, 3].tolist())
        super().__init__(names)
        if not self._look_sound():
            _check_apart(file, names, [self.describe(number) for number in range(n)])

    def _look_sound(self) -> bool:
        """Whether all tensors are certainly sound; :meth:`describe` decides about the others.

        Numbers are float64: they are exact below 2**53, and stay above where they are not.
        """
        n, kinds = len(self.names), self._kinds
        dims, unused = self._find_dims(), _UNUSED[kinds >> 8]
        starts = np.frombuffer(self._table, "<u8").reshape(n, DESCRIPTOR.size // 8)[:, 3]
        counts = np.multiply.reduce(dims + unused, axis=1, dtype=np.float64)
        nbytes = counts * _ITEMSIZES.take(kinds, mode="clip")
        ends = starts + nbytes
        is_inside = (nbytes > 0) & (ends <= self._data[1])
        if (
            np.count_nonzero(is_inside) < n
            or np.count_nonzero(dims * unused)
            or len(self) < n  # two names are equal
        ):
            return False
        if not np.count_nonzero(starts[1:] < ends[:-1]):
            return True
        order = starts.argsort()
        return not np.count_nonzero(starts[order[1:]] < ends[order[:-1]])

    def _find_dims(self) -> npt.NDArray[np.uint32]:
        fields = np.frombuffer(self._table, "<u4").reshape(-1, DESCRIPTOR.size // 4)
        return fields[:, 2:6]

    def describe(self, number: int) -> TensorLayout:  # noqa: D102  documented in TensorTable
        at = number * DESCRIPTOR.size
        name_hash, dtype, n_dims, _, *dims, start = DESCRIPTOR.unpack_from(self._table, at)
        name, (offset, nbytes) = self.names[number], self._data
        if dtype not in DTYPES:
            raise self._error(f"the data type of tensor {name!r} is not known", number, dtype)
        if not 1 <= n_dims <= 4 or any(dims[n_dims:]):
            raise self._error(f"tensor {name!r} has impossible dimensions", number, dims)
        tensor = TensorLayout(
            name=name,
            dtype=DTYPES[dtype],
            shape=tuple(dims[:n_dims]),
            offset=offset + start,
            name_hash=name_hash,
        )
        _check_size(self._file, tensor)
        if start + tensor.nbytes > nbytes:
            raise self._error(
                f"tensor {name!r} exceeds the tensor data",
                number,
                f"{tensor.nbytes} bytes at {start} of {nbytes}",
                TruncatedError,
            )
        return tensor

    def find_matrix(self, n_rows: int | None = None) -> TensorLayout | None:  # noqa: D102
        found = self._kinds >> 8 == 2
        if n_rows is not None:
            found &= self._find_dims()[:, 0] == n_rows
        return self.describe(int(found.argmax())) if np.count_nonzero(found) == 1 else None

    def _error(
        self, message: str, number: int, found: Any, kind: type[FormatError] = FormatError
    ) -> FormatError:
        where = f"descriptor of tensor {number}"
        offset = self._offset + number * DESCRIPTOR.size
        return kind(message, **self._reader.where(where, offset), found=found)


def _read_names(reader: FieldReader, sizes: list[int]) -> list[str]:
    """Return the names, which lie one after the other."""
    start, ends = reader.offset, list(accumulate(sizes, initial=0))
    if ends[-1] <= reader.remaining:
        encoded = reader.raw(ends[-1], "names")
        if encoded.isascii():
            text = encoded.decode("ascii")
            return [text[begin:end] for begin, end in pairwise(ends)]
    reader.offset = start
    names = []
    for number, nbytes in enumerate(sizes):
        field = f"name of tensor {number}"
        names.append(reader.decode(reader.raw(nbytes, field), reader.offset - nbytes, field))
    return names


class _Heads(dict[int, Callable[..., tuple[Any, ...]]]):
    """Functions that unpack a name of a certain length, ndim and the first two dims."""

    def __missing__(self, length: int) -> Callable[..., tuple[Any, ...]]:
        if length > _LONGEST_NAME:
            raise KeyError(length)
        self[length] = unpack = struct.Struct(f"<{length}s3I").unpack_from
        return unpack


_HEADS = _Heads()
_Head = tuple[Any, ...]  # the encoded name, ndim, the dims, and perhaps numbers that follow them


class WalkedTensors(TensorTable[TensorLayout]):
    """The tensors of a flat file, each a name, dims and its data, and where they end."""

    def __init__(self, file: ByteSource, offset: int, n: int) -> None:
        """Walk over `n` tensors, the first of which starts at `offset`."""
        self._file = file
        self._heads, self._offsets, self.end = _walk(file, offset, n)
        try:
            names = [head[0].decode() for head in self._heads]
        except UnicodeDecodeError:
            names = self._decode_names()
        super().__init__(names)
        if len(self) < n:
            _check_apart(file, names, ())

    def _decode_names(self) -> list[str]:
        reader, names = FieldReader(self._file, FORMAT), []
        for number, ((name, n_dims, *_), end) in enumerate(
            zip(self._heads, self._offsets, strict=True)
        ):
            start = end - 4 * (n_dims + 1) - len(name)
            names.append(reader.decode(name, start, f"name of tensor {number}"))
        return names

    def describe(self, number: int) -> TensorLayout:  # noqa: D102
        head = self._heads[number]
        return TensorLayout(
            name=self.names[number],
            dtype="<f4",
            shape=head[2 : 2 + head[1]],
            offset=self._offsets[number],
        )

    def find_matrix(self, n_rows: int | None = None) -> TensorLayout | None:  # noqa: D102
        fitting = (
            number
            for number, head in enumerate(self._heads)
            if head[1] == 2 and n_rows in (None, head[2])
        )
        found = next(fitting, None)
        return None if found is None or next(fitting, None) is not None else self.describe(found)


def _walk(file: ByteSource, position: int, n: int) -> tuple[list[_Head], list[int], int]:
    """Return the heads of tensors, where the data of each start, and where the last ones end."""
    heads: list[_Head] = []
    offsets: list[int] = []
    read, _owner = _choose_reads(file)
    nbytes = _NEAR
    while len(heads) < n:
        at = size = 0
        try:
            window = read(nbytes, position)
            size = len(window)
            for _ in range(n - len(heads)):
                (length,) = _U32(window, at)
                head = _HEADS[length](window, at + 4)
                _, n_dims, rows, columns = head
                if n_dims == 2:
                    at += length + 16
                    offsets.append(position + at)
                    at += 4 * rows * columns
                elif n_dims == 1:
                    at += length + 12
                    offsets.append(position + at)
                    at += 4 * rows
                else:
                    break
                heads.append(head)
                if at >= size:
                    break
        except (struct.error, KeyError, OverflowError):
            pass  # these bytes are read again, or one by one
        if at or nbytes == _FAR:
            position += at
            nbytes = _FAR if at - size > _LARGE else _NEAR
        else:
            _check_end(file, heads, offsets, position)
            head, offset = _read_head(file, position, len(heads))
            heads.append(head)
            offsets.append(offset)
            position = offset + 4 * math.prod(head[2:])
    _check_end(file, heads, offsets, position)
    return heads, offsets, position


def _choose_reads(file: ByteSource) -> tuple[Callable[[int, int], bytes], object]:
    """Return a function of a size and an offset that reads up to so many bytes, and its owner.

    A large file is read even if it is mapped: the system takes longer to map a page.
    """
    if isinstance(file, MemoryMap) and file.nbytes > _SMALL:
        with suppress(OSError):
            again = PositionalFetch(cast(Path, file.path))
            status = os.fstat(again.descriptor)
            if (status.st_dev, status.st_ino) == file.identity:  # no other file has its path
                return partial(pread, again.descriptor), again
    fetch = file.fetch
    return lambda nbytes, offset: fetch[offset : offset + nbytes], file


def _read_head(file: ByteSource, position: int, number: int) -> tuple[_Head, int]:
    """Return the head of a tensor, read field by field, and where its data start."""
    reader = FieldReader(file, FORMAT, position)
    length = reader.u32(f"name of tensor {number} length")
    encoded = reader.raw(length, f"name of tensor {number}")
    name = reader.decode(encoded, reader.offset - length, f"name of tensor {number}")
    n_dims = reader.u32(f"ndim of tensor {number}")
    if not 1 <= n_dims <= 4:
        raise reader.error(f"tensor {name!r} has impossible dimensions", "ndim", found=n_dims)
    shape = tuple(reader.u32(f"dims of tensor {number}") for _ in range(n_dims))
    _check_size(file, TensorLayout(name=name, dtype="<f4", shape=shape, offset=reader.offset))
    return (encoded, n_dims, *shape), reader.offset


def _check_end(
    file: ByteSource, heads: Sequence[_Head], offsets: Sequence[int], position: int
) -> None:
    """Refuse a tensor, the last one so far, that ends behind the file."""
    if position > file.nbytes:
        name, number = heads[-1][0].decode(errors="replace"), len(heads) - 1
        needed, left = position - offsets[-1], file.nbytes - offsets[-1]
        raise TruncatedError(
            f"tensor {name!r} needs {needed} bytes, but {left} are left",
            **FieldReader(file, FORMAT).where(f"data of tensor {number}", offsets[-1]),
        )


def _check_size(file: ByteSource, tensor: TensorLayout) -> None:
    if math.prod(max(size, 1) for size in tensor.shape) * tensor.bits >= 2**66:
        message = f"tensor {tensor.name!r} has impossible dimensions"
        raise FormatError(message, path=file.path, format=FORMAT, found=tensor.shape)


def _check_apart(file: ByteSource, names: list[str], tensors: Sequence[TensorLayout]) -> None:
    """Refuse tensors with the same name and tensors that overlap."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            message = f"two tensors are called {name!r}"
            raise FormatError(message, path=file.path, format=FORMAT)
        seen.add(name)
    ordered = sorted((tensor for tensor in tensors if tensor.nbytes), key=lambda t: t.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise FormatError(
                f"tensors {before.name!r} and {after.name!r} overlap",
                path=file.path,
                format=FORMAT,
                offset=after.offset,
            )
