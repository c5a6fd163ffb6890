"""A process that tries parts of the campaign in turn and says what it is about to try.

A worker writes the number of a trial into a mapped file before the trial starts: whatever kills
the process, the campaign can read which trial did. The outcomes go to another file, a line every
second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import random
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.campaign.part import Part, Skipped
from tests.campaign.parts import load_parts

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["PREPARING", "Failure", "State", "Task", "bounded_memory", "random_numbers"]

PREPARING = -1  # in place of a trial's number: the part is made or closed
_SLICE = 1.0  # seconds of one part before another has its turn
_KEPT = 20  # failures of a part that are kept with their tracebacks


def random_numbers(seed: str, part: str, trial: int) -> random.Random:
    """The random numbers of one trial."""
    return random.Random(f"{seed}/{part}/{trial}")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a worker is started with."""

    seed: str
    modules: list[str]
    parts: list[str]
    first: dict[str, int] = field(default_factory=dict)  # trial of each part to start with
    used: dict[str, float] = field(default_factory=dict)  # seconds each part has had so far
    step: int  # between trials of this worker
    folder: str  # an empty one of its own
    results: str  # file to which it adds lines
    state: str  # file that it maps


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial that broke its promise."""

    part: str
    trial: int
    what: str


class State:
    """What a worker is doing: part, trial and since when, in a file that two processes map."""

    _LAYOUT = struct.Struct("<qqd")  # part; trial; start in monotonic seconds, 0 between trials
    _STOP = _LAYOUT.size

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(self._STOP + 1))
        with open(path, "r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), self._STOP + 1)

    def begin(self, part: int, trial: int) -> None:
        self._LAYOUT.pack_into(self._map, 0, part, trial, time.monotonic())

    def end(self) -> None:
        self._LAYOUT.pack_into(self._map, 0, 0, 0, 0.0)

    def now(self) -> tuple[int, int, float] | None:
        """Part, trial and start, or None between trials."""
        part, trial, start = self._LAYOUT.unpack_from(self._map, 0)
        return (part, trial, start) if start else None

    @property
    def stopping(self) -> bool:
        """Whether the worker is to end after the trial it is at."""
        return self._map[self._STOP] != 0

    def stop(self) -> None:
        self._map[self._STOP] = 1

    def close(self) -> None:
        self._map.close()


@contextlib.contextmanager
def bounded_memory(nbytes: int | None) -> Iterator[None]:
    """Let the process take so many more bytes of address space at most."""
    if nbytes is None or resource is None or sys.platform != "linux":
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


class Worker:
    """Gives each part its share of the time until it is told to stop."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.parent = os.getppid()
        self.state = State(Path(task.state))
        self.results = open(task.results, "a", encoding="utf-8")  # noqa: SIM115
        classes = load_parts(task.modules)
        self.classes = {name: classes[name] for name in task.parts}
        self.parts: dict[str, Part] = {}
        self.used = {name: task.used.get(name, 0.0) for name in task.parts}
        self.next = {name: task.first.get(name, 0) for name in task.parts}
        self.n_failures: Counter[str] = Counter()

    def run(self) -> None:
        try:
            while self.used and not self.stopping():
                name = min(self.used, key=lambda name: self.used[name] / self.classes[name].weight)
                if name in self.parts or self.prepare(name):
                    self.slice(name)
        finally:
            for name, part in self.parts.items():
                self.state.begin(list(self.classes).index(name), PREPARING)
                try:
                    part.close()
                except Exception:
                    self.fail(name, PREPARING)
            self.state.end()

    def stopping(self) -> bool:
        return self.state.stopping or os.getppid() != self.parent

    def prepare(self, name: str) -> bool:
        """Make a part; drop it if that fails."""
        index = list(self.classes).index(name)
        folder = Path(self.task.folder) / f"part{index}"
        folder.mkdir()
        self.state.begin(index, PREPARING)
        try:
            self.parts[name] = self.classes[name](folder)
        except Skipped as skipped:
            self.write({"part": name, "skipped": str(skipped)})
        except Exception:
            self.fail(name, PREPARING)
        self.state.end()
        if name not in self.parts:
            del self.used[name]
        return name in self.parts

    def slice(self, name: str) -> None:
        """Try a part for a moment, once at least, and write down what came of it."""
        part, index = self.parts[name], list(self.classes).index(name)
        start = time.monotonic()
        outcomes: Counter[str] = Counter()
        with bounded_memory(part.memory):
            while True:
                trial = self.next[name]
                rng = random_numbers(self.task.seed, name, trial)
                self.state.begin(index, trial)
                try:
                    outcome = part.trial(rng)
                except Exception:
                    self.fail(name, trial)
                else:
                    outcomes.update({outcome: 1} if isinstance(outcome, str) else outcome)
                self.state.end()
                self.next[name] = trial + self.task.step
                if time.monotonic() - start >= _SLICE or self.stopping():
                    break
        seconds = time.monotonic() - start
        self.used[name] += seconds
        line = {"next": self.next[name], "seconds": seconds, "outcomes": dict(outcomes)}
        self.write({"part": name, **line})

    def fail(self, name: str, trial: int) -> None:
        """Write down a failure: with its traceback, if not too many were before."""
        self.n_failures[name] += 1
        what = traceback.format_exc(limit=-12) if self.n_failures[name] <= _KEPT else ""
        self.write({"failure": asdict(Failure(part=name, trial=trial, what=what))})

    def write(self, line: dict[str, object]) -> None:
        self.results.write(json.dumps(line) + "\n")
        self.results.flush()


def main() -> None:
    faulthandler.enable()
    Worker(Task(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
