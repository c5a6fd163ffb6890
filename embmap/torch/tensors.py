"""Rows, words and whole files as tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from embmap.devices.uploading import find_device
from embmap.embeddings import Embeddings, Missing
from embmap.errors import UnsupportedError
from embmap.formats.tensors import StoredTensor, TensorFile
from embmap.io.mapping import ByteSource
from embmap.io.private_map import map_private
from embmap.opening import open
from embmap.torch.table import RowTable, Source, fill, matrix_of
from embmap.vectors.matrix import RowIndex

__all__ = ["load_file", "tensor"]


def tensor(
    source: Source,
    rows: RowIndex | str | Sequence[str] | torch.Tensor | None = None,
    *,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    non_blocking: bool = False,
    missing: Missing = "raise",
) -> torch.Tensor:
    """Return vectors as a tensor, which may be written to.

    All rows of a mapped file are not read: the tensor lies over copy-on-write memory of the file
    and stays valid when the file is closed. If the file is cut short later, reading the lost part
    kills the process. Chosen rows and words are copies.

    Parameters
    ----------
    source : Embeddings or Matrix
        An open or served file, or its vectors.
    rows : int, slice, str, or sequence of int, bool or str, optional
        Rows by number, or words; also arrays and tensors of numbers. Every row by default.
    device : torch.device, str or int, optional
        Where the result will be; by default on the device of `out`, or on the CPU.
    dtype : torch.dtype, optional
        The dtype of the result, by default the dtype of the vectors. float16 from fp16 chunks of a
        CVC file and bfloat16 from bfloat16 tensors are the stored numbers.
    out : torch.Tensor, optional
        The tensor to fill.
    non_blocking : bool
        Whether a copy to a CUDA device may still be under way when the function returns.
    missing : {"raise", "zero", "nan"}
        How to handle words without a vector.

    Returns
    -------
    torch.Tensor
        Shape (dim,) for a row or a word, else (n, dim), with T before dim where vectors are
        trajectories: a new tensor, or `out`.

    Raises
    ------
    UnknownWordError
        If a word has no vector and `missing` is "raise".
    IndexError
        If a row does not exist.
    ValueError
        If `out` does not fit, or the device is not there.
    TypeError
        If a matrix is asked for words, or an argument has a wrong type.
    FormatError
        If the file has no vectors, or was replaced before all of its rows were asked for.
    TruncatedError
        If the file shrank.
    """
    if missing not in get_args(Missing):
        raise ValueError(f"missing must be 'raise', 'zero' or 'nan', not {missing!r}")
    place = _find_place(device, out)
    table = RowTable(matrix_of(source), dtype)
    if out is not None and out.dtype != table.dtype:
        raise ValueError(f"out must have the dtype {table.dtype}, not {out.dtype}")
    if isinstance(rows, torch.Tensor):
        rows = rows.detach().cpu().numpy()
    words = _words_of(rows)
    if words is not None:
        found = _take_words(source, table, words, missing)
        found = found[0] if np.ndim(rows) == 0 else found  # type: ignore[arg-type]
    elif rows is None:
        found = table.whole()
    elif isinstance(rows, slice) or np.ndim(rows) == 0:  # type: ignore[arg-type]
        found = table.part(rows)
    else:
        found = _take(table, np.asarray(rows), place, (out, non_blocking))
    if out is None:
        return found if place.type == "cpu" else found.to(place, non_blocking=non_blocking)
    return out if found is out else fill(out, found, non_blocking=non_blocking)


def _find_place(device: torch.device | str | int | None, out: torch.Tensor | None) -> torch.device:
    if out is None or device is None:
        return find_device(device) if out is None else out.device
    place = find_device(device)
    if place.type != out.device.type or place.index not in (None, out.device.index):
        raise ValueError(f"out must be on the device {place}, not on {out.device}")
    return place


def _words_of(rows: object) -> list[str] | None:
    """Return the words that a caller asks for; None if rows are asked for by number."""
    if isinstance(rows, str):
        return [rows]
    if isinstance(rows, list | tuple) and any(isinstance(item, str) for item in rows):
        return list(rows)
    if hasattr(rows, "__array__"):
        array = np.asarray(rows)
        if array.dtype.kind in "UTO":
            return np.atleast_1d(array).tolist()  # type: ignore[no-any-return]
    return None


def _take_words(
    source: Source, table: RowTable, words: list[str], missing: Missing
) -> torch.Tensor:
    if not isinstance(source, Embeddings):
        raise TypeError("rows must be numbers, not words: a matrix has no words")
    if table.is_narrow:
        numbers = source.find(words)
        if (numbers >= 0).all():
            return table.take(numbers)
    return torch.from_numpy(source.batch(words, missing=missing)).to(table.dtype)


def _take(
    table: RowTable,
    rows: npt.NDArray[np.generic],
    place: torch.device,
    target: tuple[torch.Tensor | None, bool],
) -> torch.Tensor:
    """Return rows on the CPU: in `out` if it is there, or where a device reads them directly."""
    out, non_blocking = target
    if place.type == "cpu":
        return table.take(rows, out)
    if place.type != "cuda" or not non_blocking:
        return table.take(rows)
    numbers = table.row_numbers(rows)
    shape = (numbers.size, *table.shape[1:])
    return table.take(numbers, torch.empty(shape, dtype=table.dtype, pin_memory=True))


def load_file(
    path: str | os.PathLike[str], device: torch.device | str | int = "cpu"
) -> dict[str, torch.Tensor]:
    """Return the tensors of an EMBD or safetensors file by name.

    On the CPU nothing is read: the tensors lie over copy-on-write memory of the file, which may be
    larger than the memory of the machine. If the file is cut short later, reading the lost part
    kills the process.

    Parameters
    ----------
    path : path-like
        The file.
    device : torch.device, str or int
        Where the tensors will be.

    Returns
    -------
    dict of str to torch.Tensor
        The tensors in the order of the file, each in its stored shape and dtype.

    Raises
    ------
    FormatError
        If the file is damaged or of no known format.
    UnsupportedError
        If the file has no tensors with names, or one of a dtype that torch lacks.
    ValueError
        If the device is not there.
    OSError
        If the file cannot be opened.
    """
    place = find_device(device)
    with open(path, index="memory") as file:
        if not isinstance(file, TensorFile):
            message = f"{file.format} files have no tensors with names; use embmap.torch.tensor"
            raise UnsupportedError(message, path=path)
        tensors = file.tensors
        data, layouts = tensors.data, map(tensors.layout, tensors)
        found = _map_tensors(data, list(layouts))
    if place.type == "cpu":
        return found
    return {name: each.to(place) for name, each in found.items()}


def _map_tensors(data: ByteSource, layouts: list[StoredTensor]) -> dict[str, torch.Tensor]:
    memory = map_private(data)
    kinds = {name: _kind_of(data, name) for name in {each.dtype for each in layouts}}
    found = {}
    for each in layouts:
        stored, dtype = kinds[each.dtype]
        shape = each.shape
        if each.bits == 4:
            shape = _pack(data, each)
        # An array of numpy and its tensor take half of the time of torch.frombuffer and a view.
        array = np.ndarray(shape, stored, memory, each.offset)
        numbers = torch.from_numpy(array if array.flags.aligned else array.copy())
        found[each.name] = numbers if dtype is None else numbers.view(dtype)
    return found


def _kind_of(data: ByteSource, name: str) -> tuple[np.dtype[Any], torch.dtype | None]:
    """Return how numpy sees a stored dtype, and torch's dtype if numpy lacks it."""
    if not name.startswith(("float", "bfloat")):
        return np.dtype(name), None
    dtype = getattr(torch, f"{name}_x2" if name.startswith("float4") else name, None)
    if not isinstance(dtype, torch.dtype):
        message = "this version of torch has no such dtype"
        raise UnsupportedError(message, path=data.path, found=name)
    return np.dtype(f"i{dtype.itemsize}"), dtype


def _pack(data: ByteSource, tensor: StoredTensor) -> tuple[int, ...]:
    """Return the shape of numbers of 4 bits, of which torch has two in one element."""
    *outer, inner = tensor.shape or (1,)
    if inner % 2:
        raise UnsupportedError(
            "numbers of 4 bits must be even in number in the last dimension",
            path=data.path,
            field=f"tensor {tensor.name[:100]!r}",
            found=inner,
        )
    return (*outer, inner // 2)
