"""Similar words, analogies, and words that begin with a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from embmap.search.queries import METRICS, Metric, Neighbor
from embmap.serve.representations import Answer, json_answer
from embmap.serve.request import Call, at_asked_step, check_vectors, check_words
from embmap.serve.request_fields import refuse

__all__ = ["analogy", "answer_neighbors", "complete", "similar"]


def similar(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/similar``."""
    fields, file = call.fields, at_asked_step(call)
    call.choose_media_type()
    n = fields.number("n", 10, 1, call.limits.neighbors)
    metric = cast(Metric, fields.choice("metric", METRICS))
    if ("word" in fields) == ("vector" in fields):
        refuse("the body must have either 'word' or 'vector'")
    query: Any = None
    if "word" in fields:
        query = fields.word("word")
        check_words(file)
    check_vectors(file)
    if query is None:
        query = fields.vector("vector", file.dim)
    fields.check_rest()
    return answer_neighbors(file.most_similar(query, n, metric))


def analogy(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/analogy``."""
    fields = call.fields
    call.choose_media_type()
    a, b, c = fields.word("a"), fields.word("b"), fields.word("c")
    n = fields.number("n", 10, 1, call.limits.neighbors)
    file = at_asked_step(call)
    fields.check_rest()
    check_words(file)
    check_vectors(file)
    return answer_neighbors(file.analogy(a, b, c, n))


def complete(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/complete``."""
    fields = call.fields
    call.choose_media_type()
    prefix = fields.word("prefix") if "prefix" in fields else ""
    n = fields.number("n", 10, 1, call.limits.neighbors)
    fields.check_rest()
    check_words(call.file)
    completion = call.version.completion
    words = completion.starting_with(prefix, n)
    return json_answer({"words": words, "whole": completion.is_whole})


def answer_neighbors(found: Sequence[Neighbor], **facts: Any) -> Answer:
    """Return a ranking as JSON; scores that are not finite become null."""
    neighbors = [
        {"row": row, "word": word, "score": score if np.isfinite(score) else None}
        for row, word, score in found
    ]
    return json_answer({**facts, "neighbors": neighbors})
