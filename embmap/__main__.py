"""``python -m embmap`` and the command ``embmap``."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line."""
    try:
        from embmap.cli import run
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write("embmap: the command line needs typer and rich: pip install embmap[cli]\n")
        return 2
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
