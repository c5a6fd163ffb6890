"""Which time step a number or a label means, such as ``-1`` or the year ``1900``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

__all__ = [
    "TimeLabel",
    "TimeStep",
    "check_labels",
    "find_step",
    "name_step",
    "parse_labels",
    "range_of",
]

TimeLabel = int | str
"""What a time step is called, such as a year."""
TimeStep = SupportsIndex | str
"""A time step by its number or its label."""
_MOST_DIGITS = 18


def parse_labels(labels: Sequence[object]) -> tuple[TimeLabel, ...]:
    """Return labels; text of an integer becomes the integer. ValueError if they are not labels."""
    found: list[TimeLabel] = []
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, int | str) or label == "":
            raise ValueError(f"a label must be an integer or text, not {str(label)[:50]!r}")
        found.append(_as_integer(label))
    if len(set(found)) < len(found):
        raise ValueError("labels must differ from each other")
    return tuple(found)


def check_labels(labels: Sequence[TimeLabel], n: int) -> None:
    """Raise ValueError if there are labels, but not one for each of `n` time steps."""
    if len(labels) not in (0, n):
        raise ValueError(f"{len(labels)} labels were given for {n} time steps")


def find_step(t: TimeStep, n: int, labels: Sequence[TimeLabel] = ()) -> int:
    """Return the number, from 0, of the time step of `n` that a number or a label means.

    Text of an integer is the integer. IndexError is raised if there is no such step, ValueError if
    an integer is the number of one step and the label of another.
    """
    if isinstance(t, bool | np.bool_):
        raise IndexError(f"timestep must be an integer or a label, not {t}")
    asked = _as_integer(t) if isinstance(t, str) else operator.index(t)
    label = labels.index(asked) if asked in labels else None
    if isinstance(asked, str) or not -n <= asked < n:
        if label is not None:
            return label
        what = f"timestep must be at least {-n} and below {n}"
        what += f", or a label, {range_of(labels)}" if labels else ""
        shown = repr(asked[:50]) if isinstance(asked, str) else asked
        raise IndexError(f"{what}, not {shown}")
    number = asked % n
    if label not in (None, number):
        ways = name_step(number, n, labels), name_step(int(label), n, labels)
        raise ValueError(
            f"timestep {asked} is the number of one time step and the label of another; "
            f"write {ways[0]} for the first and {ways[1]} for the second"
        )
    return number


def name_step(number: int, n: int, labels: Sequence[TimeLabel] = ()) -> TimeLabel:
    """Return a number or a label that means a time step and no other, if there is one."""
    ways: list[TimeLabel] = [number, number - n, *labels[number : number + 1]]
    for way in ways:
        taken = way in labels and labels.index(way) != number
        if not taken and (isinstance(way, str) or not -n <= way < n or way % n == number):
            return way
    return number - n


def range_of(labels: Sequence[TimeLabel]) -> str:
    """Return the first and the last label as text."""
    return f"{labels[0]} to {labels[-1]}"


def _as_integer(label: TimeLabel) -> TimeLabel:
    if isinstance(label, str):
        digits = label.removeprefix("-")
        if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS:
            return int(label)
    return label
