"""Vectors as blocks of a few rows, from anything that a writer accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.progress import Progress
from embmap.vectors.matrix import Matrix

__all__ = ["Blocks", "count_rows", "rechunk", "report_rows", "split_blocks"]

Blocks = npt.ArrayLike | Matrix | Iterable[npt.ArrayLike]
_BLOCK_NBYTES = 1 << 22
_PIECE_NBYTES = 1 << 19  # smaller blocks are joined, because every block costs a call


def split_blocks(vectors: Blocks) -> Iterator[npt.NDArray[Any]]:
    """Yield vectors as blocks (rows, columns) of bounded size, or the caller's own blocks."""
    if isinstance(vectors, Matrix):
        for _, block in vectors.blocks():
            yield block
        if not len(vectors):
            yield np.asarray(vectors)
    elif isinstance(vectors, np.ndarray) or hasattr(vectors, "__array__"):
        array = np.asarray(vectors)
        if array.ndim != 2:
            raise ValueError(f"vectors must have two dimensions, not {array.ndim}")
        rows = max(_BLOCK_NBYTES // max(array.shape[1] * array.itemsize, 1), 1)
        for start in range(0, max(len(array), 1), rows):
            yield array[start : start + rows]
    elif isinstance(vectors, list | tuple) and vectors and np.ndim(vectors[0]) == 1:
        yield from split_blocks(np.asarray(vectors))  # a list of rows is a matrix
    else:
        for item in vectors:  # type: ignore[union-attr]
            block = np.asarray(item)
            yield block[np.newaxis] if block.ndim == 1 else block


def rechunk(
    blocks: Iterable[npt.NDArray[Any]], rows: int | Iterable[int]
) -> Iterator[Iterator[npt.NDArray[Any]]]:
    """Yield blocks of any sizes as chunks of `rows` rows, each of them piece by piece.

    If `rows` are the rows of each chunk, as many chunks are yielded, with too few rows if need be.
    """
    pieces = _pieces(blocks)
    rest = next(pieces, None)

    def chunk(n_left: int) -> Iterator[npt.NDArray[Any]]:
        nonlocal rest
        while n_left and rest is not None:
            piece = rest[:n_left]
            n_left -= len(piece)
            yield piece
            rest = rest[len(piece) :] if len(piece) < len(rest) else next(pieces, None)

    if isinstance(rows, Iterable):
        yield from map(chunk, rows)
        return
    while rest is not None:
        yield chunk(rows)


def _pieces(blocks: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    """Yield the same rows in pieces of bounded size; only the last piece may be tiny."""
    waiting: list[npt.NDArray[Any]] = []
    nbytes = n_before = 0
    kind: tuple[int, np.dtype[Any]] | None = None
    for block in blocks:
        if block.ndim != 2:
            raise ValueError(f"a block of vectors must have two dimensions, not {block.ndim}")
        native = block.dtype.newbyteorder("=")
        kind = kind or (block.shape[1], native)
        if (block.shape[1], native) != kind:
            raise ValueError(
                f"the block from row {n_before} on has {block.shape[1]} columns of {native}, "
                f"but the blocks before it have {kind[0]} of {kind[1]}"
            )
        n_before += len(block)
        rows = max(_BLOCK_NBYTES // max(block[:1].nbytes, 1), 1)
        for start in range(0, len(block), rows):
            waiting.append(block[start : start + rows].astype(native, copy=False))
            nbytes += waiting[-1].nbytes
            if nbytes >= _PIECE_NBYTES:
                yield np.concatenate(waiting) if len(waiting) > 1 else waiting[0]
                waiting, nbytes = [], 0
    if waiting:
        yield np.concatenate(waiting)
    elif kind is not None and not n_before:
        yield np.empty((0, kind[0]), kind[1])


def report_rows(
    blocks: Iterable[npt.NDArray[Any]], progress: Progress | None, what: str, total: int
) -> Iterator[npt.NDArray[Any]]:
    """Pass blocks through; report their rows when the caller asks for the next block."""
    n = 0
    for block in blocks:
        yield block
        n += len(block)
        if progress is not None:
            progress(what, n, total)


def count_rows(vectors: Blocks) -> int:
    """Return the number of rows; 0 if that is not known before they are read."""
    if isinstance(vectors, Matrix) or hasattr(vectors, "__array__"):
        return len(vectors)  # type: ignore[arg-type]
    return 0
