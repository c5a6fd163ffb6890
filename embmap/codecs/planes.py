"""Byte planes: float32 numbers as four planes of bytes, each with a dictionary of its own.

A payload contains the number of values, the bits of a code in each plane, and then for each plane,
from the least significant byte on, the dictionary and the codes, packed from the most significant
bit on. Any range of values can be decoded without the values before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Planes", "PlanesEncoder", "check_size", "decode_planes", "parse_planes"]


@dataclass(frozen=True)
class Planes:
    """Offsets of the parts of a payload.

    Attributes
    ----------
    n : int
        Number of values.
    bits : tuple of int
        Bits of a code in each plane.
    dictionaries : tuple of (int, int)
        Offset and size of each plane's dictionary, in bytes from the start of the payload.
    codes : tuple of int
        Offset of each plane's codes.
    """

    n: int
    bits: tuple[int, ...]
    dictionaries: tuple[tuple[int, int], ...]
    codes: tuple[int, ...]


def check_size(head: bytes, nbytes: int, n: int) -> None:
    """Raise ValueError if a payload, judged by its first 4 bytes, cannot hold `n` values."""
    if len(head) < 4:
        raise ValueError("the payload ends inside its head")
    if int.from_bytes(head, "little") != n:
        raise ValueError(f"it holds {int.from_bytes(head, 'little')} values, not {n}")
    least = 8 + 4 * (2 + -(-n // 8) + bool(n))
    if nbytes < least:
        raise ValueError(f"{n} values take at least {least} bytes, not {nbytes}")


def parse_planes(payload: npt.NDArray[np.uint8]) -> Planes:
    """Return the parts of a payload; raise ValueError unless they fill it exactly."""
    size = payload.size
    if size < 8:
        raise ValueError("the payload ends inside its head")
    head = payload[:8].tobytes()
    n, bits = int.from_bytes(head[:4], "little"), tuple(head[4:8])
    position = 8
    dictionaries, codes = [], []
    for plane, width in enumerate(bits):
        if not 1 <= width <= 8 or position + 2 > size:
            raise ValueError(f"plane {plane} has codes of {width} bits or is cut off")
        entries = int.from_bytes(payload[position : position + 2].tobytes(), "little")
        if entries > 256 or (n and not entries):
            raise ValueError(f"plane {plane} has a dictionary of {entries} bytes")
        dictionaries.append((position + 2, entries))
        codes.append(position + 2 + entries)
        position = codes[-1] + -(-n * width // 8)
    if position != size:
        raise ValueError(f"the planes take {position} bytes, the payload has {size}")
    return Planes(n, bits, tuple(dictionaries), tuple(codes))


def decode_planes(
    payload: npt.NDArray[np.uint8], planes: Planes, numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return the values with some numbers: (n,) float32, bit for bit as they were encoded."""
    values = np.empty((numbers.size, 4), np.uint8)
    for plane, width in enumerate(planes.bits):
        places = numbers * width
        first = planes.codes[plane] + (places >> 3)
        # A code lies in at most two bytes. After the last byte of the payload any byte will do.
        window = payload[first].astype(np.uint16) << np.uint16(8)
        window |= payload[np.minimum(first + 1, payload.size - 1)]
        shift = (16 - width - (places & 7)).astype(np.uint16)
        codes = (window >> shift) & np.uint16((1 << width) - 1)
        offset, entries = planes.dictionaries[plane]
        if codes.size and int(codes.max()) >= entries:
            raise ValueError(f"a code of plane {plane} is not in its dictionary")
        values[:, plane] = payload[offset : offset + entries][codes]
    return values.view("<f4").reshape(-1)


class PlanesEncoder:
    """Encodes values in byte planes without loss; a first pass collects the dictionaries."""

    def __init__(self) -> None:
        self._n = 0
        self._seen = np.zeros((4, 256), np.bool_)

    def see(self, values: npt.NDArray[np.float32]) -> None:
        """Add the bytes of some values to the dictionaries."""
        self._n += values.size
        for seen, letters in zip(self._seen, _letters(values).T, strict=True):
            seen |= np.bincount(letters, minlength=256) > 0

    def encode(self, again: Callable[[], Iterable[npt.NDArray[np.float32]]]) -> Iterator[bytes]:
        """Yield the payload of all values seen, in parts.

        `again` is called for each plane and returns the same values from the start, in pieces of a
        multiple of 8 values, except for the last piece.
        """
        if self._n >= 2**32:
            raise ValueError(f"a chunk must have fewer than {2**32} values, not {self._n}")
        dictionaries = [np.flatnonzero(seen).astype(np.uint8) for seen in self._seen]
        widths = [max(1, (max(each.size, 1) - 1).bit_length()) for each in dictionaries]
        yield self._n.to_bytes(4, "little") + bytes(widths)
        for plane, (dictionary, width) in enumerate(zip(dictionaries, widths, strict=True)):
            yield dictionary.size.to_bytes(2, "little") + dictionary.tobytes()
            codes = np.zeros(256, np.uint8)
            codes[dictionary] = np.arange(dictionary.size)
            shifts = np.arange(width - 1, -1, -1, dtype=np.uint8)
            bits = (codes[:, np.newaxis] >> shifts) & np.uint8(1)
            for values in again():
                letters = _letters(values)[:, plane]
                # Codes of eight bits need no packing.
                packed = codes.take(letters) if width == 8 else np.packbits(bits.take(letters, 0))
                yield packed.tobytes()


def _letters(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the bytes of values, the least significant first: (n, 4) uint8."""
    return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8).reshape(-1, 4)
