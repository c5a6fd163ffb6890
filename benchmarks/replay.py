"""Times that fresh processes measured, for pytest-benchmark.

A fresh process measures itself. Replaying moves a clock by that time, and pytest-benchmark reads
the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import embmap

__all__ = ["clock", "in_fresh_process", "replay"]

_SCRIPT = Path(__file__).with_name("fresh.py")
_now = 0.0


def clock() -> float:
    """Return the time that has been replayed so far, in seconds."""
    return _now


def replay(seconds: float) -> None:
    """Move :func:`clock` by the time that another process measured."""
    global _now
    _now += seconds


def in_fresh_process(what: str, *, kernels: str | None = None, **task: Any) -> dict[str, Any]:
    """Run a task of :mod:`benchmarks.fresh` in a new process and return its outcome.

    `kernels` is the EMBMAP_KERNELS of the process.
    """
    environment = {name: value for name, value in os.environ.items() if name != "EMBMAP_KERNELS"}
    if kernels is not None:
        environment["EMBMAP_KERNELS"] = kernels
    environment["PYTHONPATH"] = str(Path(embmap.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-P", str(_SCRIPT)],
        input=json.dumps({"what": what, **task}),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the measuring process failed:\n{done.stderr}")
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome
