"""What is near: similar words, analogies, and words by their beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embmap.errors import UnknownWordError
from embmap.search.queries import METRICS, Neighbor
from embmap.serve.fields import refuse
from embmap.serve.problems import Problem
from embmap.serve.representations import Answer, json_answer
from embmap.serve.request import Call, asked_file, check_vectors, check_words

__all__ = ["analogy", "complete", "neighbors_answer", "similar"]


def similar(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/similar``."""
    fields, file = call.fields, asked_file(call)
    call.media_type(many=False)
    n = fields.number("n", 10, 1, call.limits.neighbors)
    metric: Any = fields.choice("metric", METRICS)
    if ("word" in fields) == ("vector" in fields):
        refuse("ask for either a 'word' or a 'vector'")
    query: Any = fields.word("word") if "word" in fields else None
    if query is None:
        check_vectors(file)
        query = fields.vector("vector", file.dim)
    else:
        check_words(file)
    fields.check_rest()
    check_vectors(file)
    return neighbors_answer(_searched(file.most_similar, query, n, metric))


def analogy(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/analogy``."""
    fields = call.fields
    call.media_type(many=False)
    a, b, c = fields.word("a"), fields.word("b"), fields.word("c")
    n = fields.number("n", 10, 1, call.limits.neighbors)
    file = asked_file(call)
    fields.check_rest()
    check_words(file)
    check_vectors(file)
    return neighbors_answer(_searched(file.analogy, a, b, c, n))


def complete(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/complete``."""
    fields = call.fields
    call.media_type(many=False)
    prefix = fields.word("prefix") if "prefix" in fields else ""
    n = fields.number("n", 10, 1, call.limits.neighbors)
    fields.check_rest()
    check_words(call.file)
    completion = call.version.completion
    words = completion.starting_with(prefix, n)
    return json_answer({"words": words, "whole": completion.is_whole})


def neighbors_answer(found: Sequence[Neighbor], **facts: Any) -> Answer:
    """Return a ranking."""
    neighbors = [
        {"row": row, "word": word, "score": score if np.isfinite(score) else None}
        for row, word, score in found
    ]
    return json_answer({**facts, "neighbors": neighbors})


def _searched(search: Any, *arguments: Any) -> list[Neighbor]:
    try:
        found: list[Neighbor] = search(*arguments)
    except UnknownWordError:
        raise
    except ValueError as error:
        if "not finite" in str(error):
            raise Problem(422, "not_finite", "this word's vector is not finite") from None
        raise
    return found
