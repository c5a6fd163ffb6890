"""The routes of a server, from which the application and its description are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from embmap.client.interface import MODEL_TASK, MODELS
from embmap.serve import lookups, searches, trajectories
from embmap.serve.representations import Answer
from embmap.serve.request import Call

__all__ = [
    "COUNTS",
    "DESCRIPTION",
    "HEALTH",
    "MODELS",
    "PAGE",
    "STATIC",
    "TASKS",
    "Task",
    "paths_of",
]

HEALTH = "/healthz"
COUNTS = "/metrics"
DESCRIPTION = "/openapi.json"
PAGE = "/"
STATIC = "/static/"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A question about one file, and the function that answers it.

    Attributes
    ----------
    has_word : bool
        Whether it is about a word, which is in the path or, as "." and ".." cannot be, in the
        query.
    is_quick : bool
        Whether it is answered on the event loop if nothing has to be read from a disk.
    is_search : bool
        Whether it takes the slots and threads of searches instead of look-ups.
    """

    method: str
    answer: Callable[[Call], Answer]
    has_word: bool = False
    is_quick: bool = False
    is_search: bool = False


TASKS = {
    "vectors": Task(method="GET", answer=lookups.vectors, has_word=True, is_quick=True),
    "lookup": Task(method="POST", answer=lookups.lookup, is_quick=True),
    "similar": Task(method="POST", answer=searches.similar, is_search=True),
    "analogy": Task(method="POST", answer=searches.analogy, is_search=True),
    "rank": Task(method="POST", answer=searches.rank, is_search=True),
    "complete": Task(method="GET", answer=searches.complete, is_search=True),
    "trajectory": Task(method="GET", answer=trajectories.trajectory, has_word=True),
    "related": Task(method="GET", answer=trajectories.related, has_word=True, is_search=True),
}


def paths_of(name: str) -> Iterator[tuple[str, bool]]:
    """Yield the templates of a task's paths, and whether the word is in that path."""
    path = MODEL_TASK.replace("{task}", name)
    if TASKS[name].has_word:
        yield f"{path}/{{word}}", True
    yield path, False
