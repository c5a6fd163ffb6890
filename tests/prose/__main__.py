"""``python -m tests.prose``: find refused phrases, and docstrings of the wrong form."""

import sys
from pathlib import Path

from tests.prose.docstrings import check_internal, check_public
from tests.prose.phrases import check_phrases, pages, read_phrases

ROOT = Path(__file__).resolve().parents[2]


def main():
    """Print what is wrong, a line each; the exit status is 1 if there is anything."""
    paths = [Path(each) for each in sys.argv[1:]] or list(pages(ROOT))
    wrong = [*check_phrases(paths, read_phrases())]
    if len(sys.argv) == 1:
        wrong += [*check_public(), *check_internal()]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
