"""CVC files on devices: their chunks are uploaded as they are stored and decoded there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from embmap.codecs.planes import parse_planes
from embmap.errors import FormatError
from embmap.formats.cvc.chunks import ChunkedMatrix
from embmap.formats.cvc.file import CvcFile
from embmap.io.backends import open_mapped
from embmap.threads import in_parallel

if TYPE_CHECKING:
    import torch

__all__ = ["Framework", "load", "load_chunks"]

Framework = Literal["numpy", "torch", "cupy"]


def load(
    path: str | os.PathLike[str],
    *,
    device: Any = "cpu",
    framework: Framework = "numpy",
    column: str | None = None,
    check: bool = True,
) -> Any:
    """Decode all rows of a CVC file, on the CPU or on a device.

    On a device, the compressed bytes are uploaded and decoded by operations of torch. The result
    has the same bits as ``np.asarray(embmap.open(path).vectors)``.

    Parameters
    ----------
    path : path-like
        The file.
    device : torch.device, str or int
        Where the rows will be, such as "cpu" or "cuda".
    framework : {"numpy", "torch", "cupy"}
        The library of the result. numpy has the CPU only, and cupy has CUDA devices only.
    column : str, optional
        Name of the column; required if the file has several.
    check : bool
        Whether to compare the checksums of the chunks.

    Returns
    -------
    numpy.ndarray, torch.Tensor or cupy.ndarray
        Shape (rows, dim), with the dtype of the column: float32 if a chunk is compressed.

    Raises
    ------
    ChecksumError
        If a checksum does not match its chunk.
    FormatError
        If it is not a CVC file, or a chunk cannot be decoded.
    ImportError
        If a library is not installed.
    ValueError
        If `framework` is not one of its choices, if the device is not there or does not suit the
        framework, or if `column` is missing.
    KeyError
        If there is no column of that name.
    OSError
        If the file cannot be opened.
    """
    target = _Target(device, framework)
    matrix = _open_column(path, column)
    n_chunks = len(matrix.parts)
    if check:
        in_parallel(matrix.check_chunk, range(n_chunks))
    return target.hand_over(target.decode(matrix, range(n_chunks)))


def load_chunks(
    path: str | os.PathLike[str],
    *,
    device: Any = "cpu",
    framework: Framework = "numpy",
    column: str | None = None,
    check: bool = True,
) -> Iterator[Any]:
    """Decode a CVC file one chunk after the other, on the CPU or on a device.

    Parameters
    ----------
    path : path-like
        The file.
    device : torch.device, str or int
        Where the rows will be, such as "cpu" or "cuda".
    framework : {"numpy", "torch", "cupy"}
        The library of the results. numpy has the CPU only, and cupy has CUDA devices only.
    column : str, optional
        Name of the column; required if the file has several.
    check : bool
        Whether to compare the checksums of the chunks.

    Returns
    -------
    iterator
        Yields the rows of each chunk, as the framework's array: shape (rows of the chunk, dim),
        with the dtype of the column.

    Raises
    ------
    ChecksumError
        If a checksum does not match its chunk.
    FormatError
        If it is not a CVC file, or a chunk cannot be decoded.
    ImportError
        If a library is not installed.
    ValueError
        If `framework` is not one of its choices, if the device is not there or does not suit the
        framework, or if `column` is missing.
    KeyError
        If there is no column of that name.
    OSError
        If the file cannot be opened.
    """
    target = _Target(device, framework)
    matrix = _open_column(path, column)
    return _each_chunk(target, matrix, check=check)


def _each_chunk(target: _Target, matrix: ChunkedMatrix, *, check: bool) -> Iterator[Any]:
    for number in range(len(matrix.parts)):
        if check:
            matrix.check_chunk(number)
        yield target.hand_over(target.decode(matrix, range(number, number + 1)))


def _open_column(path: str | os.PathLike[str], column: str | None) -> ChunkedMatrix:
    columns = CvcFile(open_mapped(path)).columns
    if column is None:
        if len(columns) != 1:
            raise ValueError(f"column must be one of {', '.join(columns)}, not None")
        (column,) = columns
    return columns[column]  # type: ignore[return-value]


class _Target:
    """The library and the device that a caller asks for, both checked."""

    def __init__(self, device: Any, framework: str) -> None:
        if framework not in get_args(Framework):
            choices = ", ".join(get_args(Framework))
            raise ValueError(f"framework must be one of {choices}, not {framework!r}")
        self._framework = framework
        self._device: torch.device | None = None
        if framework == "numpy":
            if str(device) != "cpu":
                raise ValueError(f"device must be 'cpu' for numpy, not {device!r}")
            return
        try:
            from embmap.devices.uploading import find_device
        except ImportError as error:
            raise ImportError(
                f"framework={framework!r} needs torch: pip install 'embmap[torch]'", name="torch"
            ) from error
        if framework == "cupy":
            try:
                import cupy  # noqa: F401
            except ImportError as error:
                raise ImportError("framework='cupy' needs cupy", name="cupy") from error
        self._device = find_device(device)
        if framework == "cupy" and self._device.type != "cuda":
            raise ValueError(f"device must be a CUDA device for cupy, not {device!r}")

    def decode(self, matrix: ChunkedMatrix, chunks: range) -> Any:
        """Return the rows of some chunks on the device, without comparing checksums."""
        if self._device is None or self._device.type == "cpu":
            return _decode_here(matrix, chunks)
        return decode_there(matrix, chunks, self._device)

    def hand_over(self, rows: Any) -> Any:
        """Return rows as an array of the library."""
        if self._framework == "numpy":
            return rows
        if self._framework == "cupy":
            import cupy

            return cupy.from_dlpack(rows)
        import torch

        return torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows


def _decode_here(matrix: ChunkedMatrix, chunks: range) -> npt.NDArray[Any]:
    counts = [matrix.n_rows(number) for number in chunks]
    starts = [0, *np.cumsum(counts).tolist()]
    out = np.empty((starts[-1], matrix.shape[1]), matrix.dtype)

    def decode(i: int) -> None:
        matrix.decode_rows(chunks[i], 0, counts[i], out[starts[i] : starts[i + 1]])

    in_parallel(decode, range(len(chunks)))
    return out


def decode_there(
    matrix: ChunkedMatrix, chunks: range, device: torch.device, **options: int
) -> torch.Tensor:
    """Return the rows of some chunks, decoded by operations of torch on a device.

    `options` are passed to the upload.
    """
    import torch

    from embmap.devices.uploading import Upload

    upload = Upload(device, **options)
    dtype = torch.from_numpy(np.empty(0, matrix.dtype)).dtype
    counts = [matrix.n_rows(number) for number in chunks]
    out = torch.empty((sum(counts), matrix.shape[1]), dtype=dtype, device=device)
    start = 0
    for number, n_rows in zip(chunks, counts, strict=True):
        stored = matrix.stored_bytes(number)
        place = out[start : start + n_rows]
        place.copy_(_decode(matrix, number, stored, upload.send(stored)).view(place.shape))
        start += n_rows
    return out


def _decode(
    matrix: ChunkedMatrix, number: int, stored: npt.NDArray[np.uint8], sent: torch.Tensor
) -> torch.Tensor:
    import torch

    from embmap.devices import decoding

    part = matrix.parts[number]
    if part.compression == "fp16":
        return decoding.decode_half(sent)
    if part.compression == "int8":
        scale, minimum = float(np.float32(part.scale)), float(np.float32(part.minimum))
        return decoding.decode_affine(sent, scale, minimum)
    if part.compression == "none":
        return sent.view(torch.from_numpy(np.empty(0, matrix.column.dtype)).dtype)
    try:
        planes = parse_planes(stored)
        n = matrix.n_rows(number) * matrix.shape[1]
        if planes.n != n:
            raise ValueError(f"it has {planes.n} values, not {n}")
        return decoding.decode_planes(sent, planes)
    except ValueError as error:
        message = f"the payload of chunk {number} cannot be decoded: {error}"
        raise FormatError(message, **matrix.locate(number)) from None
