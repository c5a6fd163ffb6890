"""Writing DWE files in both dialects, byte for byte as the original builder does.

A first pass over the time steps fits their entropy models and finds values that cannot be written;
a second pass encodes them. Both process a few groups of words at a time, so that memory stays
bounded. The file gets its name only once it is complete.
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

from embmap.codecs.ans import LOWEST, Encoder
from embmap.codecs.entropy_model import (
    TOTAL,
    EntropyModel,
    count_symbols,
    fit_model,
    store_model,
)
from embmap.formats.dwe.layout import DIALECTS, HEADER_NBYTES, MAGIC
from embmap.formats.dwe.residuals import AT_ONCE, Residuals, as_rows, can_reread, spool_steps
from embmap.io.atomic_write import replacing, spool_beside
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks, split_blocks

__all__ = ["quantize", "quantize_blocks", "write", "write_steps"]

_GROUP = 100
_MOST_WAITING = 1024  # groups that are written at once

Steps = npt.ArrayLike | Iterable[Blocks]


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
        The file to create or replace; an existing file is kept until the new one is complete.
    quantized : array-like or iterable
        Shape (T, V, K), integers within int16, or T time steps of shape (V, K) in order: arrays,
        matrices, or iterables of blocks of rows. A list of arrays or matrices is read twice;
        everything else is first written to a temporary file.
    scale : float
        Factor from integers to numbers; stored as float32.
    group : int, optional
        Number of words that are compressed together; in blocks it must divide V. By default 100,
        or the divisor of V closest to it.
    layout : {"blocks", "stream"}
        Chunks that are found by address, as the published text describes, or a stream with a table
        of entry points, which is a little smaller.
    progress : callable, optional
        Called as ``progress(what, steps_done, n_steps)``.

    Returns
    -------
    pathlib.Path
        The new file.

    Raises
    ------
    ValueError
        If an argument is out of range, a time step has more than 4096 different symbols, or a
        difference exceeds 16 bits. An existing file is then left unchanged.
    OSError
        If the file cannot be written.
    """
    if layout not in DIALECTS:
        raise ValueError(f"layout must be one of {', '.join(DIALECTS)}, not {layout!r}")
    return write_steps(
        path, quantized, scale=_factor(scale), group=group, layout=layout, progress=progress
    )


def write_steps(
    path: str | os.PathLike[str],
    quantized: Steps,
    *,
    scale: float,
    group: int | None,
    layout: str,
    progress: Progress | None,
    wrap: bool = False,
) -> Path:
    """Write a file as :func:`write` does; differences beyond 16 bits wrap if `wrap` is true.

    Files that contain such differences can be read, so that they can be written again.
    """
    with contextlib.ExitStack() as stack:
        steps = cast("Sequence[Any]", quantized)
        if not can_reread(steps):
            steps = spool_steps(steps, stack.enter_context(spool_beside(path)))
        residuals = Residuals(steps, wrap)
        group = _choose_group(residuals.n_words, group, layout)
        models = _fit_models(residuals, progress)
        shape = (residuals.n_steps, residuals.n_words, residuals.dim, group)
        out = stack.enter_context(replacing(path))
        if layout == "blocks":
            address = _write_blocks(out, residuals, models, group=group, progress=progress)
        else:
            spool = stack.enter_context(spool_beside(path))
            address = _write_stream(
                out, residuals, models, group=group, progress=progress, spool=spool
            )
        n_words = out.seek(0, os.SEEK_END) // 4
        _check_size(n_words)
        out.seek(0)
        out.write(struct.pack("<4s8If", MAGIC, 1, 0, n_words, address, *shape, scale))
    return Path(os.fsdecode(path))


def quantize(
    vectors: npt.ArrayLike | Sequence[npt.ArrayLike], bits: int = 8
) -> tuple[npt.NDArray[np.int16], float]:
    """Round vectors to integers with one scale.

    Parameters
    ----------
    vectors : array-like or sequence
        Shape (T, V, K), floating point, or T time steps of shape (V, K).
    bits : int
        Bits of an integer, including its sign: 2 to 16. With more than 11 bits, a time step may
        have more different symbols than a DWE file can store.

    Returns
    -------
    quantized : numpy.ndarray
        Shape (T, V, K), int16, from ``-(2 ** (bits - 1) - 1)`` to ``2 ** (bits - 1) - 1``.
    scale : float
        Factor from integers to numbers, exactly a float32. ``quantized * scale`` differs from the
        vectors by at most ``scale / 2``.

    Raises
    ------
    ValueError
        If a value is not finite, or `bits` is out of range.
    """
    steps = cast("Sequence[Any]", vectors if _subscriptable(vectors) else np.asarray(vectors))
    shape = (len(steps), *np.shape(steps[0])) if len(steps) else (0, 0, 0)
    rounded, scale = quantize_blocks(steps, bits)
    quantized = np.empty(shape, np.int16)
    for step, blocks in zip(quantized, rounded, strict=True):
        start = 0
        for block in blocks:
            step[start : start + len(block)] = block
            start += len(block)
    return quantized, scale


def quantize_blocks(
    steps: Sequence[Any], bits: int = 8
) -> tuple[Iterator[Iterator[npt.NDArray[np.int16]]], float]:
    """Round T time steps as :func:`quantize` does, which reads each step twice.

    Return the blocks of rows of each step, int16, and the scale.
    """
    bits = operator.index(bits)
    if not 2 <= bits <= 16:
        raise ValueError(f"bits must be 2 to 16, not {bits}")
    greatest = 0.0
    for t in range(len(steps)):
        step = as_rows(steps[t])
        if len(step.shape) != 2 or step.dtype.kind not in "fiu":
            raise ValueError(f"timestep {t} must be finite numbers in two dimensions")
        if step.shape != np.shape(steps[0]):
            shape = np.shape(steps[0])
            raise ValueError(f"timestep {t} must have the shape {shape}, not {step.shape}")
        for block in split_blocks(step):
            if block.size:
                lowest, highest = float(block.min()), float(block.max())
                if not (math.isfinite(lowest) and math.isfinite(highest)):
                    raise ValueError(f"timestep {t} must be finite numbers in two dimensions")
                greatest = max(greatest, highest, -lowest)
    limit = 2 ** (bits - 1) - 1
    with np.errstate(over="ignore"):
        scale = np.float32(greatest / limit)
    if not np.isfinite(scale) or (greatest and scale < np.finfo(np.float32).tiny):
        raise ValueError(f"float32 cannot represent the scale for values of up to {greatest}")
    factor = float(scale or np.float32(1))

    def rounded(step: Any) -> Iterator[npt.NDArray[np.int16]]:
        for block in split_blocks(as_rows(step)):
            wide = np.rint(np.asarray(block, np.float64) / factor)
            yield np.clip(wide, -limit, limit).astype(np.int16)

    return (rounded(steps[t]) for t in range(len(steps))), factor


def _subscriptable(steps: object) -> bool:
    return hasattr(steps, "__getitem__") and hasattr(steps, "__len__")


def _factor(scale: float) -> float:
    try:
        with np.errstate(over="ignore"):
            factor = float(np.float32(scale))
    except OverflowError:
        factor = math.inf
    if not math.isfinite(factor) or not factor:
        raise ValueError(f"scale must be finite and not 0 in float32, not {scale}")
    return factor


def _choose_group(n_words: int, group: int | None, dialect: str) -> int:
    """Return the number of words in a group."""
    if group is None:
        if dialect == "stream":
            return min(_GROUP, n_words)
        divisors = {d for i in range(1, math.isqrt(n_words) + 1) for d in (i, n_words // i)}
        fitting = sorted(d for d in divisors if not n_words % d)
        return min(fitting, key=lambda d: abs(math.log(d / _GROUP)))
    if not 1 <= group <= n_words:
        raise ValueError(f"group must be 1 to {n_words}, the number of words, not {group}")
    if dialect == "blocks" and n_words % group:
        raise ValueError(
            f"group must divide {n_words}, the number of words, not be {group}; "
            "layout='stream' takes any group"
        )
    return group


def _fit_models(residuals: Residuals, progress: Progress | None) -> list[EntropyModel]:
    """Return the entropy model of each time step."""
    models = {}
    for residual in residuals:
        symbols, counts = count_symbols(residual.blocks())
        if symbols.size > TOTAL:
            raise ValueError(
                f"timestep {residual.t} must have at most {TOTAL} different symbols, "
                f"not {symbols.size}; quantize to fewer bits"
            )
        models[residual.t] = fit_model(symbols, counts)
        if progress is not None:
            progress("fitting timesteps", len(models), residuals.n_steps)
    return [models[t] for t in range(residuals.n_steps)]


def _encode(
    model: Encoder, parts: Iterable[npt.NDArray[np.int16]], state: int = LOWEST
) -> tuple[npt.NDArray[np.uint16], int]:
    """Return the words of a group and its first state; the last part of the group comes first."""
    found = []
    for part in parts:
        words, state = model.encode(part.reshape(-1), state)
        found.append(words)
    return np.concatenate(found[::-1]) if len(found) > 1 else found[0], state


def _even(words: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    return np.append(words, np.uint16(0)) if words.size % 2 else words


def _write_blocks(
    out: BinaryIO,
    residuals: Residuals,
    models: Sequence[EntropyModel],
    *,
    group: int,
    progress: Progress | None,
) -> int:
    """Write everything after the header; return the address of the first chunk."""
    n_chunks = residuals.n_words // group
    heads = [_even(store_model(model)) for model in models]
    sizes = [head.size // 2 + n_chunks for head in heads]
    first = HEADER_NBYTES // 4 + residuals.n_steps
    addresses = (np.cumsum([first, *sizes])).tolist()
    end = addresses[-1]
    out.seek(HEADER_NBYTES)
    out.write(np.array(addresses[:-1], "<u4").tobytes())
    for done, residual in enumerate(residuals, 1):
        encoder, table = Encoder(models[residual.t]), np.empty(n_chunks, np.int64)
        out.seek(4 * end)
        for number, parts in residual.groups(group):
            words, state = _encode(encoder, parts)
            table[number] = end
            state_words = np.array([state >> 16, state & 0xFFFF], np.uint16)
            chunk = _even(np.concatenate((state_words, words))).astype("<u2", copy=False)
            out.write(chunk.tobytes())
            end += chunk.size // 2
        _check_size(end)
        out.seek(4 * addresses[residual.t])
        head = heads[residual.t]
        out.write(head.astype("<u2").tobytes() + table.astype("<u4").tobytes())
        if progress is not None:
            progress("encoding timesteps", done, residuals.n_steps)
    return int(addresses[-1])


def _write_stream(
    out: BinaryIO,
    residuals: Residuals,
    models: Sequence[EntropyModel],
    *,
    group: int,
    progress: Progress | None,
    spool: BinaryIO,
) -> int:
    """Write everything after the header; return the address of the jump table."""
    head = _even(np.concatenate([store_model(model) for model in models]))
    address = HEADER_NBYTES // 4 + head.size // 2
    n_groups = -(-residuals.n_words // group)
    rows = np.empty((residuals.n_steps, n_groups, 2), np.int64)
    state, n_following = LOWEST, 0
    pieces: list[int] = []
    # The encoder runs backwards through the whole file: what it writes last is read first.
    waiting: list[npt.NDArray[np.uint16]] = []
    most_waiting = min(max(AT_ONCE // (group * residuals.dim), 1), _MOST_WAITING)
    for done, residual in enumerate(reversed(residuals), 1):
        encoder = Encoder(models[residual.t])
        for number, parts in residual.groups(group, backwards=True):
            words, state = _encode(encoder, parts, state)
            waiting.append(words)
            n_following += words.size
            rows[residual.t, number] = n_following, state
            if len(waiting) == most_waiting or number == 0:
                piece = np.concatenate(waiting[::-1]).astype("<u2", copy=False)
                pieces.append(piece.nbytes)
                spool.write(piece.tobytes())
                waiting = []
        _check_size(address + rows.size + n_following // 2)
        if progress is not None:
            progress("encoding timesteps", done, residuals.n_steps)
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
        raise ValueError(f"a DWE file must stay below 16 GiB, not reach {4 * n_words} bytes")
