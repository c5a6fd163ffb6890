"""One time step of a DWE file as a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

from embmap.embedding_file import EmbeddingFile
from embmap.formats.dwe.groups import Groups
from embmap.formats.dwe.layout import FORMAT
from embmap.formats.dwe.timestep import Timestep
from embmap.progress import Progress
from embmap.report import Report
from embmap.words.time_labels import TimeLabel, name_step

__all__ = ["TimestepFile", "open_step", "verify_groups"]

_MOST_SHOWN = 10  # problems of a time step that are reported one by one


class TimestepFile(EmbeddingFile):
    """One time step of a DWE file as a file of its own, which :meth:`DweFile.at` returns."""

    format: ClassVar[str] = FORMAT
    label: TimeLabel | None = None
    """The label of the time step, such as a year; None if it has none."""
    _matrix: Timestep

    @property
    def t(self) -> int:
        """The time step, counted from 0."""
        return self._matrix.t

    @property
    def vectors(self) -> Timestep:
        """The vectors: shape (V, K), float32; ``.quantized`` is the int16 matrix behind them."""
        self._check_open()
        return self._matrix

    def _beside(self, suffix: str) -> Path:
        """Return the path of an index over this step; each step has an index of its own."""
        return super()._beside(f".{self.t}{suffix}")

    def __repr__(self) -> str:
        """Name the file, the time step and the sizes; reads nothing."""
        if self.closed:
            return super().__repr__()
        label = "" if self.label is None else f" ({self.label})"
        return f"{super().__repr__()[:-1]}, time step {self.t}{label}>"

    def info(self) -> dict[str, Any]:
        """Return what is known about the time step without reading its data.

        Returns
        -------
        dict
            The keys of :meth:`EmbeddingFile.info`, the number of the time step, and its label if it
            has one.
        """
        label = {} if self.label is None else {"label": self.label}
        return super().info() | {"timestep": self.t} | label

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        report.checked.append("groups")
        verify_groups(self._matrix.groups, self.t, report)
        if progress is not None:
            progress("decoding timesteps", 1, 1)


def open_step(reopen: Callable[[], EmbeddingFile], t: int) -> EmbeddingFile:
    """Open a file again and return one of its time steps."""
    file = reopen()
    return file.at(name_step(t, cast(int, file.num_timesteps), file.timestep_labels))


def verify_groups(groups: Groups, t: int, report: Report) -> tuple[int, int] | None:
    """Decode a time step; return its last position and state, or None if that is impossible."""
    found = report.attempt(groups.check, t)
    if found is None:
        return None
    problems, end = found
    for problem in problems[:_MOST_SHOWN]:
        report.error(str(problem), problem.offset)
    if len(problems) > _MOST_SHOWN:
        more = len(problems) - _MOST_SHOWN
        report.error(f"{more} more groups of timestep {t} are damaged", problems[-1].offset)
    return end
