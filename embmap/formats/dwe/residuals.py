"""The values and differences that a DWE file stores for each time step, a few words at a time.

Arrays and matrices are read as often as needed; steps that come one after the other are first
written to a temporary file. Blocks and parts of groups keep memory bounded for any number of words
and any size of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.difference_tree import differences, preorder
from embmap.vectors.blocks import split_blocks
from embmap.vectors.matrix import Matrix

__all__ = ["AT_ONCE", "Residuals", "as_rows", "can_reread", "spool_steps"]

AT_ONCE = 1 << 19
"""Number of symbols that are processed at once."""
_INT16 = np.iinfo(np.int16)


def can_reread(steps: object) -> bool:
    """Whether the rows of every step can be read repeatedly: an array, or a list of matrices."""
    if not isinstance(steps, list | tuple):
        return isinstance(steps, np.ndarray)
    return bool(steps) and all(isinstance(step, np.ndarray | Matrix) for step in steps)


def as_rows(step: Any) -> Any:
    """Return a time step as an object with a shape and rows; array-likes become arrays."""
    return step if isinstance(step, np.ndarray | Matrix | _SpooledStep) else np.asarray(step)


class _SpooledStep:
    """A time step in a temporary file."""

    dtype = np.dtype(np.int16)

    def __init__(self, spool: BinaryIO, offset: int, shape: tuple[int, int]) -> None:
        self._spool = spool
        self._offset = offset
        self.shape = shape

    def __getitem__(self, rows: slice) -> npt.NDArray[np.int16]:
        start, stop, _ = rows.indices(self.shape[0])
        row_nbytes = self.shape[1] * self.dtype.itemsize
        self._spool.seek(self._offset + start * row_nbytes)
        data = self._spool.read((stop - start) * row_nbytes)
        return np.frombuffer(data, self.dtype).reshape(-1, self.shape[1])


def spool_steps(steps: Iterable[Any], spool: BinaryIO) -> list[_SpooledStep]:
    """Write time steps, arrays or iterables of blocks of rows, to a temporary file."""
    written: list[_SpooledStep] = []
    for t, step in enumerate(steps):
        offset, rows, columns = spool.tell(), 0, None
        for block in split_blocks(step) if getattr(step, "ndim", 2) == 2 else (step,):
            symbols = _symbols(block, t)
            columns = symbols.shape[1] if columns is None else columns
            if symbols.shape[1] != columns:
                width = symbols.shape[1]
                raise ValueError(
                    f"timestep {t}: row {rows} must have {columns} columns, not {width}"
                )
            rows += len(symbols)
            spool.write(np.ascontiguousarray(symbols).tobytes())
        written.append(_SpooledStep(spool, offset, (rows, columns or 0)))
        _check_shape(t, written[t].shape, written[0].shape)
    return written


def _check_shape(t: int, shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    if shape != first:
        raise ValueError(f"timestep {t} must have the shape {first}, not {shape}")


def _symbols(rows: Any, t: int) -> npt.NDArray[np.int16]:
    """Return rows of a time step as int16; refuse rows that int16 cannot represent."""
    if rows.ndim != 2 or rows.dtype.kind not in "iu":
        raise ValueError(
            f"timestep {t} must be integers in two dimensions, not {rows.dtype} in {rows.ndim}; "
            "embmap.dwe.quantize makes them"
        )
    if rows.dtype != np.int16 and rows.size:
        for value in (int(rows.min()), int(rows.max())):
            if not _INT16.min <= value <= _INT16.max:
                raise ValueError(f"timestep {t} has the value {value}, which int16 cannot store")
    return cast("npt.NDArray[np.int16]", rows.astype(np.int16, copy=False))


class Residual:
    """The symbols of one time step: its values, or their differences from two other steps.

    `steps` are the step with its number, or the steps before, at and after `t` with their numbers.
    Differences beyond 16 bits are an error unless they may wrap.
    """

    def __init__(self, t: int, steps: Sequence[tuple[int, Any]], wrap: bool = False) -> None:
        self.t = t
        self._wrap = wrap
        self._steps = steps
        self._shape: tuple[int, int] = steps[0][1].shape

    def __getitem__(self, rows: slice) -> npt.NDArray[np.int16]:
        values = [_symbols(step[rows], t) for t, step in self._steps]
        if len(values) == 1:
            return values[0]
        try:
            return differences(*values, wrap=self._wrap)
        except ValueError as error:
            raise ValueError(f"timestep {self.t}: {error}") from None

    def blocks(self) -> Iterator[npt.NDArray[np.int16]]:
        """Yield the symbols of a few words at a time: (n, K) int16."""
        n_words, dim = self._shape
        at_once = max(AT_ONCE // dim, 1)
        for start in range(0, n_words, at_once):
            yield self[start : start + at_once]

    def groups(
        self, group: int, *, backwards: bool = False
    ) -> Iterator[tuple[int, Iterable[npt.NDArray[np.int16]]]]:
        """Yield each group as its number and its symbols, in parts of (n, K) int16.

        The last part of a group comes first, because the encoder runs backwards. With `backwards`,
        the last group comes first, too.
        """
        n_words, dim = self._shape
        at_once = max(AT_ONCE // dim, 1)
        turn = cast(Callable[[range], Iterable[int]], reversed if backwards else iter)
        if group > at_once:
            for first in turn(range(0, n_words, group)):
                end = min(first + group, n_words)
                starts = reversed(range(first, end, at_once))
                yield first // group, (self[s : min(s + at_once, end)] for s in starts)
            return
        at_once -= at_once % group
        for first in turn(range(0, n_words, at_once)):
            symbols = self[first : first + at_once]
            for start in turn(range(0, len(symbols), group)):
                yield (first + start) // group, (symbols[start : start + group],)


class Residuals:
    """The symbols of all time steps: two steps of values, and differences for the others."""

    def __init__(self, steps: Sequence[Any], wrap: bool = False) -> None:
        self._steps = steps
        self._wrap = wrap
        self.n_steps = len(steps)
        if self.n_steps < 2:
            raise ValueError(f"a DWE file needs at least 2 time steps, not {self.n_steps}")
        shape = np.shape(steps[0])
        if len(shape) != 2 or 0 in shape or max(*shape, self.n_steps) >= 2**32:
            raise ValueError(f"a DWE file cannot store time steps of shape {shape}")
        self.n_words, self.dim = shape
        self._stored: list[tuple[int, ...]] = [(0,), (self.n_steps - 1,), *preorder(self.n_steps)]

    def __iter__(self) -> Iterator[Residual]:
        """Return the symbols of each step in the order in which they are stored."""
        return map(self._residual, self._stored)

    def __reversed__(self) -> Iterator[Residual]:
        """Return the symbols of each step, the last one first."""
        return map(self._residual, reversed(self._stored))

    def _residual(self, steps: Sequence[int]) -> Residual:
        numbered = [(t, as_rows(self._steps[t])) for t in steps]
        for t, step in numbered:
            _check_shape(t, step.shape, (self.n_words, self.dim))
        return Residual(steps[len(steps) // 2], numbered, self._wrap)
