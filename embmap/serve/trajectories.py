"""Words over time, in files with time steps."""

from __future__ import annotations

from typing import cast

import numpy as np

from embmap.dwe import TimestepFile
from embmap.search.lengths import measure_lengths
from embmap.serve.representations import Answer, as_numbers, json_answer
from embmap.serve.request import Call, at_asked_step, check_size, check_time_steps, check_words
from embmap.serve.searches import answer_neighbors
from embmap.words.time_labels import name_step

__all__ = ["related", "trajectory"]


def trajectory(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/trajectory/{word}``."""
    fields, file = call.fields, check_time_steps(call.file)
    call.choose_media_type()
    word = call.take_word()
    other = fields.word("to") if "to" in fields else None
    with_vectors = fields.flag("vectors")
    fields.check_rest()
    check_words(file)
    check_size(call, 1, file)
    words = [word] if other is None else [word, other]
    found = file.batch(words).astype(np.float64)
    compared = found[0][:1] if other is None else found[1]
    lengths = measure_lengths(found[0]) * measure_lengths(compared)
    with np.errstate(all="ignore"):
        cosines = np.vecdot(found[0], compared) / lengths
    facts = {
        "word": word,
        "row": int(file.find([word])[0]),
        "to": other,
        "values": as_numbers(cosines),
    }
    if file.timestep_labels:
        facts["labels"] = list(file.timestep_labels)
    if with_vectors:
        facts["vectors"] = as_numbers(found[0].astype(np.float32))
    return json_answer(facts, file.num_timesteps if with_vectors else 0)


def related(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/related/{word}``."""
    fields, file = call.fields, check_time_steps(call.file)
    call.choose_media_type()
    word = call.take_word()
    step = cast(TimestepFile, at_asked_step(call))
    n = fields.number("n", 10, 1, call.limits.neighbors)
    fields.check_rest()
    check_words(file)
    t = name_step(step.t, file.num_timesteps, file.timestep_labels)
    found = file.most_related(word, t, min(n, max(len(file) - 1, 0)))
    label = {} if step.label is None else {"label": step.label}
    return answer_neighbors(found, word=word, t=step.t, **label)
