"""What a check finds comes into the report, and nothing else stops the checks after it."""

import numpy as np
import pytest

import embmap
from embmap import ClosedError, FormatError, Report, StaleIndexError


def refuse(error):
    raise error


def test_an_attempt_returns_what_the_check_returns():
    report = Report()
    assert report.attempt(divmod, 7, 2, what="numbers") == (3, 1)
    assert (report.checked, report.problems) == (["numbers"], [])


def test_an_error_of_embmap_becomes_a_problem_with_its_offset():
    report = Report()
    assert report.attempt(refuse, FormatError("wrong", offset=12)) is None
    assert report.attempt(refuse, StaleIndexError("stale"), severity="warning") is None
    assert report.problems == [("error", 12, "byte 12: wrong"), ("warning", None, "stale")]
    assert not report.ok


@pytest.mark.parametrize("error", [ClosedError("closed"), OSError("disk"), ValueError("argument")])
def test_other_errors_are_no_problems_of_the_file(error):
    report = Report()
    with pytest.raises(type(error)):
        report.attempt(refuse, error)
    assert report.problems == []


def test_what_cannot_be_checked_is_listed_with_its_reason(tmp_path):
    old = embmap.cvc.write(tmp_path / "old.cvc", np.eye(3, dtype="f4"))
    flat = embmap.embd.write(tmp_path / "flat", {"x": np.eye(3, dtype="f4")}, layout="flat")
    for path, reason in ((old, "version 0.1 has none"), (flat, "flat files have none")):
        with embmap.open(path) as file:
            report = file.verify()
        assert report.ok
        assert report.unchecked == [f"checksums: {reason}"]
        assert all(" " not in what.replace("tensor names", "") for what in report.checked)
