"""Checks of a server's answers.

The server may be another program, or hostile. Every answer of an unexpected form is a RemoteError,
and no check takes more memory than the answer itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from embmap.client.connections import RemoteError, Reply
from embmap.client.interface import NPY, ModelFacts
from embmap.search.queries import Neighbor
from embmap.words.time_labels import check_labels, parse_labels

__all__ = [
    "NPY",
    "checked_facts",
    "checked_limits",
    "models_of",
    "most_nbytes",
    "neighbors_of",
    "rank_of",
    "rows_of",
    "vectors_of",
]

_LARGEST = 1 << 63  # no array has this many elements
_HEADER = re.compile(  # only what numpy writes, so that nothing has to be evaluated
    rb"\{'descr': '([<>|][fiu][1248])', 'fortran_order': False, "
    rb"'shape': \(([0-9, ]{0,200})\), \} *\n"
)
_HEADER_NBYTES = 1 << 12  # more than numpy's header takes
_DTYPE = re.compile(r"[<>|]?[fiu][1248]|(float|int|uint)(8|16|32|64)|bfloat16")


def refuse(reason: str) -> NoReturn:
    """Raise the error of an answer that embmap does not send."""
    raise RemoteError(200, "garbled", f"the answer does not come from embmap serve: {reason}")


def _member(answer: Any, name: str, kinds: tuple[type, ...]) -> Any:
    """Return a member of a JSON object, which must be of one of some types."""
    if isinstance(answer, dict) and name in answer and type(answer[name]) in kinds:
        return answer[name]
    refuse(f"there is no valid {name!r}")


def _size(answer: Any, name: str) -> int:
    """Return a member of a JSON object, which must be a size."""
    value: int = _member(answer, name, (int,))
    if not 0 <= value < _LARGEST:
        refuse(f"there is no valid {name!r}")
    return value


def models_of(answer: Any) -> list[ModelFacts]:
    """Return the files that a server lists; :func:`checked_facts` checks the rest of one."""
    models = cast(list[ModelFacts], _member(answer, "models", (list,)))
    for facts in models:
        _member(facts, "available", (bool,))
        try:
            _member(facts, "name", (str,)).encode()
        except UnicodeEncodeError:
            refuse("a name is not valid Unicode")
    return models


def checked_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of an available file, checked."""
    _member(facts, "format", (str,))
    _member(facts, "words", (bool,))
    _size(facts, "count")
    n_steps = 1 if facts.get("timesteps") is None else _size(facts, "timesteps")
    labels = _member(facts, "labels", (list,)) if "labels" in facts else []
    try:
        check_labels(parse_labels(labels), n_steps)
    except ValueError as error:
        refuse(str(error))
    if _DTYPE.fullmatch(_member(facts, "dtype", (str,))) is None:
        refuse("there is no valid 'dtype'")
    if 8 * _size(facts, "rows") * _size(facts, "dim") * n_steps >= _LARGEST:
        refuse("no array has its sizes")
    return facts


def checked_limits(answer: Any) -> dict[str, int]:
    """Return the server's limits of a request, checked."""
    limits = _member(answer, "limits", (dict,))
    return {name: _size(limits, name) for name in ("words", "body_nbytes", "answer_nbytes")}


def rows_of(answer: Any, n: int, n_rows: int) -> list[int]:
    """Return the rows of `n` words, -1 for unknown words."""
    rows = [-1 if row is None else row for row in _member(answer, "rows", (list,))]
    if len(rows) != n or not all(type(row) is int and -1 <= row < n_rows for row in rows):
        refuse(f"there are no {n} valid rows")
    return rows


def neighbors_of(answer: Any) -> list[Neighbor]:
    """Return the neighbors in an answer."""
    found = []
    for each in _member(answer, "neighbors", (list,)):
        row, word = _size(each, "row"), _member(each, "word", (str, type(None)))
        score = _member(each, "score", (float, int, type(None)))
        if type(score) is int and abs(score) >= _LARGEST:
            refuse("there is no valid 'score'")
        found.append(Neighbor(row, word, math.nan if score is None else float(score)))
    return found


def rank_of(answer: Any) -> int:
    """Return the rank in an answer."""
    return _size(answer, "rank")


def most_nbytes(shape: Sequence[int]) -> int:
    """Return the greatest size of vectors as .npy."""
    return 8 * math.prod(shape) + _HEADER_NBYTES


def vectors_of(
    reply: Reply, shape: tuple[int, ...], *, may_miss: bool
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return vectors of a shape, and the positions of the missing ones: int64."""
    if reply.media_type != NPY:
        refuse(f"it is {reply.media_type[:100]!r}, not vectors")
    content = reply.content
    begin = 10  # magic, version and the length of the header
    end = begin + int.from_bytes(content[8:10], "little")
    header = _HEADER.fullmatch(content, begin, end)
    if bytes(content[:8]) != b"\x93NUMPY\x01\x00" or header is None:
        refuse("its vectors cannot be read")
    dtype = np.dtype(header[1].decode())
    found = tuple(int(size) for size in header[2].split(b",") if size.strip())
    if found != shape or len(content) - end != math.prod(shape) * dtype.itemsize:
        refuse(f"it does not hold vectors of shape {shape}")
    vectors = np.frombuffer(content, dtype, offset=end).reshape(shape)
    positions = reply.missing.split(",") if reply.missing else []
    if not all(each.isdecimal() and each.isascii() and len(each) < 19 for each in positions):
        refuse("it does not list the positions of missing vectors")
    missing = np.array([int(each) for each in positions], np.int64)
    if missing.size and (not may_miss or missing.max() >= shape[0]):
        refuse("it lacks vectors of rows that exist")
    return vectors, missing
