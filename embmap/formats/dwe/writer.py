"""Writing DWE files in both dialects, byte for byte as the original builder does.

A first pass over the time steps fits their entropy models and finds values that cannot be written;
a second pass encodes them. Both process a few groups of words at a time, so that memory stays
bounded. The file gets its name only once it is complete.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Iterable, Sequence
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
from embmap.formats.dwe.residuals import AT_ONCE, Residuals, can_reread, spool_steps
from embmap.io.atomic_write import replacing, spool_beside
from embmap.progress import Progress
from embmap.vectors.blocks import Blocks
from embmap.vectors.rounding import check_scale

__all__ = ["write", "write_steps"]

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
    return write_steps(
        path, quantized, scale=check_scale(scale), group=group, layout=layout, progress=progress
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
    if layout not in DIALECTS:
        raise ValueError(f"layout must be one of {', '.join(DIALECTS)}, not {layout!r}")
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
        size = out.seek(0, os.SEEK_END) // 4
        _check_size(size)
        out.seek(0)
        out.write(struct.pack("<4s8If", MAGIC, 1, 0, size, address, *shape, scale))
    return Path(os.fsdecode(path))


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
    """Return the halfwords of a group and its first state; the last part comes first."""
    found = []
    for part in parts:
        halfwords, state = model.encode(part.reshape(-1), state)
        found.append(halfwords)
    return np.concatenate(found[::-1]) if len(found) > 1 else found[0], state


def _even(halfwords: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    return np.append(halfwords, np.uint16(0)) if halfwords.size % 2 else halfwords


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
            halfwords, state = _encode(encoder, parts)
            table[number] = end
            head = np.array([state >> 16, state & 0xFFFF], np.uint16)
            chunk = _even(np.concatenate((head, halfwords))).astype("<u2", copy=False)
            out.write(chunk.tobytes())
            end += chunk.size // 2
        _check_size(end)
        out.seek(4 * addresses[residual.t])
        model = heads[residual.t]
        out.write(model.astype("<u2").tobytes() + table.astype("<u4").tobytes())
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
            halfwords, state = _encode(encoder, parts, state)
            waiting.append(halfwords)
            n_following += halfwords.size
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


def _check_size(end: int) -> None:
    """Refuse a file that ends at an address, in multiples of four bytes, beyond 32 bits."""
    if end >= 2**32:
        raise ValueError(f"a DWE file must stay below 16 GiB, not reach {4 * end} bytes")
