"""Runs the workers, notices when one dies or hangs, and keeps the counts and the failures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from tests.campaign.part import Part
from tests.campaign.parts import load_parts
from tests.campaign.worker import PREPARING, Failure, State, Task

__all__ = ["Campaign", "Tally"]

_ROOT = Path(__file__).resolve().parents[2]
_POLL = 0.2  # seconds between two looks at the workers
_GRACE = 15.0  # seconds that workers have to end when the campaign is stopped
_LAST_WORDS = 5.0  # seconds in which a hung worker may write where it hangs


@dataclass
class Tally:
    """What came of one part."""

    trials: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    skipped: str = ""

    @property
    def n_tried(self) -> int:
        """How many things were tried: trials that try many count as many."""
        return self.outcomes.total() + len(self.failures)


class Running:
    """One worker process, and where it left off."""

    def __init__(self, campaign: Campaign, number: int) -> None:
        self.campaign = campaign
        self.number = number
        self.folder = campaign.folder / f"worker{number}"
        self.folder.mkdir()
        self.results = self.folder / "results"
        self.log = self.folder / "log"
        self.next = dict.fromkeys(campaign.parts, number)
        self.used = dict.fromkeys(campaign.parts, 0.0)
        self.dropped: set[str] = set()
        self.n_starts = 0
        self.start()

    def start(self) -> None:
        """Start a process, the first one or after another died."""
        self.n_starts += 1
        folder = self.folder / str(self.n_starts)
        folder.mkdir()
        self.results.write_bytes(b"")
        self.n_read = 0
        state = self.folder / f"state{self.n_starts}"
        self.state = State(state, create=True)
        self.names = [name for name in self.campaign.parts if name not in self.dropped]
        task = Task(
            seed=self.campaign.seed,
            modules=list(self.campaign.modules),
            parts=self.names,
            first=self.next,
            used=self.used,
            step=self.campaign.n_workers,
            folder=str(folder),
            results=str(self.results),
            state=str(state),
        )
        with open(self.log, "wb") as log:
            # A session of its own: the processes that its parts started are killed with it.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.campaign.worker", json.dumps(asdict(task))],
                cwd=_ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def done(self) -> bool:
        """Whether no part is left that the machine has what it needs for."""
        return self.dropped == set(self.campaign.parts)

    def read(self) -> None:
        """Take what the worker has written down since the last time."""
        with open(self.results, "rb") as handle:
            handle.seek(self.n_read)
            new = handle.read()
        new = new[: new.rfind(b"\n") + 1]
        self.n_read += len(new)
        for line in map(json.loads, new.splitlines()):
            if "failure" in line:
                failure = Failure(**line["failure"])
                self.campaign.add(failure)
                if failure.trial == PREPARING:
                    self.dropped.add(failure.part)
                continue
            tally = self.campaign.tallies[line["part"]]
            if "skipped" in line:
                tally.skipped = line["skipped"]
                self.dropped.add(line["part"])
                continue
            tally.trials += (line["next"] - self.next[line["part"]]) // self.campaign.n_workers
            tally.outcomes.update(line["outcomes"])
            self.next[line["part"]] = line["next"]
            self.used[line["part"]] += line["seconds"]

    def look(self) -> None:
        """Replace a worker that died or hangs; what it was trying is a failure."""
        status = self.process.poll()
        self.read()
        if self.done:
            return
        doing = self.state.now()
        if status is None:
            if doing is None:
                return
            name = self.names[doing[0]]
            waited = time.monotonic() - doing[2]
            if waited <= self.campaign.parts[name].patience:
                return
            self.end_hung()
            what = f"hung for {waited:.0f} s"
        else:
            what = ended(status)
        self.kill()
        self.read()
        self.blame(doing, what)
        self.start()

    def blame(self, doing: tuple[int, int, float] | None, what: str) -> None:
        """Record how a worker died as a failure of what it was trying."""
        log = self.log.read_text("utf-8", "replace").strip()
        if doing is None:
            raise RuntimeError(f"a worker {what} between trials:\n{log}")
        name, trial = self.names[doing[0]], doing[1]
        self.campaign.add(Failure(part=name, trial=trial, what=f"{what}\n{log[-4000:]}".strip()))
        if trial == PREPARING:
            self.dropped.add(name)
            return
        self.used[name] += time.monotonic() - doing[2]
        tally = self.campaign.tallies[name]
        step = self.campaign.n_workers
        n_trials = (trial - self.next[name]) // step + 1
        tally.trials += n_trials
        # The outcomes of other trials of the same second were lost with the worker.
        if n_trials > 1:
            tally.outcomes["not recorded"] += n_trials - 1
        self.next[name] = trial + step

    def end_hung(self) -> None:
        """Kill a worker that hangs, having it write down where."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WORDS)

    def kill(self) -> None:
        """Kill the worker and all that its parts started."""
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()
        self.state.close()


def ended(status: int) -> str:
    """How a process ended."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


class Campaign:
    """Some parts, tried by some workers until the time is up."""

    def __init__(
        self, *, seed: str, modules: Sequence[str], names: Sequence[str], folder: Path
    ) -> None:
        found = load_parts(modules)
        unknown = [name for name in names if name not in found]
        if unknown:
            raise ValueError(f"there is no part {unknown[0]!r}; there are {', '.join(found)}")
        self.seed = seed
        self.modules = modules
        self.parts: dict[str, type[Part]] = {name: found[name] for name in names or found}
        self.folder = folder
        self.n_workers = os.cpu_count() or 1
        self.tallies = {name: Tally() for name in self.parts}
        self.seconds = 0.0
        self.interrupted = False

    def add(self, failure: Failure) -> None:
        self.tallies[failure.part].failures.append(failure)

    @property
    def n_failures(self) -> int:
        return sum(len(tally.failures) for tally in self.tallies.values())

    def run(self, seconds: float, save: Callable[[], None], save_every: float = 30.0) -> None:
        """Try the parts for so many seconds, or until SIGINT or SIGTERM."""
        start = time.monotonic()
        saved = start
        workers: list[Running] = []
        with self.signals_noted():
            try:
                workers += [Running(self, number) for number in range(self.n_workers)]
                while not self.interrupted and time.monotonic() - start < seconds:
                    time.sleep(_POLL)
                    for worker in workers:
                        worker.look()
                    if all(worker.done for worker in workers):
                        break
                    if time.monotonic() - saved >= save_every:
                        self.seconds = time.monotonic() - start
                        save()
                        saved = time.monotonic()
                self.end(workers)
            finally:
                for worker in workers:
                    worker.kill()
                self.seconds = time.monotonic() - start
                save()

    def end(self, workers: Sequence[Running]) -> None:
        """Let the workers end what they are at; one that does not in time has hung."""
        for worker in workers:
            worker.state.stop()
        start = time.monotonic()
        waiting = list(workers)
        while waiting and not (self.interrupted and time.monotonic() - start > _GRACE):
            time.sleep(_POLL)
            for worker in waiting.copy():
                if worker.process.poll() == 0:
                    worker.read()
                    waiting.remove(worker)
                    continue
                n_starts = worker.n_starts
                worker.look()
                if worker.n_starts > n_starts:  # it died, and needs no other any more
                    waiting.remove(worker)
        for worker in waiting:
            worker.read()

    @contextlib.contextmanager
    def signals_noted(self) -> Iterator[None]:
        """Have SIGINT and SIGTERM end the campaign as the end of the time does."""

        def note(number: int, frame: FrameType | None) -> None:
            self.interrupted = True

        before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
