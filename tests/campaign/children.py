"""Processes that cost milliseconds, to be killed or to fail in: forked from one that is ready.

A :class:`Nursery` is a process that has imported embmap. It forks a child for each task, kills it
after a while if it is asked to, and says how it ended and what the task returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embmap.errors import EmbmapError
from tests.campaign.part import Skipped

__all__ = [
    "KILL",
    "KILL_HALFWAY",
    "KINDS",
    "SHORT",
    "Ended",
    "Fault",
    "Nursery",
    "compiled_faults",
]

_ROOT = Path(__file__).resolve().parents[2]
_LAST_WORDS = 3.0  # seconds before the end of a child's time when it writes down where it hangs

# What calls of the system are called in faults.c.
KINDS = {"write": 1, "truncate": 2, "sync": 4, "rename": 8, "read": 16, "open": 32, "map": 64}
SHORT, KILL, KILL_HALFWAY = -1, -2, -3


@dataclass(frozen=True)
class Fault:
    """Which call about a file of a folder fails, and how: faults.c says what the numbers mean."""

    folder: str
    kinds: tuple[str, ...]
    number: (
        int  # of the call; with 0 none fails, and the task returns how many of each kind are made
    )
    action: int
    lasting: bool = False  # whether later ones fail too

    def arm(self, library: str) -> ctypes.CDLL:
        shim = ctypes.CDLL(library)
        mask = sum(KINDS[kind] for kind in self.kinds)
        number = ctypes.c_long(self.number)
        shim.campaign_arm.restype = None
        shim.campaign_calls.restype = ctypes.c_long
        shim.campaign_arm(os.fsencode(self.folder), mask, number, self.action, int(self.lasting))
        return shim


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    status: int  # exit status; minus the number of the signal that killed it
    hung: bool  # whether its time was up
    seconds: float
    returned: Any = None
    raised: tuple[str, str] | None = None  # family and message of what the task raised
    trace: str = ""


def compiled_faults(folder: Path) -> Path:
    """Compile faults.c, or skip."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Skipped("there is no C compiler")
    if sys.platform != "linux":
        raise Skipped("only Linux loads a library before others in this way")
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"faults.c does not compile: {done.stderr.strip().splitlines()[0]}")
    return library


class Nursery:
    """A process that forks children, one at a time."""

    def __init__(self, folder: Path, *, faults: Path | None = None, n_threads: int = 1) -> None:
        if not hasattr(os, "fork"):
            raise Skipped("this system cannot fork")
        self.faults = faults
        environment = dict(os.environ, EMBMAP_KERNELS="numpy", PYTHONPATH=str(_ROOT))
        environment |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(n_threads))
        environment["TMPDIR"] = str(folder)
        if faults is not None:
            environment["LD_PRELOAD"] = str(faults)
        self.told = folder / "children.log"
        with open(self.told, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.campaign.children"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=_ROOT,
                env=environment,
            )

    def run(
        self,
        task: str,
        *arguments: Any,
        fault: Fault | None = None,
        kill_after: float | None = None,
        limit: float = 40.0,
    ) -> Ended:
        """Call "module:function" with arguments that JSON can hold, in a child."""
        asked = {"task": task, "arguments": arguments, "after": kill_after, "limit": limit}
        if fault is not None:
            asked["fault"] = [str(self.faults), vars(fault)]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.told.write_bytes(b"")
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the process that forks has died: {self.told.read_text('utf-8', 'replace')}"
        ended = Ended(**json.loads(line))
        if ended.hung:
            raise AssertionError(
                f"{task} hung for {limit} s:\n{self.told.read_text('utf-8', 'replace')}"
            )
        return ended

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def main() -> None:
    """Fork a child for each line of the input."""
    for module in ("embmap.conversion", "tests.campaign.operations"):
        importlib.import_module(module)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(_supervised(json.loads(line))).encode() + b"\n")
        sys.stdout.buffer.flush()


def _supervised(asked: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if not child:
        os.close(reading)
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)  # what it starts can be ended with it
            _perform(asked, writing)
        os._exit(70)
    os.close(writing)
    limit, after = asked["limit"], asked["after"]
    told, hung = _told(reading, start + (limit if after is None else min(after, limit)))
    if told is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    os.close(reading)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "hung": hung and after is None,
        "seconds": time.monotonic() - start,
        **json.loads(told or b"{}"),
    }


def _family(error: BaseException) -> str:
    """Which of the errors that embmap may raise it is; else the name of its class."""
    families = (EmbmapError, OSError)
    return next((each.__name__ for each in families if isinstance(error, each)), "") or (
        type(error).__name__
    )


def _told(reading: int, until: float) -> tuple[bytes | None, bool]:
    """What a child writes until it ends; None if it has to be killed."""
    found = b""
    while (left := until - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            data = os.read(reading, 1 << 16)
            if not data:
                return found, False
            found += data
    return None, True


def _perform(asked: dict[str, Any], writing: int) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(asked["limit"] - _LAST_WORDS, 1.0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the task must not write among our lines
    module, _, name = asked["task"].partition(":")
    function = getattr(importlib.import_module(module), name)
    told: dict[str, Any] = {}
    shim = None
    if "fault" in asked:
        library, fault = asked["fault"]
        shim = Fault(**fault).arm(library)
    try:
        told["returned"] = function(*asked["arguments"])
    except BaseException as error:
        if shim is not None:
            shim.campaign_disarm()
        told["raised"] = [_family(error), f"{type(error).__name__}: {error}"]
        told["trace"] = traceback.format_exc()
    if shim is not None and not asked["fault"][1]["number"]:
        shim.campaign_disarm()
        told["returned"] = {kind: shim.campaign_calls(bit) for kind, bit in KINDS.items()}
    data = json.dumps(told).encode()
    while data:
        data = data[os.write(writing, data) :]
    os._exit(0)


if __name__ == "__main__":
    main()
