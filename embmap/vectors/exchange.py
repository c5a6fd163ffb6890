"""Matrices for other libraries and processes: capsules of DLPack, and pickles by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.errors import FormatError
from embmap.io.mapping import ByteSource

__all__ = ["CPU", "Origin", "check_request", "export", "find_again", "identify", "reopen_same"]

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


@dataclass(frozen=True)
class Origin:
    """Where another process finds a matrix.

    `reopen` opens its file again, or raises FormatError if another file has its path by now. `way`
    leads from the file to the matrix: names of attributes, and keys of mappings.
    """

    reopen: Callable[[], Any]
    way: tuple[str, ...]

    def part(self, name: str) -> Origin:
        """Return the origin of an attribute of the matrix."""
        return Origin(self.reopen, (*self.way, name))


def find_again(origin: Origin) -> Any:
    """Return a matrix that was pickled."""
    found = origin.reopen()
    for name in origin.way:
        found = found[name] if isinstance(found, Mapping) else getattr(found, name)
    return found


def identify(data: ByteSource) -> tuple[Any, ...]:
    """Return what is the same as long as a file is neither replaced nor written to."""
    return data.nbytes, data.mtime_ns, data.identity


def reopen_same(reopen: Callable[[], Any], *identity: Any) -> Any:
    """Return a file that was pickled; raise FormatError if it changed since."""
    file = reopen()
    if identify(file.mapped_files[0]) != identity:
        path = file.path
        file.close()
        raise FormatError("the file changed since it was pickled; pickle it again", path=path)
    return file
