"""A request to a model, and what is asked of the model before it is answered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from embmap.dwe import DweFile
from embmap.embedding_file import EmbeddingFile
from embmap.serve.fields import Fields, checked_word, refuse
from embmap.serve.models import Version
from embmap.serve.problems import Problem
from embmap.serve.representations import ARROW, JSON, NPY, arrow_is_there, chosen
from embmap.serve.settings import Limits
from embmap.vectors.matrix import Matrix

__all__ = ["Call", "asked_file", "check_size", "check_vectors", "check_words", "dynamic_file"]


@dataclass(slots=True, kw_only=True)
class Call:
    """A request to a model.

    Attributes
    ----------
    version : Version
        The file as it is now.
    file : EmbeddingFile
        It, open; or opened to be read from memory only, where others wait for the answer.
    fields : Fields
        What the request says.
    word : str or None
        The word in its path, if that has one.
    accept : str or None
        The media types it accepts.
    limits : Limits
        What is refused.
    """

    version: Version
    file: EmbeddingFile
    fields: Fields
    word: str | None
    accept: str | None
    limits: Limits

    def check_quick(self, *, quick: bool) -> None:
        """Leave what takes long to a thread."""
        if not quick and self.file is self.version.cached:
            raise BlockingIOError

    def path_word(self) -> str:
        """Return the word in the path, or in the query: "." and ".." cannot stand in a path."""
        if self.word is None:
            return self.fields.word("word")
        return checked_word(self.word)

    def media_type(self, *, many: bool = True) -> str:
        """Return how vectors are to be sent."""
        offered = [JSON, NPY] if many else [JSON]
        if many and self.accept and ARROW in self.accept.lower() and arrow_is_there():
            offered.append(ARROW)
        return chosen(self.accept, offered)


def check_words(file: EmbeddingFile) -> None:
    """Refuse to look for words in a file that has none."""
    if file.vocab is None:
        raise Problem(422, "no_words", "this file has no words; start with --vocab, or ask by row")


def check_vectors(file: EmbeddingFile) -> Matrix:
    """Return the vectors of a file, or refuse where it has none."""
    if file.vectors is None:
        raise Problem(422, "no_vectors", "this file has no vectors, or more than one column")
    return file.vectors


def asked_file(call: Call) -> EmbeddingFile:
    """Take ``t`` and return the file at that time step."""
    if "t" not in call.fields:
        return call.file.at()
    steps = dynamic_file(call.file).num_timesteps
    return call.file.at(call.fields.number("t", -1, -steps, steps - 1))


def check_size(call: Call, n: int, file: EmbeddingFile) -> int:
    """Refuse an answer that would be too large."""
    nbytes = n * math.prod(file.shape[1:]) * max(file.dtype.itemsize, 4)
    if nbytes > call.limits.answer_nbytes:
        refuse(f"that would be {nbytes} bytes of vectors; ask for fewer at once", "too_many")
    return nbytes


def dynamic_file(file: EmbeddingFile) -> DweFile:
    """Return a file with time steps, or refuse."""
    if file.num_timesteps is None:
        raise Problem(422, "no_timesteps", f"{file.format} files have no time steps")
    return cast(DweFile, file)
