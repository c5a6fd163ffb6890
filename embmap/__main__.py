"""``python -m embmap`` and the command ``embmap``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line.

    Returns
    -------
    int
        0; 1 when a word is unknown or a check failed; 2 for a bad file or usage.
    """
    try:
        from embmap.cli import run
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write("embmap: the command line needs typer and rich: pip install embmap[cli]\n")
        return 2
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
