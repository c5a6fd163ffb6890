"""Chooses between numpy and numba for the loops that numpy cannot express well.

Importing numba takes a third of a second, so it is loaded only when the work so far would have
repaid that. The environment variable EMBMAP_KERNELS overrides this: "numpy" never loads it, "numba"
loads it at once and raises ImportError without it. Both give identical results. A child that is
forked while numba loads stays with numpy.
"""

from __future__ import annotations

import os
from types import ModuleType

__all__ = ["jit_for"]

_WORTH_LOADING = 50_000_000
"""Operations, of 6 ns each in numpy, after which compiled loops have repaid loading them."""

CHOICE = os.environ.get("EMBMAP_KERNELS", "")
"""The value of EMBMAP_KERNELS, read once: "", "numpy" or "numba"."""

_done = 0
_jit: ModuleType | None = None
_failed = False
_importing = False
_cut_off = False


def _note_cut_off() -> None:
    global _cut_off
    _cut_off = _cut_off or _importing


if hasattr(os, "register_at_fork"):
    # A child forked while another thread imports numba would wait for ever to import it.
    os.register_at_fork(after_in_child=_note_cut_off)


def jit_for(n_operations: int) -> ModuleType | None:
    """Return the module of compiled kernels, or None if numpy does this many operations."""
    global _done, _jit, _failed, _importing
    if _jit is not None or CHOICE == "numpy" or _cut_off:
        return _jit
    if CHOICE not in ("", "numba"):
        raise ValueError(f"EMBMAP_KERNELS must be 'numpy' or 'numba', not {CHOICE!r}")
    if not CHOICE:
        _done += n_operations
        if _failed or _done < _WORTH_LOADING:
            return None
    try:
        _importing = True
        from embmap.codecs import jit
    except ImportError as error:
        _failed = True
        if CHOICE:
            raise ImportError(
                "EMBMAP_KERNELS=numba needs numba: pip install 'embmap[jit]'"
            ) from error
        return None
    finally:
        _importing = False
    _jit = jit
    return jit
