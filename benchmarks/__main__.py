"""``python -m benchmarks``: measure and print the table; ``--write`` puts it into the docs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import table
from benchmarks.page import PAGE, write

_ROOT = Path(__file__).parents[1]
_RESULTS = _ROOT / "benchmarks" / "results"
_FULL, _QUICK = 1_000_000, 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help=f"files of {_QUICK:,} words, one pass")
    size.add_argument("--words", type=int, default=_FULL, metavar="N", help="files of N words")
    parser.add_argument(
        "--passes",
        type=int,
        metavar="N",
        help="passes over everything; 3 by default, 1 with --quick",
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--last", action="store_true", help="show the last run, without measuring")
    parser.add_argument(
        "-k", default="", metavar="EXPRESSION", help="only some benchmarks, as for pytest"
    )
    options = parser.parse_args()
    if options.k and options.write:
        parser.error("-k measures only a part of the table, which --write cannot write")
    n_words = _QUICK if options.quick else options.words
    n_passes = options.passes or (1 if options.quick else 3)
    status = 0 if options.last else measure(n_words, n_passes, options.k)
    paths = sorted(_RESULTS.glob(f"{n_words}-*.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if not results:
        print(f"no results for {n_words} words in {_RESULTS}", file=sys.stderr)
        return status or 1
    command = "python -m benchmarks"
    if n_words != _FULL:
        command += " --quick" if n_words == _QUICK else f" --words {n_words}"
    where = table.describe_run(results, n_words, command)
    lines = table.format_cells(table.collect_figures(results), n_words)
    show(where, lines)
    if options.write and not status:
        write("benchmarks", f"{where}\n\n{table.format_markdown(lines)}")
    return status


def measure(n_words: int, n_passes: int, expression: str) -> int:
    """Run the benchmarks in several passes and return pytest's worst exit status.

    The load of a machine drifts between the measurements that are compared, so the table takes the
    median of the passes.
    """
    _RESULTS.mkdir(exist_ok=True)
    for path in _RESULTS.glob(f"{n_words}-*.json"):
        path.unlink()
    command = [sys.executable, "-m", "pytest", "benchmarks", "-k", expression]
    command += ["--bench-words", str(n_words), "--benchmark-columns=median,rounds"]
    environment = dict(os.environ)
    if "EMBMAP_BENCH_FOLDER" in environment:  # relative to this folder, not to the folder of pytest
        environment["EMBMAP_BENCH_FOLDER"] = os.path.abspath(environment["EMBMAP_BENCH_FOLDER"])
    status = 0
    for number in range(n_passes):
        path = _RESULTS / f"{n_words}-{number}.json"
        measuring = [*command, "--benchmark-json", str(path)]
        done = subprocess.run(measuring, cwd=_ROOT, env=environment, check=False)
        status = max(status, done.returncode)
        if path.exists() and not path.stat().st_size:  # pytest measured nothing
            path.unlink()
    return status


def show(where: str, lines: list[tuple[str, ...]]) -> None:
    """Print the table: drawn on a terminal with rich, else as markdown."""
    try:
        from rich import box
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        drawn = False
    else:
        console = Console()
        drawn = console.is_terminal
    if not drawn:
        print(f"\n{where}\n\n{table.format_markdown(lines)}")
        return
    shown = Table(*table.HEADINGS, box=box.SIMPLE)
    for line in lines:
        style = "bold red" if line[-1] == table.MISSED else None
        shown.add_row(*(escape(cell.replace("**", "")) for cell in line), style=style)
    console.print(shown)
    console.print(where, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
