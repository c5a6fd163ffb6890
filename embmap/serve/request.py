"""A request to a model, and the checks before it is answered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from embmap.client.interface import ARROW, JSON, NPY
from embmap.dwe import DweFile
from embmap.embedding_file import EmbeddingFile
from embmap.serve.leased import LeasedMap
from embmap.serve.models import Version
from embmap.serve.problems import Problem
from embmap.serve.representations import choose, has_arrow
from embmap.serve.request_fields import Fields, check_word, refuse
from embmap.serve.settings import Limits
from embmap.vectors.matrix import Matrix

__all__ = [
    "Call",
    "at_asked_step",
    "check_size",
    "check_time_steps",
    "check_vectors",
    "check_words",
]


@dataclass(slots=True, kw_only=True)
class Call:
    """A request to a model.

    Attributes
    ----------
    version : Version
        The file as it is now.
    file : EmbeddingFile
        ``version.file``, or ``version.cached`` or the file of ``version.mapped`` on the event loop.
    fields : Fields
        The fields of the query or the body.
    word : str or None
        The word in the path.
    accept : str or None
        The Accept header.
    limits : Limits
        The bounds of requests and answers.
    """

    version: Version
    file: EmbeddingFile
    fields: Fields
    word: str | None
    accept: str | None
    limits: Limits

    def check_quick(self, *, quick: bool) -> None:
        """Raise BlockingIOError on the event loop, so that a thread does what takes long."""
        if not quick and self.file is not self.version.file:
            raise BlockingIOError

    @property
    def mapped(self) -> LeasedMap | None:
        """The map that the answer is read from, if it is."""
        mapped = self.version.mapped
        return mapped if mapped is not None and mapped.file is self.file else None

    def take_word(self) -> str:
        """Return the word in the path or in the query."""
        if self.word is None:
            return self.fields.word("word")
        return check_word(self.word)

    def choose_media_type(self, *, vectors: bool = False) -> str:
        """Return the media type of the answer: JSON, or also .npy and Arrow for vectors."""
        offered = [JSON, NPY] if vectors else [JSON]
        if vectors and self.accept and ARROW in self.accept.lower() and has_arrow():
            offered.append(ARROW)
        return choose(self.accept, offered)


def check_words(file: EmbeddingFile) -> None:
    """Refuse to look for words in a file without words."""
    if file.vocab is None:
        message = "this file has no words: ask by row, or start the server with --vocab"
        raise Problem(422, "no_words", message)


def check_vectors(file: EmbeddingFile) -> Matrix:
    """Return the vectors of a file, or refuse if it has none."""
    if file.vectors is None:
        raise Problem(422, "no_vectors", "this file has no vectors, or more than one column")
    return file.vectors


def at_asked_step(call: Call) -> EmbeddingFile:
    """Take the field ``t`` and return the file at that time step, by default the last."""
    if "t" not in call.fields:
        return call.file.at()
    file = check_time_steps(call.file)
    try:
        return file.at(call.fields.step("t"))
    except (IndexError, ValueError) as error:
        refuse(f"'t': {error}")


def check_size(call: Call, n: int, file: EmbeddingFile) -> int:
    """Return how many bytes `n` vectors take, or refuse if the answer would be too large."""
    nbytes = n * math.prod(file.shape[1:]) * max(file.dtype.itemsize, 4)
    most = call.limits.answer_nbytes
    if nbytes > most:
        refuse(f"the vectors must take at most {most} bytes, not {nbytes}", "too_many")
    return nbytes


def check_time_steps(file: EmbeddingFile) -> DweFile:
    """Return a file with time steps, or refuse."""
    if file.num_timesteps is None:
        raise Problem(422, "no_timesteps", f"{file.format} files have no time steps")
    return cast(DweFile, file)
