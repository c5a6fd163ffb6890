"""What came of a campaign, in words: a table of counts, and each failure with what repeats it."""

from __future__ import annotations

import datetime
import platform
import shlex

import numpy as np

import embmap
from tests.campaign.parts import MODULES
from tests.campaign.running import Campaign
from tests.campaign.worker import PREPARING, Failure

__all__ = ["failures", "replay_command", "table"]

_SHOWN = 10  # failures of a part that are shown, of however many


def table(campaign: Campaign) -> str:
    """Write the counts as markdown: where and how long, and a row for each part."""
    minutes = campaign.seconds / 60
    long = f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes"
    where = (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {long}, seed `{campaign.seed}`, "
        f"{campaign.n_workers} cores, {platform.system()} on {platform.machine()}, Python "
        f"{platform.python_version()}, numpy {np.__version__}, embmap {embmap.__version__}."
    )
    lines = [
        where,
        "",
        "| what is tried | promise | tried | outcomes | failures |",
        "|---|---|---:|---|---:|",
    ]
    for name, tally in campaign.tallies.items():
        outcomes = ", ".join(f"{n:,} {label}" for label, n in tally.outcomes.most_common())
        if tally.skipped and not outcomes:
            outcomes = f"skipped: {tally.skipped}"
        promise = campaign.parts[name].promise
        lines.append(
            f"| {name} | {promise} | {tally.n_tried:,} | {outcomes} | {len(tally.failures):,} |"
        )
    return "\n".join(lines)


def failures(campaign: Campaign) -> str:
    """Write each failure with the command that repeats it; "" if nothing failed."""
    lines = []
    for name, tally in campaign.tallies.items():
        for failure in tally.failures[:_SHOWN]:
            where = "preparing" if failure.trial == PREPARING else f"trial {failure.trial}"
            lines += [f"FAILED {name}, {where}", f"  {replay_command(campaign, failure)}"]
            lines += [f"    {line}" for line in failure.what.splitlines()]
            lines.append("")
        if len(tally.failures) > _SHOWN:
            lines += [f"… and {len(tally.failures) - _SHOWN} more failures of {name}", ""]
    return "\n".join(lines)


def replay_command(campaign: Campaign, failure: Failure) -> str:
    """Write the command that repeats a failed trial."""
    command = ["python", "-m", "tests.campaign", "--seed", campaign.seed]
    if list(campaign.modules) != list(MODULES):
        command += ["--modules", ",".join(campaign.modules)]
    return shlex.join([*command, "--replay", failure.part, str(max(failure.trial, 0))])
