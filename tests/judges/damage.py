"""What the judges of all formats share: refusals as answers, verdicts, and a tally of verdicts.

A judge opens damaged bytes with embmap, asks for everything, and compares the answers with a slow
decoder. Its verdict says what embmap did, and what is wrong with that, if anything.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import embmap
from embmap.io.cached_reads import NotInMemoryError

__all__ = [
    "NOT_OPENED",
    "PARTLY_READ",
    "READ",
    "REFUSED",
    "UNKNOWN",
    "Damages",
    "Verdict",
    "attempt",
    "bits",
    "compared",
    "crash",
    "flips",
    "loaded",
    "outcome_of",
]

REFUSED = "refused"  # answer: any EmbmapError
UNKNOWN = "unknown"  # answer: UnknownWordError

NOT_OPENED = "refused when opened"
PARTLY_READ = "partly refused when read"
READ = "read"


class Verdict(NamedTuple):
    """What embmap did with some bytes, and what is wrong with that; "" when nothing is."""

    outcome: str
    problem: str = ""


def loaded(read: Callable[[], Any]) -> Any:
    """Read as an event loop does: what the system has dropped from memory is loaded first."""
    while True:
        try:
            return read()
        except NotInMemoryError as absent:
            absent.load()


def attempt(read: Callable[[], Any]) -> Any:
    """Read, or say how it was refused; any other exception is a failure of the test."""
    try:
        return loaded(read)
    except embmap.UnknownWordError:
        return UNKNOWN
    except embmap.EmbmapError:
        return REFUSED


def outcome_of(found: dict[Any, Any]) -> str:
    """Whether all that was asked was read."""
    refused = any(isinstance(answer, str) and answer is REFUSED for answer in found.values())
    return PARTLY_READ if refused else READ


def bits(array: Any) -> Any:
    """Dtype, shape and bits of an array, every NaN made the same; a refusal as it is."""
    if isinstance(array, str):
        return array
    if array.dtype.kind == "f":
        array = np.array(array, order="C")
        array[np.isnan(array)] = np.nan
    return array.dtype.str, array.shape, array.tobytes()


def compared(found: dict[Any, Any], expected: dict[Any, Any] | None) -> Verdict:
    """Compare answers with the expected ones; None if the reference decoder refuses the bytes."""
    outcome = outcome_of(found)
    if expected is None:
        problem = ""
        if found["sound"] is True:
            problem = "verify finds nothing wrong, but the reference refuses the bytes"
        elif outcome == READ:
            problem = "all of it is read, but the reference refuses the bytes"
        return Verdict(outcome, problem)
    wrong = []
    for part, answer in expected.items():
        if found.get(part, "nothing") != answer:
            shown = found.get(part, "nothing")
            wrong.append(f"{part} is {shown!r:.80} and not {answer!r:.80}")
    return Verdict(outcome, "; ".join(wrong))


def crash(error: Exception) -> Verdict:
    """Judge an exception that embmap does not define."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    message = f"{type(error).__name__} from {place.filename}:{place.lineno}: {error!s:.200}"
    return Verdict("crashed", message)


def flips(data: bytes, places: Iterable[int] | None = None) -> Iterator[tuple[str, bytes, str]]:
    """Flip the lowest bit, the highest bit or all bits of each byte: what, the bytes, a back end.

    The three ways and the two back ends take turns from byte to byte; the campaign tries the rest.
    """
    for n, place in enumerate(range(len(data)) if places is None else places):
        pattern = (0x01, 0x80, 0xFF)[n % 3]
        flipped = bytearray(data)
        flipped[place] ^= pattern
        yield f"byte {place} ^ {pattern:#x}", bytes(flipped), ("mmap", "read")[n // 3 % 2]


class Damages:
    """A file that is damaged again and again, and all that went wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wrong: list[str] = []
        self.n = 0

    def note(self, what: str, problem: str) -> None:
        """Keep what went wrong, if anything did."""
        if problem:
            self.wrong.append(f"{what}: {problem}"[:400])

    def check(self) -> None:
        assert self.n
        shown = "\n".join(self.wrong[:12])
        assert not self.wrong, f"{len(self.wrong)} of {self.n} damages:\n{shown}"
