"""The campaign's runner: what breaks is found, named with its seed and repeated."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.campaign.parts import load_parts

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="workers are killed by signals"),
]


def command(*options, folder):
    """The command line of the campaign with the parts that break."""
    saved = ["--save", str(folder / "saved")]
    return [
        sys.executable,
        "-m",
        "tests.campaign",
        "--modules",
        "tests.campaign.bad_parts",
        *saved,
        *options,
    ]


def run(*options, folder):
    return subprocess.run(
        command(*options, folder=folder), cwd=ROOT, capture_output=True, text=True
    )


def row(text, name):
    """The row of a part in the table: tried, outcomes, failures."""
    cells = re.search(rf"^\| {name} \|(.*)\|$", text, re.MULTILINE)[1].split(" | ")
    return [cell.strip() for cell in cells[1:]]


def first_failure(text, name):
    """Number of the first failed trial of a part that is shown."""
    return re.search(rf"^FAILED {name}, trial (\d+)$", text, re.MULTILINE)[1]


def until_failed(name, folder):
    """Try a part for longer and longer until something of it failed."""
    for minutes in ("0.05", "0.2", "0.6"):
        done = run("--minutes", minutes, "--seed", "1", "--part", name, folder=folder)
        if f"FAILED {name}" in done.stdout:
            break
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_sound_part_is_counted_and_nothing_failed(tmp_path):
    done = run("--minutes", "0.05", "--seed", "1", "--part", "sound", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    tried, outcomes, failures = row(done.stdout, "sound")
    assert int(tried.replace(",", "")) > 0
    assert "heads" in outcomes or "tails" in outcomes
    assert failures == "0"
    assert "seed `1`" in done.stdout


def test_a_broken_promise_is_shown_and_repeated(tmp_path):
    text = until_failed("failing", tmp_path)
    assert int(row(text, "failing")[2].replace(",", "")) >= 1
    number = first_failure(text, "failing")
    assert f"--seed 1 --modules tests.campaign.bad_parts --replay failing {number}" in text
    shown = re.search(r"AssertionError: the number is ([\d.]+)", text)[0]
    again = run("--seed", "1", "--replay", "failing", number, folder=tmp_path)
    assert again.returncode == 1
    assert shown in again.stderr
    other = run("--seed", "another", "--replay", "failing", number, folder=tmp_path)
    assert shown not in other.stdout + other.stderr


def test_a_worker_that_is_killed_is_blamed_on_its_trial_and_replaced(tmp_path):
    text = until_failed("crashing", tmp_path)
    assert "killed by SIGSEGV" in text
    assert 'bad_parts.py", line' in text  # where it was killed
    again = run(
        "--seed", "1", "--replay", "crashing", first_failure(text, "crashing"), folder=tmp_path
    )
    assert again.returncode == -signal.SIGSEGV


def test_a_trial_that_hangs_is_ended_and_the_next_tried(tmp_path):
    text = until_failed("hanging", tmp_path)
    assert "hung for" in text
    assert 'bad_parts.py", line' in text  # where it hung
    assert "in trial" in text


def test_memory_beyond_the_bound_is_a_failure(tmp_path):
    if sys.platform != "linux":
        pytest.skip("memory is bounded on Linux only")
    assert "MemoryError" in until_failed("greedy", tmp_path)


def test_parts_that_cannot_be_tried_are_skipped_or_failed(tmp_path):
    options = ["--part", "absent", "--part", "unprepared"]
    done = run("--minutes", "5", "--seed", "1", *options, folder=tmp_path)  # ends at once
    assert done.returncode == 1
    assert row(done.stdout, "absent")[1] == "skipped: no machine has it"
    assert "RuntimeError: random is not enough" in done.stdout
    skipped = run("--minutes", "5", "--part", "absent", folder=tmp_path)
    assert skipped.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_prints_its_table(tmp_path, number):
    options = ["--hours", "1", "--seed", "1", "--part", "sound"]
    process = subprocess.Popen(
        command(*options, folder=tmp_path), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    line = process.stdout.readline()
    assert "seed 1" in line
    time.sleep(1)
    process.send_signal(number)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert row(text, "sound")[2] == "0"
    assert row((tmp_path / "saved").read_text("utf-8"), "sound") == row(text, "sound")


def test_the_table_is_written_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- campaign: begin -->\nold\n<!-- campaign: end -->\n\nRest\n")
    options = ["--minutes", "0.05", "--seed", "1", "--write", "--page", str(page)]
    run(*options, folder=tmp_path)
    text = page.read_text("utf-8")
    assert text.startswith("# Page\n\n<!-- campaign: begin -->\n")
    assert text.endswith("<!-- campaign: end -->\n\nRest\n")
    assert "old" not in text
    for name in load_parts(["tests.campaign.bad_parts"]):
        assert len(row(text, name)) == 3


def test_bad_arguments_are_refused(tmp_path):
    for options in (
        ["--part", "nothing"],
        ["--replay", "sound", "1"],
        ["--write", "--part", "sound"],
    ):
        assert run(*options, folder=tmp_path).returncode == 2


def test_nothing_is_left_of_a_campaign(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    options = ["--minutes", "0.05", "--seed", "1", "--part", "sound", "--part", "crashing"]
    subprocess.run(
        command(*options, folder=tmp_path), cwd=ROOT, env=environment, capture_output=True
    )
    assert list(temporary.iterdir()) == []
