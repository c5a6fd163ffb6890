"""What each route answers. These run in threads and know nothing of HTTP but problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.embedding_file import EmbeddingFile
from embmap.errors import UnknownWordError
from embmap.exact_search import lengths_of
from embmap.formats.dwe.file import DweFile
from embmap.serve.asking import Fields, checked_word, refuse
from embmap.serve.models import Version
from embmap.serve.problems import Problem, unknown_word
from embmap.serve.representations import (
    ARROW,
    JSON,
    NPY,
    Answer,
    arrow_is_there,
    as_numbers,
    chosen,
    json_answer,
    vectors_answer,
)
from embmap.serve.settings import Limits
from embmap.similarity import Neighbor

__all__ = ["Call", "analogy", "complete", "lookup", "related", "similar", "trajectory", "vectors"]

METRICS = ("cosine", "dot", "euclidean")
_QUICK_NBYTES = 1 << 19  # of vectors: less time than a thread takes to wake up
MISSING = ("error", "null", "subwords")


@dataclass(frozen=True)
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
        """Leave what takes long to a thread.

        Parameters
        ----------
        quick : bool
            Whether what follows takes about a millisecond.

        Raises
        ------
        BlockingIOError
            When it does not, and others wait.
        """
        if not quick and self.file is self.version.cached:
            raise BlockingIOError

    def path_word(self) -> str:
        """Return the word in the path, or in the query: "." and ".." cannot stand in a path.

        Returns
        -------
        str
            Checked.
        """
        if self.word is None:
            return self.fields.word("word")
        return checked_word(self.word, self.limits)

    def media_type(self, *, many: bool = True) -> str:
        """Return how vectors are to be sent.

        Parameters
        ----------
        many : bool
            False where only JSON is there.

        Returns
        -------
        str
            A media type.
        """
        offered = [JSON, NPY] if many else [JSON]
        if many and self.accept and ARROW in self.accept and arrow_is_there():
            offered.append(ARROW)
        return chosen(self.accept, offered)


def vectors(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/vectors/{word}``: one vector, of a DWE file the last step's.

    Parameters
    ----------
    call : Call
        The request.

    Returns
    -------
    Answer
        Word, row (null where it was composed from subwords), vector.
    """
    word, media_type = call.path_word(), call.media_type()
    call.fields.check_rest()
    check_words(call.file)
    check_vectors(call.file)
    row = int(call.file.find([word])[0])
    found = check_vectors(call.file).row(row) if row >= 0 else call.file.batch([word])[0]
    known = row if row >= 0 else None
    if media_type == NPY:
        answer = vectors_answer(NPY, {}, found, ())
        return answer._replace(n_vectors=1)
    if media_type == ARROW:
        facts = {"words": [word], "rows": [known]}
        return vectors_answer(ARROW, facts, found[np.newaxis], ())
    return json_answer({"word": word, "row": known, "vector": as_numbers(found)}, 1)


def lookup(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/lookup``: many vectors.

    Parameters
    ----------
    call : Call
        The request.

    Returns
    -------
    Answer
        Rows, vectors, and words if they were asked for.
    """
    fields, file = call.fields, call.file
    missing = fields.choice("missing", MISSING)
    over_time = fields.flag("trajectories")
    facts: dict[str, Any] = {}
    words: list[str] | None = None
    asked: list[int] = []
    if ("words" in fields) == ("rows" in fields):
        refuse("ask for either 'words' or 'rows'")
    if "words" in fields:
        words = facts["words"] = fields.words("words")
    else:
        asked = fields.rows("rows")
    fields.check_rest()
    media_type = call.media_type()
    check_vectors(file)
    dynamic = dynamic_file(file) if over_time else None
    nbytes = check_size(call, len(asked if words is None else words), dynamic)
    call.check_quick(quick=nbytes <= _QUICK_NBYTES and missing != "subwords")
    if words is None:
        rows = existing(asked, file)
    else:
        check_words(file)
        rows = file.find(words)
    found, known = look_up(file, words, rows, missing, dynamic)
    facts["rows"] = [row if row >= 0 else None for row in rows.tolist()]
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
    file: EmbeddingFile,
    words: list[str] | None,
    rows: npt.NDArray[np.int64],
    missing: str,
    dynamic: DweFile | None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the vectors of words or rows, and which of them there are.

    Parameters
    ----------
    file : EmbeddingFile
        The file.
    words : list of str or None
        The words, if words were asked for.
    rows : numpy.ndarray
        Shape (n,), int64: their rows, -1 where absent.
    missing : {"error", "null", "subwords"}
        What to do about those.
    dynamic : DweFile or None
        The same file, when all its time steps are wanted.

    Returns
    -------
    vectors : numpy.ndarray
        Shape (n, dim), or (n, T, dim).
    known : numpy.ndarray
        Shape (n,), bool.
    """
    known = rows >= 0
    if words is not None and not known.all():
        unknown = np.flatnonzero(~known)
        if missing == "error":
            raise unknown_word(words[int(unknown[0])], unknown.size)
        if missing == "subwords" and dynamic is None:
            composed = [file.get(words[i]) for i in unknown.tolist()]
            known[unknown] = [vector is not None for vector in composed]
            vectors = file.batch(words, missing="zero")
            return vectors, known
    safe = np.where(known, rows, 0) if len(file) else rows[known]
    if dynamic is not None:
        found: npt.NDArray[Any] = dynamic.trajectories(safe)
    else:
        matrix = check_vectors(file)
        found = matrix.take(safe)
    if len(found) < len(rows):  # nothing is known in an empty file
        found = np.zeros((len(rows), *found.shape[1:]), found.dtype)
    found[~known] = 0
    return found, known


def similar(call: Call) -> Answer:
    """Answer ``POST /v1/{name}/similar``.

    Parameters
    ----------
    call : Call
        The request.

    Returns
    -------
    Answer
        Neighbors.
    """
    fields, file = call.fields, call.file
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
    """Answer ``POST /v1/{name}/analogy``.

    Parameters
    ----------
    call : Call
        The request.

    Returns
    -------
    Answer
        Neighbors.
    """
    fields = call.fields
    call.media_type(many=False)
    a, b, c = fields.word("a"), fields.word("b"), fields.word("c")
    n = fields.number("n", 10, 1, call.limits.neighbors)
    fields.check_rest()
    check_words(call.file)
    check_vectors(call.file)
    return neighbors_answer(_searched(call.file.analogy, a, b, c, n))


def complete(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/complete``.

    Parameters
    ----------
    call : Call
        The request.

    Returns
    -------
    Answer
        Words that begin so, and whether all words were looked at.
    """
    fields = call.fields
    call.media_type(many=False)
    prefix = fields.word("prefix") if "prefix" in fields else ""
    n = fields.number("n", 10, 1, call.limits.neighbors)
    fields.check_rest()
    check_words(call.file)
    completion = call.version.completion
    words = completion.starting_with(prefix, n)
    return json_answer({"words": words, "whole": completion.is_whole})


def trajectory(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/trajectory/{word}``.

    Parameters
    ----------
    call : Call
        The request.

    Returns
    -------
    Answer
        Cosines with the first step or with another word, and the vectors if asked for.
    """
    fields, file = call.fields, dynamic_file(call.file)
    call.media_type(many=False)
    word = call.path_word()
    other = fields.word("to") if "to" in fields else None
    with_vectors = fields.flag("vectors")
    fields.check_rest()
    check_words(file)
    check_size(call, 1, file)
    words = [word] if other is None else [word, other]
    found = file.trajectories(words).astype(np.float64)
    compared = found[0][:1] if other is None else found[1]
    lengths = lengths_of(found[0]) * lengths_of(compared)
    with np.errstate(all="ignore"):
        cosines = np.vecdot(found[0], compared) / lengths
    facts = {
        "word": word,
        "row": int(file.find([word])[0]),
        "to": other,
        "values": as_numbers(cosines),
    }
    if with_vectors:
        facts["vectors"] = as_numbers(found[0].astype(np.float32))
    return json_answer(facts, file.num_timesteps if with_vectors else 0)


def related(call: Call) -> Answer:
    """Answer ``GET /v1/{name}/related/{word}``.

    Parameters
    ----------
    call : Call
        The request.

    Returns
    -------
    Answer
        Neighbors at a time step, by dot product.
    """
    fields, file = call.fields, dynamic_file(call.file)
    call.media_type(many=False)
    word = call.path_word()
    steps = file.num_timesteps
    t = fields.number("t", -1, -steps, steps - 1)
    n = fields.number("n", 10, 1, call.limits.neighbors)
    fields.check_rest()
    check_words(file)
    found = file.most_related(word, t, min(n, max(len(file) - 1, 0)))
    return neighbors_answer(found, word=word, t=t % steps)


def neighbors_answer(found: Sequence[Neighbor], **facts: Any) -> Answer:
    """Return a ranking.

    Parameters
    ----------
    found : sequence of Neighbor
        The words.
    **facts : object
        What stands beside them.

    Returns
    -------
    Answer
        Scores that are not finite become null.
    """
    neighbors = [
        {"row": row, "word": word, "score": score if np.isfinite(score) else None}
        for row, word, score in found
    ]
    return json_answer({**facts, "neighbors": neighbors})


def check_words(file: EmbeddingFile) -> None:
    """Refuse to look for words in a file that has none.

    Parameters
    ----------
    file : EmbeddingFile
        The file.
    """
    if file.vocab is None:
        raise Problem(422, "no_words", "this file has no words; start with --vocab, or ask by row")


def check_vectors(file: EmbeddingFile) -> Any:
    """Return the vectors of a file, or refuse where it has none.

    Parameters
    ----------
    file : EmbeddingFile
        The file.

    Returns
    -------
    Matrix
        Its vectors.
    """
    if file.vectors is None:
        raise Problem(422, "no_vectors", "this file has no vectors, or more than one column")
    return file.vectors


def check_size(call: Call, n: int, dynamic: DweFile | None) -> int:
    """Refuse an answer that would be too large.

    Parameters
    ----------
    call : Call
        The request.
    n : int
        How many vectors or trajectories.
    dynamic : DweFile or None
        The file, where they are trajectories.

    Returns
    -------
    int
        The bytes of its vectors.
    """
    steps = 1 if dynamic is None else dynamic.num_timesteps
    nbytes = n * steps * call.file.dim * max(call.file.dtype.itemsize, 4)
    if nbytes > call.limits.answer_nbytes:
        refuse(f"that would be {nbytes} bytes of vectors; ask for fewer at once", "too_many")
    return nbytes


def dynamic_file(file: EmbeddingFile) -> DweFile:
    """Return a file with time steps, or refuse.

    Parameters
    ----------
    file : EmbeddingFile
        The file.

    Returns
    -------
    DweFile
        The same.
    """
    if not isinstance(file, DweFile):
        raise Problem(422, "no_timesteps", f"{file.format} files have no time steps")
    return file


def existing(rows: list[int], file: EmbeddingFile) -> npt.NDArray[np.int64]:
    """Return rows that all exist, or refuse.

    Parameters
    ----------
    rows : list of int
        The rows.
    file : EmbeddingFile
        The file.

    Returns
    -------
    numpy.ndarray
        Shape (n,), int64.
    """
    n_rows = file.shape[-2]
    for row in rows:
        if row >= n_rows:
            raise Problem(404, "unknown_row", f"there is no row {row}; the file has {n_rows}")
    return np.array(rows, np.int64)


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
