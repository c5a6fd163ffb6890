"""Asymmetric numeral systems: a state of 32 bits, halfwords of 16, frequencies of 12.

A state encodes symbols. Decoding a symbol divides the state by the symbol's share; a state that has
become too low then takes in the next halfword. Independent groups of symbols are decoded together:
numpy decodes one position of all groups at a time, compiled loops decode four groups at a time.
No halfword is read beyond the last; the position of a group that ran out of halfwords shows it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from embmap.codecs import kernels
from embmap.codecs.entropy_model import TOTAL, EntropyModel
from embmap.threads import in_parallel, n_threads

__all__ = ["LOWEST", "DecodeTables", "Encoder", "decode", "most_symbols"]

LOWEST = 0x10000
"""The lowest state between symbols; a coder starts with it, and a decoder ends with it."""

_PARALLEL = 200_000  # symbols from which a second thread pays off
_POSITIONS = 256  # positions to decode before looking up their symbols


def most_symbols(n_halfwords: int) -> int:
    """Return the most symbols that fit into some halfwords."""
    # A symbol divides the state by at least 4096/4095.
    return 45550 * (n_halfwords + 1) - 1


class DecodeTables(NamedTuple):
    """The meaning of the low 12 bits of a state, for some models.

    Attributes
    ----------
    slots : numpy.ndarray
        Shape (models, 4096), uint16: the number of the symbol for each value of the bits.
    entries : numpy.ndarray
        Shape (models, symbols), uint64: the symbol in bits 0 to 15, its frequency in bits 16 to 31,
        and the first of its values from bit 32 on.
    """

    slots: npt.NDArray[np.uint16]
    entries: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls, n_models: int, n_symbols: int) -> DecodeTables:
        """Return tables to fill, for models of at most `n_symbols` symbols."""
        slots = np.empty((n_models, TOTAL), np.uint16)
        return cls(slots, np.empty((n_models, n_symbols), np.uint64))

    def fill(self, i: int, model: EntropyModel) -> None:
        """Fill the i-th tables from a model."""
        n, frequencies = model.symbols.size, model.frequencies
        below = frequencies.cumsum() - frequencies
        self.slots[i] = np.repeat(np.arange(n, dtype=np.uint16), frequencies)
        entries = model.symbols.view(np.uint16).astype(np.int64) | frequencies << 16 | below << 32
        self.entries[i, :n] = entries.view(np.uint64)


def decode(
    halfwords: npt.NDArray[np.uint16],
    positions: npt.NDArray[np.int64],
    states: npt.NDArray[np.uint32],
    tables: DecodeTables,
    which: npt.NDArray[np.int64],
    out: npt.NDArray[np.int16],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Decode groups of symbols into contiguous `out` (groups, n); return positions and states.

    `positions` are the halfwords that the groups take in first, `states` their first states,
    `which` the numbers of their models. A returned position beyond the halfwords means that the
    group ran out of them; its symbols are undefined.
    """
    positions, states = positions.copy(), states.copy()
    if not halfwords.size:
        halfwords = np.zeros(
            1, np.uint16
        )  # never used for a symbol: the position shows that it was taken in
        halfwords.flags.writeable = False
    kernel = kernels.find(
        "decode_ans", halfwords, positions, states, *tables, which, out, holds_lock=True
    )
    if kernel is None:
        _decode_in_step(halfwords, positions, states, tables, which, out)
        return positions, states

    def work(lanes: slice) -> None:
        part = positions[lanes], states[lanes]
        kernel(halfwords, *part, *tables, which[lanes], out[lanes])

    pieces = n_threads() if out.size >= _PARALLEL else 1
    share = -(-positions.size // (4 * pieces)) * 4  # a multiple of four
    in_parallel(work, [slice(i, i + share) for i in range(0, positions.size, max(share, 1))])
    return positions, states


@kernels.counted
def _decode_in_step(
    halfwords: npt.NDArray[np.uint16],
    positions: npt.NDArray[np.int64],
    states: npt.NDArray[np.uint32],
    tables: DecodeTables,
    which: npt.NDArray[np.int64],
    out: npt.NDArray[np.int16],
) -> None:
    """Decode the positions one after the other, each for all groups."""
    used, which = np.unique(which, return_inverse=True)
    slots = tables.slots[used].reshape(-1)
    entries = tables.entries[used]
    symbols = entries.astype(np.uint16).view(np.int16).reshape(-1)
    frequencies = ((entries >> np.uint64(16)).astype(np.int64) & 0xFFFF).reshape(-1)
    # Values and symbols are numbered across all models.
    below = ((entries >> np.uint64(32)).astype(np.int64) + _column(used.size, TOTAL)).reshape(-1)
    first_slot, first_entry = which * TOTAL, which * entries.shape[1]
    state = states.astype(np.int64)
    # One shape and type for all operands, results in place: the cost is in the calls of numpy.
    low = np.empty(state.size, np.bool_)
    value = np.empty(state.size, np.int64)
    mask, twelve, lowest = (np.full(state.size, each) for each in (TOTAL - 1, 12, LOWEST))
    numbers = np.empty((_POSITIONS, state.size), np.int64)
    for begin in range(0, out.shape[1], _POSITIONS):
        block = numbers[: out.shape[1] - begin]
        for number in block:
            np.bitwise_and(state, mask, value)
            np.add(value, first_slot, value)
            np.add(slots[value], first_entry, number)
            np.right_shift(state, twelve, state)
            np.multiply(state, frequencies[number], state)
            np.add(state, value, state)
            np.subtract(state, below[number], state)
            refilled = np.less(state, lowest, low).nonzero()[0]
            at = positions[refilled]
            state[refilled] = state[refilled] << 16 | halfwords.take(at, mode="clip")
            positions[refilled] = at + 1
        out[:, begin : begin + len(block)] = symbols[block.T]
        if (positions > halfwords.size).all():  # all further symbols are undefined
            break
    states[:] = state


def _column(n: int, step: int) -> npt.NDArray[np.int64]:
    return np.arange(n)[:, np.newaxis] * step


class Encoder:
    """Encodes symbols with a model that contains all of them."""

    def __init__(self, model: EntropyModel) -> None:
        below = model.frequencies.cumsum() - model.frequencies
        self._codes = np.zeros(1 << 16, np.uint32)
        self._codes[model.symbols.view(np.uint16)] = model.frequencies << 16 | below

    def encode(
        self, symbols: npt.NDArray[np.int16], state: int = LOWEST
    ) -> tuple[npt.NDArray[np.uint16], int]:
        """Return the halfwords (uint16, in reading order) and the new state for some int16 symbols.

        Encoding runs backwards: these symbols precede all that the state has encoded already.
        """
        plain = symbols.view(np.uint16)
        out = np.empty(symbols.size, np.uint16)  # a symbol pushes out at most one halfword
        kernel = kernels.find("encode_ans", plain, self._codes, np.uint32(state), out)
        if kernel is None:
            return self._encode(plain, state)
        first, state = kernel(plain, self._codes, np.uint32(state), out)
        return out[first:], int(state)

    @kernels.counted
    def _encode(
        self, plain: npt.NDArray[np.uint16], state: int
    ) -> tuple[npt.NDArray[np.uint16], int]:
        halfwords = []
        for code in self._codes[plain[::-1]].tolist():
            frequency = code >> 16
            if state >= frequency << 20:
                halfwords.append(state & 0xFFFF)
                state >>= 16
            quotient, rest = divmod(state, frequency)
            state = (quotient << 12) + rest + (code & 0xFFFF)
        return np.array(halfwords[::-1], np.uint16), state
