"""What ``verify()`` found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Problem", "Report"]


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
