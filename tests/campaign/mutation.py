"""Ways to damage a file whose structure is known: numbers, sections, bits, splices, lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Anatomy", "mutated", "with_number"]

NOT_UTF8 = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\0", b"\xe2\x82"]


@dataclass(frozen=True)
class Anatomy:
    """Where the parts of a valid file are."""

    data: bytes
    fields: Sequence[tuple[int, int]]  # offset and size of each number
    sections: Sequence[tuple[int, int]]  # start and end of what could be moved, lost or repeated
    texts: Sequence[tuple[int, int]] = ()  # start and end of words and names


def with_number(data: bytes, offset: int, nbytes: int, value: int) -> bytes:
    """The bytes with another number, cut to its size, in one place."""
    number = (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")
    return data[:offset] + number + data[offset + nbytes :]


def interesting(rng: random.Random, old: int, nbytes: int, size: int) -> int:
    """A number that could be wrong in a way that a program forgets."""
    most = (1 << 8 * nbytes) - 1
    return rng.choice(
        [
            *(0, 1, 2, 3, 7, most, most - 1, most >> 1, (most >> 1) + 1, -8, 255, 65536),
            *(old + 1, old - 1, 2 * old, old // 2, old + 4, old - 4, -old),
            *(size, size - 1, size + 1, size - old, size // 4),
            1 << rng.randrange(8 * nbytes),
            (1 << rng.randrange(8 * nbytes)) - 1,
            rng.getrandbits(8 * nbytes),
            rng.randrange(64),
        ]
    )


def numbers(rng: random.Random, data: bytes, anatomy: Anatomy) -> bytes:
    """Change one number or some of the header, now and then any bytes as if they were one."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        offset, nbytes = rng.choice(anatomy.fields)
        if rng.random() < 0.15 and len(data) > 8:
            offset, nbytes = rng.randrange(len(data) - 8), rng.choice((1, 2, 4, 8))
        if offset + nbytes > len(data):
            continue
        old = int.from_bytes(data[offset : offset + nbytes], "little")
        if rng.random() < 0.15:  # the bytes of another field
            other, _ = rng.choice(anatomy.fields)
            new = int.from_bytes(data[other : other + nbytes], "little")
        else:
            new = interesting(rng, old, nbytes, len(data))
        data = with_number(data, offset, nbytes, new)
    return data


def sections(rng: random.Random, data: bytes, anatomy: Anatomy) -> bytes:
    """Lose, repeat, swap, move or empty a section."""
    start, stop = rng.choice(anatomy.sections)
    section, before, after = data[start:stop], data[:start], data[stop:]
    other, other_stop = rng.choice(anatomy.sections)
    kind = rng.randrange(6)
    if kind == 0:
        return before + after
    if kind == 1:
        return before + section + section + after
    if kind == 2:
        return before + bytes(len(section)) + after
    if kind == 3:
        return before + data[other:other_stop] + after
    if kind == 4 and stop <= other:
        return before + data[other:other_stop] + data[stop:other] + section + data[other_stop:]
    return data + section


def bit_flips(rng: random.Random, data: bytes, anatomy: Anatomy) -> bytes:
    """Flip a few bits."""
    flipped = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16)) if data else 0):
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def some_bytes(rng: random.Random, data: bytes, anatomy: Anatomy) -> bytes:
    """Take bytes out anywhere and put others in."""
    place = rng.randrange(len(data) + 1)
    n = rng.choice((0, 0, 1, 2, 4, 8, 64))
    new = rng.choice((b"", bytes(n), b"\xff" * n, rng.randbytes(n)))
    return data[:place] + new + data[place + rng.choice((0, n, 1, 4, 8)) :]


def lengths(rng: random.Random, data: bytes, anatomy: Anatomy) -> bytes:
    """Cut the file, or let it go on."""
    kind = rng.randrange(4)
    if kind == 0:
        return data[: rng.randrange(len(data) + 1)]
    if kind == 1:
        return data[: max(len(data) - rng.randrange(1, 20), 0)]
    if kind == 2:
        edges = [edge for section in anatomy.sections for edge in section]
        return data[: max(rng.choice(edges) + rng.randrange(-2, 3), 0)]
    return data + rng.choice((b"\0", bytes(4), bytes(4096), rng.randbytes(8), data))


def texts(rng: random.Random, data: bytes, anatomy: Anatomy) -> bytes:
    """Put invalid UTF-8, or a copy of another word, into words and names."""
    if not anatomy.texts:
        return bit_flips(rng, data, anatomy)
    start, stop = rng.choice(anatomy.texts)
    new = rng.choice(NOT_UTF8)
    if rng.random() < 0.3:
        other, other_stop = rng.choice(anatomy.texts)
        new = data[other:other_stop]
    if stop == start:
        return data
    new = (new * (stop - start))[: stop - start]
    return data[:start] + new + data[stop:]


def splices(rng: random.Random, data: bytes, other: Anatomy) -> bytes:
    """Put a section or any bytes of another valid file in place of some."""
    start, stop = rng.choice(other.sections)
    if rng.random() < 0.5:
        start = rng.randrange(len(other.data))
        stop = start + rng.randrange(1, 40)
    new = other.data[start:stop]
    place = rng.choice((start, rng.randrange(len(data) + 1)))
    return data[:place] + new + data[place + rng.choice((0, len(new))) :]


WAYS: list[Callable[[random.Random, bytes, Anatomy], bytes]] = [
    *(numbers, numbers, numbers, numbers),
    *(sections, bit_flips, some_bytes, lengths, texts),
]


def mutated(
    rng: random.Random, anatomy: Anatomy, others: Sequence[Anatomy], data: bytes | None = None
) -> bytes:
    """A valid file damaged in one way or a few; `data` is the file if it is damaged already."""
    data = anatomy.data if data is None else data
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.1:
            data = splices(rng, data, rng.choice(others))
        else:
            data = rng.choice(WAYS)(rng, data, anatomy)
    return data
