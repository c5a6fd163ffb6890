"""Matrices for other libraries and processes: capsules of DLPack, and pickles by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.io.mapping import ByteSource

__all__ = [
    "CPU",
    "Origin",
    "check_request",
    "export",
    "extend",
    "find_again",
    "identify",
    "reopen_same",
]

CPU = (1, 0)
"""The device of DLPack on which arrays are: its type, and its number."""
_ALIGNMENT = 64  # bytes; TensorFlow ends the process if a capsule without a version is not aligned


def check_request(stream: object, dl_device: tuple[int, int] | None) -> None:
    """Raise BufferError if a consumer of DLPack asks for another device than the CPU."""
    if stream is not None:
        raise BufferError(f"stream must be None for arrays on the CPU, not {stream!r}")
    if dl_device is not None and tuple(dl_device) != CPU:
        raise BufferError(f"dl_device must be None or {CPU}, the CPU, not {dl_device}")


def export(
    array: npt.NDArray[Any], *, max_version: tuple[int, int] | None, copy: bool | None
) -> Any:
    """Return a capsule over an array that the consumer may write to, or over a copy of it."""
    address = array.__array_interface__["data"][0]
    lies_well = array.flags.aligned and (max_version is not None or address % _ALIGNMENT == 0)
    if copy or not (lies_well and array.flags.writeable):
        if copy is False:
            raise BufferError("copy must not be False: these rows are not aligned or are read-only")
        array = _aligned_copy(array)
    return array.__dlpack__(max_version=max_version)


def _aligned_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


Origin = tuple[Callable[[], Any], tuple[str, ...]]
"""Where another process finds a matrix: the call that opens its file again, or raises FormatError
if another file has its path by now; and the way from the file to the matrix, the names of
attributes and keys of mappings."""


def extend(origin: Origin | None, name: str) -> Origin | None:
    """Return the origin of an attribute of a matrix."""
    return None if origin is None else (origin[0], (*origin[1], name))


def find_again(reopen: Callable[[], Any], way: tuple[str, ...]) -> Any:
    """Return a matrix that was pickled."""
    found = reopen()
    for name in way:
        found = found[name] if isinstance(found, Mapping) else getattr(found, name)
    return found


def identify(data: ByteSource) -> tuple[Any, ...]:
    """Return the size and time of a file, which other machines with the same file see as well."""
    return data.nbytes, data.mtime_ns


def reopen_same(reopen: Callable[[], Any], *identity: Any) -> Any:
    """Return a file that was pickled; raise FormatError if it changed since."""
    file = reopen()
    if identify(file.mapped_files[0]) != identity:
        path = file.path
        file.close()
        raise FormatError("the file changed since it was pickled; pickle it again", path=path)
    return file
