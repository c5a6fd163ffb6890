"""Vectors of words and rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.client.interface import ARROW, JSON, MISSING, NPY, Missing
from embmap.embedding_file import EmbeddingFile
from embmap.serve.problems import Problem, unknown_word
from embmap.serve.representations import (
    Answer,
    as_numbers,
    json_answer,
    npy_file,
    vectors_answer,
)
from embmap.serve.request import (
    Call,
    at_asked_step,
    check_size,
    check_time_steps,
    check_vectors,
    check_words,
)
from embmap.serve.request_fields import refuse

__all__ = ["check_rows", "lookup", "vectors"]

# Answers that take at most a millisecond or two: bytes of vectors, letters of composed words.
_QUICK_NBYTES = {JSON: 1 << 16, NPY: 1 << 21, ARROW: 1 << 19}
_QUICK_LETTERS = 64


def vectors(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/vectors/{word}``: one vector, of a DWE file at a time step."""
    word, media_type = call.take_word(), call.choose_media_type(vectors=True)
    file = at_asked_step(call)
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
    missing = cast(Missing, fields.choice("missing", MISSING))
    over_time = fields.flag("trajectories")
    with_vectors = fields.flag("vectors", default=True)
    facts: dict[str, Any] = {}
    words: list[str] | None = None
    asked: list[int] = []
    if ("words" in fields) == ("rows" in fields):
        refuse("the body must have either 'words' or 'rows'")
    if "words" in fields:
        words = facts["words"] = fields.words("words")
    else:
        asked = fields.rows("rows")
    if over_time and "t" in fields:
        refuse("the body must not have both 't' and 'trajectories'")
    file = check_time_steps(call.file) if over_time else at_asked_step(call)
    fields.check_rest()
    media_type = call.choose_media_type(vectors=with_vectors)
    if with_vectors:
        check_vectors(file)
        nbytes = check_size(call, len(asked if words is None else words), file)
        call.check_quick(quick=nbytes <= _QUICK_NBYTES[media_type])
    if words is None:
        rows = check_rows(asked, file.shape[0])
    else:
        check_words(file)
        if call.mapped is not None:
            call.mapped.check_words(words)
        rows = file.find(words)
        if missing == "subwords":
            letters = sum(len(words[i]) for i in np.flatnonzero(rows < 0).tolist())
            call.check_quick(quick=letters <= _QUICK_LETTERS)
        if missing == "error":
            check_known(words, rows)
    if with_vectors and call.mapped is not None:
        call.mapped.check_rows(rows[rows >= 0])
    if with_vectors and media_type == NPY:
        return _as_npy(file, words, rows, compose=missing == "subwords")
    facts["rows"] = [row if row >= 0 else None for row in rows.tolist()]
    if not with_vectors:
        return json_answer(facts)
    found, known = look_up(file, words, rows, compose=missing == "subwords")
    absent = np.flatnonzero(~known).tolist()
    if media_type == ARROW:
        return vectors_answer(ARROW, facts, found, absent)
    facts["vectors"] = as_numbers(found)
    if absent:
        facts["vectors"] = list(facts["vectors"])
        for i in absent:
            facts["vectors"][i] = None
    return json_answer(facts, int(known.sum()))


def _as_npy(
    file: EmbeddingFile, words: list[str] | None, rows: npt.NDArray[np.int64], *, compose: bool
) -> Answer:
    """Return the vectors of rows as .npy. Stored ones are written straight into the answer."""
    if file.dtype.kind in "iuf" and (rows >= 0).all():
        npy, out = npy_file((len(rows), *file.shape[1:]), file.dtype)
        check_vectors(file).take(rows, out)
        return vectors_answer(NPY, {}, out, (), npy=npy)
    found, known = look_up(file, words, rows, compose=compose)
    return vectors_answer(NPY, {}, found, np.flatnonzero(~known).tolist())


def look_up(
    file: EmbeddingFile, words: list[str] | None, rows: npt.NDArray[np.int64], *, compose: bool
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the vectors of n rows, and which are known: (n,) bool. Unknown vectors are zeros.

    `rows` holds -1 for unknown words; with `compose` they are composed from subwords.
    """
    known = rows >= 0
    safe = np.where(known, rows, 0) if len(file) else rows[known]
    found = check_vectors(file).take(safe)
    if len(found) < len(rows):  # in an empty file, no row is known
        found = np.zeros((len(rows), *found.shape[1:]), found.dtype)
    found[~known] = 0
    if words is not None and compose:
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


def check_rows(rows: list[int], n_rows: int) -> npt.NDArray[np.int64]:
    """Return rows as an array, or refuse if one does not exist."""
    for row in rows:
        if row >= n_rows:
            raise Problem(404, "unknown_row", f"a row must be below {n_rows}, not {row}")
    return np.array(rows, np.int64)
