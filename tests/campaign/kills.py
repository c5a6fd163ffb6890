"""kill -9 at any moment of every writer, index and conversion."""

from __future__ import annotations

import functools
import random
import signal
from pathlib import Path
from typing import ClassVar

from tests.campaign.children import KILL, KILL_HALFWAY, Fault, Nursery, compiled_faults
from tests.campaign.operations import OPERATIONS, PAIRS
from tests.campaign.part import Part, Skipped
from tests.campaign.stage import Stage

_PERFORM = "tests.campaign.operations:perform"
_WRITES = ("write", "truncate", "sync", "rename", "open")


class _Kills(Part):
    """Kills what writes: before or halfway through a call of the system, or after a while."""

    names: ClassVar[list[str]]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.stage = Stage(folder)
        try:
            library = compiled_faults(folder)
        except Skipped:  # moments are enough
            library = None
        self.nursery = Nursery(folder, faults=library)
        self.measured = functools.cache(self._measured)

    def _measured(self, name: str, had: bool) -> tuple[int, float]:
        """How many calls an operation makes when nothing disturbs it, and its seconds.

        They differ if there is an old file to read.
        """
        seconds, calls = [], 0
        for _ in range(3):
            self.stage.lay(name, old=had)
            ended = self._perform(name, 0, 0)
            assert ended.raised is None, ended.trace
            seconds.append(ended.seconds)
            calls = sum((ended.returned or {}).values())
        return calls, min(seconds)

    def _perform(self, name, number, action, kill_after=None):
        fault = None
        if self.nursery.faults is not None and kill_after is None:
            fault = Fault(str(self.stage.target), _WRITES, number, action)
        arguments = self.stage.arguments(name)
        return self.nursery.run(_PERFORM, *arguments, fault=fault, kill_after=kill_after)

    def trial(self, rng: random.Random) -> str:
        name = rng.choice(self.names)
        had = rng.random() < 0.8
        calls, seconds = self.measured(name, had)
        self.stage.lay(name, old=had)
        number, action = rng.randint(1, max(calls, 1)), rng.choice((KILL, KILL_HALFWAY))
        if calls and rng.random() < 0.7:
            ended = self._perform(name, number, action)
            where = f"call {number} of {calls}"
            assert ended.status == -signal.SIGKILL, f"{name}, {where}: {ended}"
        else:
            after = rng.uniform(0, 1.1 * seconds)
            ended = self._perform(name, 0, 0, after)
            where = f"{after:.4f} of {seconds:.4f} s"
        try:
            state = self.stage.state(name)
            assert state != ("no file" if had else "old file")
            self.stage.run_again(name)
        except Exception as error:
            raise AssertionError(f"{name}, killed at {where}: {error}") from error
        return state

    def close(self) -> None:
        self.nursery.close()


class KilledWriters(_Kills):
    name = "kill -9, one file"
    promise = "The target is the whole old file or the whole new one; the next run succeeds."
    weight = 2.0
    names: ClassVar[list[str]] = sorted(set(OPERATIONS) - set(PAIRS))


class KilledPairs(_Kills):
    name = "kill -9, a file and the words beside it"
    promise = "Both are old, both are new, or reading them is refused; the next run succeeds."
    weight = 2.0
    names: ClassVar[list[str]] = PAIRS
