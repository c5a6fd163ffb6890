"""CRC-32 of bytes whose parts are read apart, perhaps by several threads."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["combine_crc32"]

# Polynomials over two elements as zlib stores them: bit 31 is the constant, bit 0 is x to the 31.
_ONE = 1 << 31
_CRC = 0xEDB88320


def combine_crc32(first: int, second: int, nbytes: int) -> int:
    """Return the CRC-32 of two parts from the CRC-32 of each; the second has `nbytes` bytes."""
    return _multiply(first, _power(nbytes)) ^ second


@lru_cache(maxsize=64)
def _power(nbytes: int) -> int:
    """Return the polynomial by which appending some bytes multiplies: x to the number of bits."""
    power, square = _ONE, _ONE >> 8
    while nbytes:
        if nbytes & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        nbytes >>= 1
    return power


def _multiply(a: int, b: int) -> int:
    """Return the product of two polynomials modulo the polynomial of CRC-32."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_CRC if b & 1 else 0)
    return product
