"""Similar words, analogies, and words that begin with a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from embmap.embedding_file import EmbeddingFile
from embmap.errors import StaleIndexError
from embmap.search.queries import METRICS, Metric, Neighbor
from embmap.serve.lookups import check_rows
from embmap.serve.problems import Problem
from embmap.serve.representations import Answer, json_answer
from embmap.serve.request import Call, at_asked_step, check_vectors, check_words
from embmap.serve.request_fields import refuse

__all__ = ["analogy", "answer_neighbors", "complete", "rank", "similar"]


def similar(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/similar``."""
    fields, file = call.fields, at_asked_step(call)
    call.choose_media_type()
    n = fields.number("n", 10, 1, call.limits.neighbors)
    metric = cast(Metric, fields.choice("metric", METRICS))
    is_sum = "positive" in fields or "negative" in fields
    if ("word" in fields) + ("vector" in fields) + is_sum != 1:
        refuse("the body must have one of 'word', 'vector', and 'positive' or 'negative'")
    query: Any = None
    if "word" in fields:
        query = fields.word("word")
        check_words(file)
    check_vectors(file)
    dim = fields.number("dim", file.dim, 1, file.dim)
    if "vector" in fields:
        query = fields.vector("vector", (file.dim, dim))
    positive, negative = fields.terms("positive"), fields.terms("negative")
    exclude = _words_and_rows(call, file, "exclude", call.limits.words)
    among: Any = fields.metadata("among")
    if among is None:
        among = _words_and_rows(call, file, "among", call.limits.among)
    if isinstance(among, list) and 0 < sum(isinstance(each, str) for each in among) < len(among):
        refuse("'among' must hold words or rows, not both")
    approximate = fields.flag("approximate")
    fields.check_rest()
    if approximate:
        call.version.approximate.give_to(file)
    try:
        found = file.most_similar(
            query,
            n,
            metric,
            positive=positive,
            negative=negative,
            among=among,
            dim=dim,
            exclude=exclude,
            approximate=approximate,
        )
    except (StaleIndexError, ImportError):
        message = (
            "the server has no valid approximate index of this file; build it with build_ann()"
        )
        raise Problem(422, "stale_index", message) from None
    return answer_neighbors(found)


def _words_and_rows(
    call: Call, file: EmbeddingFile, name: str, most: int
) -> list[str | int] | None:
    """Take a list of words and rows; refuse rows that do not exist."""
    if name not in call.fields:
        return None
    words, rows = call.fields.words_and_rows(name, most)
    return [*words, *check_rows(rows, len(file)).tolist()]


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


def rank(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/rank``."""
    fields = call.fields
    call.choose_media_type()
    word, other = fields.word("word"), fields.word("other")
    file = at_asked_step(call)
    fields.check_rest()
    check_words(file)
    check_vectors(file)
    return json_answer({"rank": file.rank(word, other)})


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
