"""Writing DWE files in both layouts, byte for byte as the original builder does.

A first pass over the time steps fits their entropy models and finds whatever cannot be written; a
second one encodes them. Three time steps are in memory at a time, and the file appears under its
name only once it is whole.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from embmap.atomic_write import replacing, spool_beside
from embmap.codecs.ans import LOWEST, Encoder
from embmap.codecs.difference_tree import differences, preorder
from embmap.codecs.entropy_model import (
    TOTAL,
    EntropyModel,
    count_symbols,
    fit_model,
    store_model,
)
from embmap.formats.dwe.layout import HEADER_NBYTES, LAYOUTS, MAGIC
from embmap.report import Progress

__all__ = ["quantize", "write"]

_GROUP = 100
_INT16 = np.iinfo(np.int16)

Steps = npt.ArrayLike | Iterable[npt.ArrayLike]


def write(
    path: str | os.PathLike[str],
    quantized: Steps,
    *,
    scale: float,
    group: int | None = None,
    layout: str = "blocks",
    progress: Progress | None = None,
) -> Path:
    """Write a DWE file.

    Parameters
    ----------
    path : path-like
        The file to create or replace; it is replaced only when everything has been written.
    quantized : array-like or iterable
        Shape (T, V, K), integers that int16 can hold, or T time steps of shape (V, K) in order:
        arrays or matrices. Those of a sequence are taken as often as they are needed, others are
        first spooled to disk.
    scale : float
        What an integer is multiplied with to be a number; stored as float32.
    group : int, optional
        Words that are compressed together, the unit of access; in blocks it divides V. By default
        100, or what comes close to it.
    layout : {"blocks", "stream"}
        Chunks that are found by address, as the published text describes, or one stream with a
        table of entry points, which is a little smaller.
    progress : callable, optional
        Called as ``progress(what, steps_done, n_steps)``.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    ValueError
        When something does not fit: a time step of more than 4096 different symbols, a difference
        beyond 16 bits. Nothing is written then.
    OSError
        When the file cannot be written.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    factor = _factor(scale)
    with contextlib.ExitStack() as stack:
        if not _subscriptable(quantized):
            spool = stack.enter_context(spool_beside(path))
            quantized = _spooled(cast(Iterable[npt.ArrayLike], quantized), spool)
        residuals = _Residuals(cast("Sequence[Any]", quantized))
        group = _group(residuals.n_words, group, layout)
        models = _models(residuals, progress)
        shape = (residuals.n_steps, residuals.n_words, residuals.dim, group)
        out = stack.enter_context(replacing(path))
        if layout == "blocks":
            address = _write_blocks(out, residuals, group, models, progress)
        else:
            spool = stack.enter_context(spool_beside(path))
            address = _write_stream(out, spool, residuals, group, models, progress)
        n_words = out.seek(0, os.SEEK_END) // 4
        if n_words >= 2**32:
            raise ValueError(f"the file would take {4 * n_words} bytes; 16 GiB are possible")
        out.seek(0)
        out.write(struct.pack("<4s8If", MAGIC, 1, 0, n_words, address, *shape, factor))
    return Path(os.fsdecode(path))


def quantize(
    vectors: npt.ArrayLike | Sequence[npt.ArrayLike], bits: int = 8
) -> tuple[npt.NDArray[np.int16], float]:
    """Round vectors to integers of one scale.

    Parameters
    ----------
    vectors : array-like or sequence
        Shape (T, V, K), floating point, or T time steps of shape (V, K).
    bits : int
        Bits of an integer, its sign included: 2 to 16. With more than 11, a time step may have more
        different symbols than a DWE file can hold.

    Returns
    -------
    quantized : numpy.ndarray
        Shape (T, V, K), int16, within plus and minus ``2 ** (bits - 1) - 1``.
    scale : float
        Exactly a float32: `quantized` times it are the vectors, off by half of it at the most.

    Raises
    ------
    ValueError
        When a value is not finite, or `bits` is out of range.
    """
    bits = operator.index(bits)
    if not 2 <= bits <= 16:
        raise ValueError(f"bits must be 2 to 16, not {bits}")
    steps = cast("Sequence[Any]", vectors if _subscriptable(vectors) else np.asarray(vectors))
    greatest = 0.0
    for t in range(len(steps)):
        step = np.asarray(steps[t])
        if step.ndim != 2 or step.dtype.kind not in "fiu" or not np.isfinite(step).all():
            raise ValueError(f"timestep {t} must be finite numbers in two dimensions")
        if step.shape != np.shape(steps[0]):
            raise ValueError(f"timestep {t} has shape {step.shape}, the first {np.shape(steps[0])}")
        if step.size:
            greatest = max(greatest, float(step.max()), -float(step.min()))
    highest = 2 ** (bits - 1) - 1
    with np.errstate(over="ignore"):
        scale = np.float32(greatest / highest)
    if not np.isfinite(scale) or (greatest and scale < np.finfo(np.float32).tiny):
        raise ValueError(f"a scale for values of up to {greatest} does not fit into float32")
    scale = scale or np.float32(1)
    quantized = np.empty((len(steps), *np.shape(steps[0])) if len(steps) else (0, 0, 0), np.int16)
    for t in range(len(steps)):
        rounded = np.rint(np.asarray(steps[t], np.float64) / float(scale))
        quantized[t] = np.clip(rounded, -highest, highest)
    return quantized, float(scale)


def _subscriptable(steps: object) -> bool:
    return hasattr(steps, "__getitem__") and hasattr(steps, "__len__")


def _factor(scale: float) -> float:
    try:
        with np.errstate(over="ignore"):
            factor = float(np.float32(scale))
    except OverflowError:
        factor = math.inf
    if not math.isfinite(factor) or not factor:
        raise ValueError(f"scale must be a number that float32 can hold and not 0; it is {scale}")
    return factor


def _group(n_words: int, group: int | None, layout: str) -> int:
    """Return how many words to compress together."""
    if group is None:
        if layout == "stream":
            return min(_GROUP, n_words)
        divisors = {d for i in range(1, math.isqrt(n_words) + 1) for d in (i, n_words // i)}
        fitting = sorted(d for d in divisors if not n_words % d)
        return min(fitting, key=lambda d: abs(math.log(d / _GROUP)))
    if not 1 <= group <= n_words:
        raise ValueError(f"group must be 1 to {n_words}, the number of words, not {group}")
    if layout == "blocks" and n_words % group:
        raise ValueError(
            f"group must divide the number of words in blocks; {group} does not divide {n_words}. "
            "layout='stream' takes any"
        )
    return group


class _Spooled(Sequence[npt.NDArray[np.int16]]):
    """Time steps in a temporary file."""

    def __init__(self, spool: BinaryIO, shape: tuple[int, ...], n: int) -> None:
        self._spool = spool
        self._shape = shape
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, t: Any) -> Any:
        nbytes = 2 * math.prod(self._shape)
        self._spool.seek(t * nbytes)
        return np.frombuffer(self._spool.read(nbytes), np.int16).reshape(self._shape)


def _spooled(steps: Iterable[npt.ArrayLike], spool: BinaryIO) -> _Spooled:
    shape: tuple[int, ...] = (0, 0)
    n = 0
    for step in steps:
        checked = _step(step, n, shape if n else None)
        shape = checked.shape
        spool.write(checked.tobytes())
        n += 1
    return _Spooled(spool, shape, n)


def _step(step: Any, t: int, shape: tuple[int, ...] | None) -> npt.NDArray[np.int16]:
    """Return a time step as int16, or say why it is none."""
    array = np.asarray(step)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ValueError(
            f"timestep {t} must be integers in two dimensions, not {array.dtype} in {array.ndim}; "
            "embmap.dwe.quantize makes them"
        )
    if shape is not None and array.shape != shape:
        raise ValueError(f"timestep {t} has shape {array.shape}, those before {shape}")
    if array.dtype != np.int16 and array.size:
        lowest, highest = int(array.min()), int(array.max())
        if lowest < _INT16.min or highest > _INT16.max:
            raise ValueError(f"timestep {t} has values from {lowest} to {highest}; int16 cannot")
    return array.astype(np.int16, copy=False)


class _Residuals:
    """What is stored of each time step: the first, the last, and differences between them."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self._steps = steps
        self.n_steps = len(steps)
        if self.n_steps < 2:
            raise ValueError(f"a DWE file has two time steps at least, not {self.n_steps}")
        shape = np.shape(steps[0])
        if len(shape) != 2 or 0 in shape or max(*shape, self.n_steps) >= 2**32:
            raise ValueError(f"a DWE file cannot hold time steps of shape {shape}")
        self.n_words, self.dim = shape
        self._nodes = preorder(self.n_steps)
        self.order = [0, self.n_steps - 1, *(middle for _, middle, _ in self._nodes)]

    def __iter__(self) -> Iterator[tuple[int, npt.NDArray[np.int16]]]:
        """Return each step's number and its symbols, in the order of writing."""
        for t in (0, self.n_steps - 1):
            yield t, self._step(t)
        for node in self._nodes:
            yield node[1], self._differences(*node)

    def backwards(self) -> Iterator[tuple[int, npt.NDArray[np.int16]]]:
        """Return the same, the last first."""
        for node in reversed(self._nodes):
            yield node[1], self._differences(*node)
        for t in (self.n_steps - 1, 0):
            yield t, self._step(t)

    def _step(self, t: int) -> npt.NDArray[np.int16]:
        return _step(self._steps[t], t, (self.n_words, self.dim))

    def _differences(self, left: int, t: int, right: int) -> npt.NDArray[np.int16]:
        try:
            return differences(self._step(left), self._step(t), self._step(right))
        except ValueError as error:
            raise ValueError(f"timestep {t}: {error}") from None


def _models(residuals: _Residuals, progress: Progress | None) -> list[EntropyModel]:
    """Return the entropy model of each time step."""
    models = {}
    for t, symbols in residuals:
        counted = count_symbols(symbols)
        if counted[0].size > TOTAL:
            raise ValueError(
                f"timestep {t} has {counted[0].size} different symbols; {TOTAL} are possible. "
                "Quantize to fewer bits"
            )
        models[t] = fit_model(*counted)
        if progress is not None:
            progress("fitting timesteps", len(models), residuals.n_steps)
    return [models[t] for t in range(residuals.n_steps)]


def _even(words: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    return np.append(words, np.uint16(0)) if words.size % 2 else words


def _write_blocks(
    out: BinaryIO,
    residuals: _Residuals,
    group: int,
    models: Sequence[EntropyModel],
    progress: Progress | None,
) -> int:
    """Write everything behind the header; return the address of the first chunk."""
    n_chunks = residuals.n_words // group
    heads = [_even(store_model(model)) for model in models]
    sizes = [head.size // 2 + n_chunks for head in heads]
    first = HEADER_NBYTES // 4 + residuals.n_steps
    addresses = (np.cumsum([first, *sizes])).tolist()
    end = addresses[-1]
    tables: dict[int, list[int]] = {}
    out.seek(4 * end)
    for t, symbols in residuals:
        encoder, table = Encoder(models[t]), tables.setdefault(t, [])
        for start in range(0, residuals.n_words, group):
            words, state = encoder.encode(symbols[start : start + group].reshape(-1))
            table.append(end)
            state_words = np.array([state >> 16, state & 0xFFFF], np.uint16)
            chunk = _even(np.concatenate((state_words, words))).astype("<u2", copy=False)
            out.write(chunk.tobytes())
            end += chunk.size // 2
        _check_size(end)
        if progress is not None:
            progress("encoding timesteps", len(tables), residuals.n_steps)
    out.seek(HEADER_NBYTES)
    out.write(np.array(addresses[:-1], "<u4").tobytes())
    for t, head in enumerate(heads):
        out.write(head.astype("<u2").tobytes() + np.array(tables[t], "<u4").tobytes())
    return int(addresses[-1])


def _write_stream(
    out: BinaryIO,
    spool: BinaryIO,
    residuals: _Residuals,
    group: int,
    models: Sequence[EntropyModel],
    progress: Progress | None,
) -> int:
    """Write everything behind the header; return the address of the jump table."""
    head = _even(np.concatenate([store_model(model) for model in models]))
    address = HEADER_NBYTES // 4 + head.size // 2
    starts = range(0, residuals.n_words, group)
    rows = np.empty((residuals.n_steps, len(starts), 2), np.int64)
    state, n_following = LOWEST, 0
    pieces: list[int] = []
    # The coder runs backwards through everything; what it wrote last is read first.
    for t, symbols in residuals.backwards():
        encoder, parts = Encoder(models[t]), []
        for g in reversed(range(len(starts))):
            part = symbols[starts[g] : starts[g] + group].reshape(-1)
            words, state = encoder.encode(part, state)
            parts.append(words)
            n_following += words.size
            rows[t, g] = n_following, state
        piece = np.concatenate(parts[::-1]).astype("<u2", copy=False)
        pieces.append(piece.nbytes)
        spool.write(piece.tobytes())
        _check_size(address + rows.size + n_following // 2)
        if progress is not None:
            progress("encoding timesteps", len(pieces), residuals.n_steps)
    rows[:, :, 0] = n_following - rows[:, :, 0]
    out.seek(HEADER_NBYTES)
    out.write(head.astype("<u2").tobytes() + rows.astype("<u4").tobytes())
    end = sum(pieces)
    for nbytes in reversed(pieces):
        end -= nbytes
        spool.seek(end)
        out.write(spool.read(nbytes))
    out.write(bytes(2 * (n_following % 2)))
    return address


def _check_size(n_words: int) -> None:
    if n_words >= 2**32:
        raise ValueError("the file would take more than the 16 GiB its addresses can reach")
