"""Vectors of words and rows. Handlers know nothing of HTTP but problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.serve.fields import refuse
from embmap.serve.problems import Problem, unknown_word
from embmap.serve.representations import (
    ARROW,
    JSON,
    NPY,
    Answer,
    as_numbers,
    json_answer,
    vectors_answer,
)
from embmap.serve.request import (
    Call,
    asked_file,
    check_size,
    check_vectors,
    check_words,
    dynamic_file,
)

__all__ = ["lookup", "vectors"]

# What takes a millisecond or two at the most: bytes of vectors, letters of words to be composed.
_QUICK_NBYTES = {JSON: 1 << 16, NPY: 1 << 19, ARROW: 1 << 19}
_QUICK_LETTERS = 64
MISSING = ("error", "null", "subwords")


def vectors(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/vectors/{word}``: one vector, of a DWE file at a time step."""
    word, media_type = call.path_word(), call.media_type()
    file = asked_file(call)
    matrix = check_vectors(file)
    call.fields.check_rest()
    check_words(file)
    row = int(file.find([word])[0])
    if row < 0:
        call.check_quick(quick=len(word) <= _QUICK_LETTERS)
    found = matrix.row(row) if row >= 0 else file.batch([word])[0]
    known = row if row >= 0 else None
    if media_type == NPY:
        answer = vectors_answer(NPY, {}, found, ())
        return answer._replace(n_vectors=1)
    if media_type == ARROW:
        facts = {"words": [word], "rows": [known]}
        return vectors_answer(ARROW, facts, found[np.newaxis], ())
    return json_answer({"word": word, "row": known, "vector": as_numbers(found)}, 1)


def lookup(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/lookup``: many vectors."""
    fields = call.fields
    missing = fields.choice("missing", MISSING)
    over_time = fields.flag("trajectories")
    with_vectors = fields.flag("vectors", default=True)
    facts: dict[str, Any] = {}
    words: list[str] | None = None
    asked: list[int] = []
    if ("words" in fields) == ("rows" in fields):
        refuse("ask for either 'words' or 'rows'")
    if "words" in fields:
        words = facts["words"] = fields.words("words")
    else:
        asked = fields.rows("rows")
    if over_time and "t" in fields:
        refuse("ask for either 't' or 'trajectories'")
    file = dynamic_file(call.file) if over_time else asked_file(call)
    fields.check_rest()
    media_type = call.media_type(many=with_vectors)
    if with_vectors:
        check_vectors(file)
        nbytes = check_size(call, len(asked if words is None else words), file)
        call.check_quick(quick=nbytes <= _QUICK_NBYTES[media_type])
    if words is None:
        rows = existing(asked, file)
    else:
        check_words(file)
        rows = file.find(words)
        if missing == "subwords":
            letters = sum(len(words[i]) for i in np.flatnonzero(rows < 0).tolist())
            call.check_quick(quick=letters <= _QUICK_LETTERS)
        if missing == "error":
            check_known(words, rows)
    facts["rows"] = [row if row >= 0 else None for row in rows.tolist()]
    if not with_vectors:
        return json_answer(facts)
    found, known = look_up(file, words, rows, missing)
    absent = np.flatnonzero(~known).tolist()
    if media_type != JSON:
        return vectors_answer(media_type, facts, found, absent)
    facts["vectors"] = as_numbers(found)
    if absent:
        facts["vectors"] = list(facts["vectors"])
        for i in absent:
            facts["vectors"][i] = None
    return json_answer(facts, int(known.sum()))


def look_up(
    file: EmbeddingFile, words: list[str] | None, rows: npt.NDArray[np.int64], missing: str
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the vectors of words or rows, and which of them there are."""
    known = rows >= 0
    safe = np.where(known, rows, 0) if len(file) else rows[known]
    found = check_vectors(file).take(safe)
    if len(found) < len(rows):  # nothing is known in an empty file
        found = np.zeros((len(rows), *found.shape[1:]), found.dtype)
    found[~known] = 0
    if words is not None and missing == "subwords":
        for i in np.flatnonzero(~known).tolist():
            vector = file.get(words[i])
            if vector is not None:
                found = found.astype(np.result_type(found, vector), copy=False)
                found[i], known[i] = vector, True
    return found, known


def check_known(words: list[str], rows: npt.NDArray[np.int64]) -> None:
    """Refuse unknown words."""
    unknown = np.flatnonzero(rows < 0)
    if unknown.size:
        raise unknown_word(words[int(unknown[0])], unknown.size)


def existing(rows: list[int], file: EmbeddingFile) -> npt.NDArray[np.int64]:
    """Return rows that all exist, or refuse."""
    n_rows = file.shape[0]
    for row in rows:
        if row >= n_rows:
            raise Problem(404, "unknown_row", f"there is no row {row}; the file has {n_rows}")
    return np.array(rows, np.int64)
