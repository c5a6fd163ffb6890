"""Compiled loops in place of numpy's, once they pay; a thread loads them.

Loading numba and a first loop takes half a second to a second. Twins in numpy therefore do the work
until they have taken a while, which :func:`counted` measures. Then a thread imports numba and
compiles the loop that was asked for, or reads it from numba's cache. Meanwhile numpy goes on.

The environment variable EMBMAP_KERNELS overrides this: "numpy" never loads numba, "numba" loads it
at once and raises ImportError without it. Both give identical results.

A process that ends does not wait for the import, only for the module that is being imported; a fork
waits for the import, which its child could not go on with.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache, wraps
from time import perf_counter, thread_time
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from embmap.forking import process_lock
from embmap.threads import away_from_signals

__all__ = ["counted", "find", "hurry"]

P = ParamSpec("P")
T = TypeVar("T")
Kernel = Callable[..., Any]

CHOICE = os.environ.get("EMBMAP_KERNELS", "")
"""The value of EMBMAP_KERNELS, read once: "", "numpy" or "numba"."""

_WORTH_LOADING = 0.05  # seconds in numpy's twins after which a thread loads what is asked for
_WORTH_WAITING = 0.3  # seconds in them after which loading has repaid a wait
_PATIENCE = (
    1.0  # seconds that calls wait for one loop; compiling it for the first time takes longer
)
_FORK_PATIENCE = 30  # seconds that a fork waits for one loop

_seconds = 0.0  # spent in numpy's twins
_ready: dict[str, Kernel] = {}
_loading: dict[str, _Loading] = {}
_lock = process_lock()
_importing = _hurried = _given_up = False


def counted(function: Callable[P, T]) -> Callable[P, T]:
    """Count the time that numpy's twin of a compiled loop takes."""

    @wraps(function)
    def timed(*args: P.args, **kwargs: P.kwargs) -> T:
        global _seconds
        start = thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            _seconds += thread_time() - start

    return timed


def find(name: str, *arguments: Any, holds_lock: bool = False) -> Kernel | None:
    """Return the compiled loop of this name, or None if numpy does the work this time.

    The loop is first compiled for the types of `arguments`. `holds_lock` says that numpy's twin
    holds Python's lock all the time. Since it would keep the thread from loading, this call then
    waits for the thread. Other calls wait once numpy's twins have taken as long as loading does.
    """
    if CHOICE == "numpy":
        return None
    kernel = _ready.get(name)
    if kernel is not None:
        return kernel
    if _given_up:
        return None
    if CHOICE:
        return _load_at_once(name)
    if _seconds < _WORTH_LOADING and not _hurried:
        return None
    with _lock:
        loading = _loading.get(name)
        if loading is None:
            loading = _loading[name] = _Loading(name, arguments)
            loading.start()
    if holds_lock or _hurried or _seconds >= _WORTH_WAITING:
        loading.wait()
    return _ready.get(name)


def hurry() -> None:
    """Load compiled loops when they are first asked for, and wait for them."""
    global _hurried
    _hurried = True


class _Ending(BaseException):
    """Raised in the middle of an import when the process ends."""


class _Loading:
    """A thread that loads one loop; it is the first finder of modules while it imports numba.

    Python waits for this thread at the end of the process. The import stops before its next module
    then.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self._name = name
        self._arguments = arguments
        self._patience = _PATIENCE
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._load, name="embmap kernels", daemon=False)

    def start(self) -> None:
        """Start the thread, if the system permits."""
        _prepare_forks()
        try:
            away_from_signals(self._thread.start)
        except RuntimeError:  # too many threads, or the process ends
            pass
        finally:
            if not self._thread.is_alive():
                self.done.set()

    def wait(self) -> None:
        """Wait for the thread, all calls together no longer than is reasonable."""
        if self._patience > 0 or _hurried:
            start = perf_counter()
            try:
                self.done.wait(None if _hurried else self._patience)
            finally:
                self._patience -= perf_counter() - start

    def find_spec(self, *_: Any) -> None:
        """Find no module, but stop this thread from importing one if the process ends."""
        if threading.current_thread() is self._thread and not threading.main_thread().is_alive():
            raise _Ending

    def _load(self) -> None:
        global _given_up
        sys.meta_path.insert(0, self)
        try:
            jit = _import()
            kernel = getattr(jit, self._name)
            jit.prepare(kernel, self._arguments)
            _ready[self._name] = kernel
        except (Exception, _Ending):  # EMBMAP_KERNELS=numba shows why
            _given_up = True
        finally:
            # A new list, since other threads may be going through the old one.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            self._arguments = ()
            self.done.set()


def _load_at_once(name: str) -> Kernel:
    if CHOICE != "numba":
        raise ValueError(f"EMBMAP_KERNELS must be 'numpy' or 'numba', not {CHOICE!r}")
    try:
        kernel: Kernel = getattr(_import(), name)
    except ImportError as error:
        raise ImportError("EMBMAP_KERNELS=numba needs numba: pip install 'embmap[jit]'") from error
    _ready[name] = kernel
    return kernel


def _import() -> ModuleType:
    global _importing
    try:
        _importing = True
        from embmap.codecs import jit
    finally:
        _importing = False
    return jit


@cache
def _prepare_forks() -> None:
    """Let forks wait for loading from now on, before they take any lock."""
    # numba imports logging, which lets forks take its lock. What was registered last comes first.
    import logging  # noqa: F401

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait_for_threads)


def _wait_for_threads() -> None:
    for loading in list(_loading.values()):
        loading.done.wait(_FORK_PATIENCE)


def _forget_threads() -> None:
    """Load again in a forked child what a thread of its parent was to load."""
    global _given_up
    # A child would wait for ever to import what its parent was importing.
    _given_up = _given_up or _importing
    _loading.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
