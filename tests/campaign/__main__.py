"""``python -m tests.campaign``: try every part for hours, print the counts and the failures."""

from __future__ import annotations

import argparse
import faulthandler
import secrets
import sys
import tempfile
from pathlib import Path

from benchmarks.page import write
from tests.campaign import report
from tests.campaign.part import Skipped
from tests.campaign.parts import MODULES, load_parts
from tests.campaign.running import Campaign
from tests.campaign.worker import bounded_memory, random_numbers

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "security.md"
_SAVED = _ROOT / ".campaign.txt"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--hours", type=float, default=8.0, help="how long; 8 hours by default")
    time.add_argument("--minutes", type=float, help="how long, in minutes")
    parser.add_argument("--seed", help="repeat the trials of another run; a new one by default")
    parser.add_argument("--part", action="append", default=[], help="only this part; repeatable")
    parser.add_argument("--list", action="store_true", help="print the parts and what they promise")
    parser.add_argument(
        "--replay", nargs=2, metavar=("PART", "TRIAL"), help="repeat one trial in this process"
    )
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    parser.add_argument("--page", type=Path, default=_PAGE, help="security.md of docs by default")
    parser.add_argument(
        "--save",
        type=Path,
        default=_SAVED,
        metavar="FILE",
        help=f"where table and failures are kept up to date; {_SAVED.name} by default",
    )
    parser.add_argument(
        "--modules",
        type=lambda text: text.split(","),
        default=list(MODULES),
        help="take the parts from these modules instead",
    )
    options = parser.parse_args()
    if options.write and options.part:
        parser.error("--write writes the whole table, so it cannot be combined with --part")
    if options.list:
        for name, part in load_parts(options.modules).items():
            print(f"{name}: {part.promise}")
        return 0
    if options.replay and options.seed is None:
        parser.error("--replay needs the --seed of the run that it repeats")
    if options.replay:
        name, trial = options.replay
        return replay(options.modules, options.seed, name, int(trial))
    seed = secrets.token_hex(4) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as folder:
        try:
            campaign = Campaign(
                seed=seed, modules=options.modules, names=options.part, folder=Path(folder)
            )
        except ValueError as error:
            parser.error(str(error))

        def save() -> None:
            text = f"{report.table(campaign)}\n\n{report.failures(campaign)}"
            options.save.write_text(text, encoding="utf-8")

        print(f"seed {seed}; {options.save} has the counts so far", flush=True)
        seconds = 3600 * options.hours if options.minutes is None else 60 * options.minutes
        campaign.run(seconds, save)
    print(report.failures(campaign))
    print(report.table(campaign))
    if options.write:
        write("campaign", report.table(campaign), options.page)
    return 1 if campaign.n_failures else 0


def replay(modules: list[str], seed: str, name: str, trial: int) -> int:
    """Repeat one trial in this process, where a debugger sees it."""
    faulthandler.enable()
    part = load_parts(modules)[name]
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as folder:
        try:
            made = part(Path(folder))
        except Skipped as skipped:
            print(f"skipped: {skipped}")
            return 0
        try:
            with bounded_memory(part.memory):
                print(made.trial(random_numbers(seed, name, trial)))
        finally:
            made.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
