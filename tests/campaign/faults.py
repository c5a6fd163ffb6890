"""Full and broken disks at every call of the system: what writes, converts and reads."""

from __future__ import annotations

import errno
import functools
import random
import resource
from pathlib import Path
from typing import Any, ClassVar

from tests.campaign.children import SHORT, Ended, Fault, Nursery, compiled_faults
from tests.campaign.operations import OPERATIONS, perform
from tests.campaign.part import Part
from tests.campaign.reading import READERS
from tests.campaign.stage import Stage

# Which errors each kind of call can give on a disk that is full, broken, over a quota or far away.
ERRORS = {
    "write": (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EINTR, SHORT),
    "truncate": (errno.ENOSPC, errno.EIO, errno.EFBIG),
    "sync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "rename": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES),
    "read": (errno.EIO, errno.ESTALE, errno.EINTR, SHORT),
    "open": (errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOSPC),
    "map": (errno.ENOMEM, errno.EIO, errno.ENODEV),
}
_HARMLESS = (errno.EINTR, SHORT)
_LASTING = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, SHORT)


class _Faults(Part):
    """What the parts of this module share: a process with faults.c loaded, and counts of calls."""

    task: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.nursery = Nursery(folder, faults=compiled_faults(folder))
        self.stage = Stage(folder)
        self.counted = functools.cache(self._counted)

    def prepare(self, name: str, *, old: bool) -> None:
        """Make what a task finds."""

    def arguments(self, name: str) -> tuple[Any, ...]:
        raise NotImplementedError

    def _counted(self, name: str) -> dict[str, int]:
        """How many calls of each kind there are when all of them succeed."""
        self.prepare(name, old=True)
        fault = Fault(str(self.folder), self.kinds, 0, 0)
        ended = self.nursery.run(self.task, *self.arguments(name), fault=fault)
        assert ended.raised is None, ended.trace
        return {kind: n for kind, n in ended.returned.items() if n}

    def disturbed(self, name: str, rng: random.Random, *, old: bool) -> tuple[str, int, Ended]:
        """Perform with a fault; returns which, its action, and how it ended."""
        calls = self.counted(name)
        kind = rng.choice(sorted(calls))
        number = rng.randint(1, calls[kind])
        action = rng.choice(ERRORS[kind])
        lasting = action in _LASTING and kind != "open" and rng.random() < 0.5
        self.prepare(name, old=old)
        fault = Fault(str(self.folder), (kind,), number, action, lasting)
        ended = self.nursery.run(self.task, *self.arguments(name), fault=fault)
        what = errno.errorcode.get(action, "short")
        told = f"{name}, {what} at {kind} {number}{' and after' if lasting else ''}"
        assert ended.status == 0, f"{told}: {ended}"
        assert ended.raised is None or ended.raised[0] in ("OSError", "EmbmapError"), (
            f"{told}: {ended.raised}\n{ended.trace}"
        )
        return told, action, ended

    def close(self) -> None:
        self.nursery.close()


def judged(stage: Stage, name: str, had: str, raised: tuple[str, str] | None) -> str:
    """Say what a disturbed writer left: without an error the new file, else the one before."""
    state = stage.state(name)
    assert not stage.temporaries(), f"left {stage.temporaries()} after {raised}"
    if raised is None:
        assert state == "new file", f"no error, but there is: {state}"
        return state
    assert state in (had, "refused", "new file"), f"{state} after {raised}"
    return state if state == had else f"{state}, with an error"


class FaultyWrites(_Faults):
    name = "faults of the disk, writers and conversions"
    promise = (
        "ENOSPC, EIO, EFBIG, EDQUOT, EINTR or half of what was asked for, at any call of the "
        "system: the right new file, or an error of the documented kinds, the old file whole and "
        "no temporary file left."
    )
    weight = 2.0
    task = "tests.campaign.operations:perform"
    kinds = tuple(ERRORS)

    def prepare(self, name: str, *, old: bool) -> None:
        self.stage.lay(name, old=old)

    def arguments(self, name: str) -> tuple[Any, ...]:
        return self.stage.arguments(name)

    def trial(self, rng: random.Random) -> str:
        name = rng.choice(sorted(OPERATIONS))
        old = rng.random() < 0.8
        told, action, ended = self.disturbed(name, rng, old=old)
        try:
            assert ended.raised is None or action not in _HARMLESS, f"{ended.raised}"
            return judged(self.stage, name, "old file" if old else "no file", ended.raised)
        except Exception as error:
            raise AssertionError(f"{told}: {error}\n{ended.trace}") from error


class FaultyReads(_Faults):
    name = "faults of the disk, readers"
    promise = (
        "EIO, EINTR or half of what was asked for, at any call of the system, with each way of "
        "reading: the right answer or an error of the documented kinds, and right answers "
        "afterwards."
    )
    task = "tests.campaign.reading:read_disturbed"
    kinds = ("read", "open", "map")

    def arguments(self, name: str) -> tuple[Any, ...]:
        file, backend, _ = READERS[name]
        return str(self.stage.sources / "1" / file), backend, name

    def trial(self, rng: random.Random) -> str:
        name = rng.choice(sorted(READERS))
        told, action, ended = self.disturbed(name, rng, old=True)
        if ended.raised is None:
            assert ended.returned in ("right", "told"), f"{told}: {ended.returned}"
            return "right answer" if ended.returned == "right" else "error reported"
        assert action not in _HARMLESS, f"{told}: {ended.raised}\n{ended.trace}"
        return ended.raised[0]


def perform_limited(name: str, folder: str, sources: str, version: int, nbytes: int) -> None:
    """Write with a limit on the size of files; going beyond it is EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    perform(name, folder, sources, version)


class LimitedSizes(Part):
    name = "a limit on the size of files"
    promise = "Beyond RLIMIT_FSIZE: EFBIG, the old file whole, no temporary file left."
    weight = 0.5

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.nursery = Nursery(folder)
        self.stage = Stage(folder)

    def trial(self, rng: random.Random) -> str:
        name = rng.choice(sorted(OPERATIONS))
        self.stage.lay(name, old=True)
        most = max(map(len, self.stage.versions(name)[1].files.values()))
        limit = rng.randrange(2 * most)
        task = "tests.campaign.faults:perform_limited"
        ended = self.nursery.run(task, *self.stage.arguments(name), limit)
        try:
            assert ended.status == 0, ended
            assert ended.raised is None or ended.raised[0] == "OSError", ended.raised
            assert ended.raised is not None or limit >= most, "no error"
            return judged(self.stage, name, "old file", ended.raised)
        except Exception as error:
            raise AssertionError(f"{name}, {limit} of {most}: {error}\n{ended.trace}") from error

    def close(self) -> None:
        self.nursery.close()
