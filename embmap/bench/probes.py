"""Facts from the system: about this process, the machine, and the pages of a file in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from embmap.threads import n_threads

__all__ = [
    "Usage",
    "cached_pages",
    "describe_machine",
    "drop_from_cache",
    "fraction_cached",
    "read_through",
    "read_usage",
]


class Usage(NamedTuple):
    """The memory, reads and faults of a process so far, None for values that are unknown.

    Attributes
    ----------
    own : int or None
        Bytes of memory that the process has written. The system cannot take them back.
    private : int or None
        Bytes that no other process maps (USS): `own`, and pages of files.
    proportional : int or None
        `private`, and a proportional part of shared memory (PSS).
    device : int or None
        Bytes read from devices for the process.
    minor, major : int or None
        Page faults that memory could satisfy, and page faults that waited for a device.
    """

    own: int | None
    private: int | None
    proportional: int | None
    device: int | None
    minor: int | None
    major: int | None

    def since(self, before: Usage) -> Usage:
        """Return the difference to an earlier usage."""
        return Usage(
            *(
                None if now is None or then is None else now - then
                for now, then in zip(self, before, strict=True)
            )
        )


def read_usage() -> Usage:
    """Return the usage of this process so far."""
    try:
        import psutil
    except ImportError:
        raise ImportError("measuring needs psutil: pip install 'embmap[bench]'") from None
    process = psutil.Process()
    memory = process.memory_full_info()
    device = getattr(process.io_counters(), "read_bytes", None) if _has_io(process) else None
    minor = major = None
    if sys.platform != "win32":
        import resource

        spent = resource.getrusage(resource.RUSAGE_SELF)
        minor, major = spent.ru_minflt, spent.ru_majflt
    private, proportional = getattr(memory, "uss", None), getattr(memory, "pss", None)
    return Usage(
        own=_written_nbytes(),
        private=private,
        proportional=proportional,
        device=device,
        minor=minor,
        major=major,
    )


def _written_nbytes() -> int | None:
    """Return the bytes of memory that this process has written and shares with nobody."""
    try:
        rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    (kibibytes,) = (line.split()[1] for line in rollup.splitlines() if "Private_Dirty" in line)
    return 1024 * int(kibibytes)


def _has_io(process: object) -> bool:
    if not hasattr(process, "io_counters"):  # macOS
        return False
    try:
        process.io_counters()
    except OSError:  # /proc/self/io may be unreadable
        return False
    return True


def describe_machine() -> dict[str, str]:
    """Return facts about the machine that the figures depend on."""
    import psutil

    memory = psutil.virtual_memory().total
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(n_threads()),
        "memory": f"{memory / 1e9:.0f} GB",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def drop_from_cache(path: Path) -> None:
    """Ask the system to drop the pages of a file from memory; pages that are mapped stay."""
    if not hasattr(os, "posix_fadvise"):
        return
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(path: Path) -> None:
    """Read a file once, so that the system has it in memory."""
    buffer = bytearray(1 << 22)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def fraction_cached(path: Path) -> float | None:
    """Return the part of a file that is in memory, from 0 to 1; None if it is unknown."""
    pages = cached_pages(path)
    return None if pages is None else float(pages.mean())


def cached_pages(path: Path) -> npt.NDArray[np.bool_] | None:
    """Return which pages of a file are in memory: shape (pages,); None if it is unknown."""
    if not sys.platform.startswith("linux") or not path.stat().st_size:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        n_pages = -(-view.size // mmap.PAGESIZE)
        resident = np.zeros(n_pages, np.uint8)
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(view.size),
            ctypes.c_void_p(resident.ctypes.data),
        )
        del view  # a map cannot be closed under a view
        return None if failed else (resident & 1).astype(np.bool_)
