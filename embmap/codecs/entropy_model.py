"""Entropy models: symbols and their 12-bit frequencies, which sum to 4096.

A model is stored in halfwords of 16 bits: the number of symbols, the symbols, and all frequencies
except the last, packed as one string of bits. Parsing checks everything that the coder relies on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "TOTAL",
    "EntropyModel",
    "count_symbols",
    "fit_model",
    "model_size",
    "parse_model",
    "store_model",
]

TOTAL = 4096


@dataclass(frozen=True)
class EntropyModel:
    """The frequency of each symbol.

    Attributes
    ----------
    symbols : numpy.ndarray
        Shape (n,), int16, all different.
    frequencies : numpy.ndarray
        Shape (n,), int64, positive, with the sum 4096.
    """

    symbols: npt.NDArray[np.int16]
    frequencies: npt.NDArray[np.int64]


def model_size(n: int) -> int:
    """Return the number of halfwords in a model of `n` symbols."""
    return 1 + n + 3 * n // 4


def parse_model(halfwords: npt.NDArray[np.uint16]) -> EntropyModel:
    """Return the model in `model_size(n)` halfwords; raise ValueError if it is impossible."""
    n = int(halfwords[0])
    symbols = halfwords[1 : 1 + n].astype(np.uint16).view(np.int16)
    frequencies = np.append(_unpack(halfwords[1 + n :], n - 1), 0)
    stored = int(frequencies.sum())
    if not frequencies[:-1].all():
        raise ValueError("a frequency is zero")
    if stored >= TOTAL:
        raise ValueError(f"the frequencies sum to {stored} without the last one")
    if np.unique(symbols).size < n:
        raise ValueError("a symbol occurs twice")
    frequencies[-1] = TOTAL - stored
    return EntropyModel(symbols, frequencies)


def store_model(model: EntropyModel) -> npt.NDArray[np.uint16]:
    """Return a model of at least two symbols as halfwords, the inverse of :func:`parse_model`."""
    head = np.array([model.symbols.size], np.uint16)
    symbols = model.symbols.view(np.uint16)
    return np.concatenate((head, symbols, _pack(model.frequencies[:-1])))


# A frequency is three hexadecimal digits, a halfword is four. Zeros on the left fill the first one.


def _unpack(halfwords: npt.NDArray[np.uint16], n: int) -> npt.NDArray[np.int64]:
    digits = (halfwords.astype(np.int64)[:, np.newaxis] >> np.array([12, 8, 4, 0])) & 15
    values: npt.NDArray[np.int64] = digits.reshape(-1)[n % 4 :].reshape(n, 3) @ [256, 16, 1]
    return values


def _pack(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    digits = (values[:, np.newaxis] >> np.array([8, 4, 0])) & 15
    filled = np.concatenate((np.zeros(values.size % 4, np.int64), digits.reshape(-1)))
    halfwords: npt.NDArray[np.int64] = filled.reshape(-1, 4) @ [4096, 256, 16, 1]
    return halfwords.astype(np.uint16)


def fit_model(symbols: npt.NDArray[np.int16], counts: npt.NDArray[np.int64]) -> EntropyModel:
    """Choose the frequencies that store symbols, given their counts, in the fewest bits.

    Every symbol gets one unit and its share of the others, rounded down. The remaining units go to
    the symbols that gain most. Then single units move to where they gain more than they cost. The
    symbols of the model are ordered by falling frequency.
    """
    n = symbols.size
    if n == 1:  # the coder needs two
        pair = np.append(symbols, (symbols.astype(np.int64) + 1).astype(np.int16))
        return EntropyModel(pair, np.array([TOTAL - 1, 1]))
    total = int(counts.sum())
    shares = [1 + count * (TOTAL - n) // total for count in counts.tolist()]
    gains = [_gain(count, share) for count, share in zip(counts.tolist(), shares, strict=True)]
    order = np.lexsort((symbols, -np.array(gains)))
    frequencies = np.array(shares)[order]
    frequencies[: TOTAL - int(frequencies.sum())] += 1
    _balance(counts[order], frequencies)
    symbols = symbols[order]
    order = np.lexsort((symbols, -frequencies))
    return EntropyModel(symbols[order], frequencies[order])


def _balance(counts: npt.NDArray[np.int64], frequencies: npt.NDArray[np.int64]) -> None:
    """Move units of `frequencies`, in place, from where they cost least to where they gain most."""
    pairs = list(zip(counts.tolist(), frequencies.tolist(), strict=True))
    gains = np.array([_gain(*pair) for pair in pairs])
    losses = np.array([_loss(*pair) for pair in pairs])
    while True:
        buyer = gains.size - 1 - int(gains[::-1].argmax())  # the last of the best
        seller = int(losses.argmin())  # the first of the best
        if buyer == seller or gains[buyer] <= losses[seller]:
            return
        frequencies[buyer] += 1
        frequencies[seller] -= 1
        for i in (buyer, seller):
            gains[i] = _gain(counts[i].item(), frequencies[i].item())
            losses[i] = _loss(counts[i].item(), frequencies[i].item())


# math.log2, because the last bit of numpy's depends on the processor and decides between ties.


def _gain(count: int, frequency: int) -> float:
    """Return the bits that one more unit would save."""
    if frequency == TOTAL - 1:
        return -math.inf
    return count * math.log2((frequency + 1) / frequency)


def _loss(count: int, frequency: int) -> float:
    """Return the bits that one unit fewer would cost."""
    return math.inf if frequency == 1 else count * math.log2(frequency / (frequency - 1))


def count_symbols(
    blocks: Iterable[npt.NDArray[Any]],
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """Return the different symbols in int16 blocks, rising, and the count of each."""
    counts = np.zeros(1 << 16, np.int64)
    for block in blocks:
        counts += np.bincount(block.reshape(-1).view(np.uint16), minlength=1 << 16)
    counts = np.roll(counts, 1 << 15)  # negative symbols first
    symbols = np.flatnonzero(counts)
    return (symbols - (1 << 15)).astype(np.int16), counts[symbols]
