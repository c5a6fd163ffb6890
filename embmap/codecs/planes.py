"""Byte planes: float32 numbers whose bytes are looked up in a dictionary for each of four planes.

A payload is the number of values, the bits of a code in each plane, and for each plane, the least
significant byte first, its dictionary and the codes, packed with the most significant bit first.
Any range of values can be decoded without those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Planes", "PlanesEncoder", "check_size", "decode_planes", "parse_planes"]


@dataclass(frozen=True)
class Planes:
    """Where the parts of a payload are.

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
    """Refuse a payload that cannot hold some number of values, from its first bytes alone."""
    if len(head) < 4:
        raise ValueError("the payload ends in its head")
    if int.from_bytes(head, "little") != n:
        raise ValueError(f"it holds {int.from_bytes(head, 'little')} values, not {n}")
    least = 8 + 4 * (2 + -(-n // 8) + bool(n))
    if nbytes < least:
        raise ValueError(f"{n} values take {least} bytes at least, not {nbytes}")


def parse_planes(payload: npt.NDArray[np.uint8]) -> Planes:
    """Parse the head of a payload."""
    size = payload.size
    if size < 8:
        raise ValueError("the payload ends in its head")
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
    payload: npt.NDArray[np.uint8], planes: Planes, start: int, stop: int
) -> npt.NDArray[np.float32]:
    """Decode a range of values."""
    values = np.empty((stop - start, 4), np.uint8)
    for plane, width in enumerate(planes.bits):
        places = np.arange(start, stop, dtype=np.int64) * width
        first = planes.codes[plane] + (places >> 3)
        # A code lies in two bytes at the most; behind the last one any byte will do.
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
    """Encodes values in byte planes, to the bit; a first pass over them finds the dictionaries."""

    def __init__(self) -> None:
        self._n = 0
        self._seen = np.zeros((4, 256), np.bool_)

    def see(self, values: npt.NDArray[np.float32]) -> None:
        """Take notice of some of the values."""
        self._n += values.size
        for seen, letters in zip(self._seen, _letters(values).T, strict=True):
            seen |= np.bincount(letters, minlength=256) > 0

    def encode(self, again: Callable[[], Iterable[npt.NDArray[np.float32]]]) -> Iterator[bytes]:
        """Return the payload of all values seen."""
        if self._n >= 2**32:
            raise ValueError(f"a chunk of {self._n} values; fewer than {2**32} are possible")
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
                # Codes of eight bits are packed as they are.
                packed = codes.take(letters) if width == 8 else np.packbits(bits.take(letters, 0))
                yield packed.tobytes()


def _letters(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the bytes of values, the least significant first: shape (n, 4)."""
    return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8).reshape(-1, 4)
