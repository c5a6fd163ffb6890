"""Progress of long work: the callback that receives it, and a bar on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "named", "progress_bar"]

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done, total)`` by long work; `total` is 0 if unknown."""


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Show a progress bar on stderr, if it is a terminal.

    Yields
    ------
    callable or None
        The callback to pass as `progress`; None if stderr is not a terminal.

    Raises
    ------
    ImportError
        If rich is not installed.

    Examples
    --------
    >>> with embmap.progress_bar() as step:  # doctest: +SKIP
    ...     embmap.cvc.write("out.cvc", vectors, progress=step)
    """
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import TaskID
    except ImportError:
        raise ImportError("a progress bar needs rich: pip install 'embmap[cli]'") from None
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Bar(console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def step(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total or None)
            bar.update(tasks[what], completed=done)

        yield step


def named(progress: Progress, what: str) -> Callable[[int, int], None]:
    """Return a callback ``(done, total)`` for one kind of work."""
    return lambda done, total: progress(what, done, total)
