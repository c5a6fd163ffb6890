"""The result of ``verify()``: problems, and what was checked and what was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from embmap.errors import ClosedError, EmbmapError

__all__ = ["Problem", "Report"]

Severity = Literal["error", "warning"]
T = TypeVar("T")


class Problem(NamedTuple):
    """One thing that is wrong with a file.

    Attributes
    ----------
    severity : {"error", "warning"}
        "error" for data that is wrong or cannot be read, "warning" for data that breaks a rule of
        the format but can be read.
    offset : int or None
        Where in the file, in bytes; None if the problem has no place.
    message : str
        What is wrong.
    """

    severity: Severity
    offset: int | None
    message: str


@dataclass
class Report:
    """The result of :meth:`EmbeddingFile.verify`.

    Attributes
    ----------
    problems : list of Problem
        What is wrong, in the order of the checks.
    checked : list of str
        What was checked.
    unchecked : list of str
        What could not be checked, each with the reason.
    """

    problems: list[Problem] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no error was found; warnings do not count."""
        return all(problem.severity != "error" for problem in self.problems)

    def attempt(
        self,
        check: Callable[..., T],
        *args: Any,
        what: str | None = None,
        severity: Severity = "error",
    ) -> T | None:
        """Run a check and record the error that it raises, with its offset, as a problem.

        Parameters
        ----------
        check : callable
            The check.
        *args : object
            The arguments of the check.
        what : str, optional
            What it checks, to be listed in `checked`.
        severity : {"error", "warning"}
            The severity of the problem.

        Returns
        -------
        object or None
            What the check returned; None if it raised an EmbmapError.

        Raises
        ------
        ClosedError
            If the file is closed meanwhile: then it is not the file that is wrong.
        """
        if what is not None:
            self.checked.append(what)
        try:
            return check(*args)
        except ClosedError:
            raise
        except EmbmapError as error:
            offset = getattr(error, "offset", None)
            self.problems.append(Problem(severity, offset, str(error)))
            return None

    def skipped(self, why: str) -> None:
        """Record that something could not be checked.

        Parameters
        ----------
        why : str
            What was not checked, and the reason.
        """
        self.unchecked.append(why)

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
            Which rule the file breaks.
        offset : int, optional
            Where in the file, in bytes.
        """
        self.problems.append(Problem("warning", offset, message))
