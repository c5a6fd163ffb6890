"""What a part of the campaign is: a promise, and a trial of it that is made from a seed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import ClassVar

__all__ = ["Part", "Skipped"]


class Skipped(Exception):
    """The machine lacks what a part needs; raise it from the part's constructor."""


class Part(ABC):
    """One thing the campaign tries over and over; each trial is made from a seed.

    A trial must follow from its random numbers and the class only, not from the trials before it:
    then the seed and the number of the trial repeat a failure.
    """

    name: ClassVar[str]  # row of the table, and the word after --part
    promise: ClassVar[str]  # what each trial checks: one sentence for the docs
    weight: ClassVar[float] = 1.0  # share of the time, relative to other parts
    patience: ClassVar[float] = 60.0  # seconds after which a trial counts as hung
    memory: ClassVar[int | None] = None  # bytes of address space that trials may take; None: any

    def __init__(self, folder: Path) -> None:
        """Prepare what every trial needs, in an empty folder that belongs to this part."""
        self.folder = folder

    @abstractmethod
    def trial(self, rng: random.Random) -> str | Counter[str]:
        """Try once and return the outcome; raise if the promise is broken.

        A trial that tries many things at once returns how many had each outcome.
        """

    def close(self) -> None:  # noqa: B027
        """End what the constructor started."""
