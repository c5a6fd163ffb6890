"""What ``verify()`` found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Problem", "Progress", "Report", "named"]

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done, total)`` by work that may take long; total is 0 if unknown."""


class Problem(NamedTuple):
    """One thing that is wrong with a file.

    Attributes
    ----------
    severity : str
        "error" for data that is wrong or cannot be read, "warning" for what merely breaks a rule.
    offset : int or None
        Where in the file, in bytes.
    message : str
        What is wrong.
    """

    severity: Literal["error", "warning"]
    offset: int | None
    message: str


@dataclass
class Report:
    """The result of checking a whole file.

    Attributes
    ----------
    problems : list of Problem
        What was found, in the order of the checks.
    checked : list of str
        What was looked at.
    """

    problems: list[Problem] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no error was found; warnings do not count."""
        return all(problem.severity != "error" for problem in self.problems)

    def error(self, message: str, offset: int | None = None) -> None:
        """Record an error.

        Parameters
        ----------
        message : str
            What is wrong.
        offset : int, optional
            Where in the file, in bytes.
        """
        self.problems.append(Problem("error", offset, message))

    def warning(self, message: str, offset: int | None = None) -> None:
        """Record a warning.

        Parameters
        ----------
        message : str
            What breaks a rule.
        offset : int, optional
            Where in the file, in bytes.
        """
        self.problems.append(Problem("warning", offset, message))


def named(progress: Progress, what: str) -> Callable[[int, int], None]:
    """Return a callback for one kind of work.

    Parameters
    ----------
    progress : callable
        Called as ``progress(what, done, total)``.
    what : str
        The work.

    Returns
    -------
    callable
        Called as ``step(done, total)``.
    """
    return lambda done, total: progress(what, done, total)
