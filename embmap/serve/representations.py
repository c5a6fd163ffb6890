"""Vectors as JSON, .npy or an Arrow stream, whichever a request accepts."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from embmap.client.interface import ARROW, JSON, MISSING_HEADER, NPY
from embmap.serve.problems import Problem

__all__ = [
    "Answer",
    "as_numbers",
    "choose",
    "has_arrow",
    "json_answer",
    "npy_file",
    "vectors_answer",
]

_ACCEPT_NBYTES = 1024


class Answer(NamedTuple):
    """The body of a response, the number of vectors in it, and further headers."""

    content: bytes | memoryview
    media_type: str = JSON
    n_vectors: int = 0
    headers: dict[str, str] = {}  # noqa: RUF012 (never changed)


def choose(accept: str | None, offered: Sequence[str]) -> str:
    """Return the offered media type that an Accept header prefers."""
    if not accept or not accept.strip():
        return offered[0]
    if len(accept) > _ACCEPT_NBYTES:
        message = f"the Accept header must have at most {_ACCEPT_NBYTES} bytes, not {len(accept)}"
        raise Problem(431, "too_large", message)
    weights = _weights(accept)
    preferences = [_preference(weights, media_type) for media_type in offered]
    best = max(preferences)
    if best <= 0:
        raise Problem(406, "not_acceptable", f"Accept must allow one of {', '.join(offered)}")
    return offered[preferences.index(best)]


def _weights(accept: str) -> dict[str, float]:
    """Return the greatest q of each media range."""
    found: dict[str, float] = {}
    for item in accept.lower().split(","):
        pattern, *parameters = (part.strip() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = min(max(float(parameter[2:]), 0.0), 1.0)
                except ValueError:
                    weight = 0.0
        if not weight >= 0:
            weight = 0.0
        found[pattern] = max(found.get(pattern, 0.0), weight)
    return found


def _preference(weights: dict[str, float], media_type: str) -> float:
    """Return the q of the most specific range that includes a media type, or 0."""
    for pattern in (media_type, f"{media_type.partition('/')[0]}/*", "*/*"):
        if pattern in weights:
            return weights[pattern]
    return 0.0


def json_answer(value: Any, n_vectors: int = 0) -> Answer:
    """Return a value as JSON."""
    return Answer(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), JSON, n_vectors)


def as_numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array in the form that :func:`json_answer` takes."""
    values = plain(values)
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


def plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of a type that every reader supports: bfloat16 becomes float32."""
    return values if values.dtype.kind in "iuf" else values.astype(np.float32)


def vectors_answer(
    media_type: str,
    facts: dict[str, Any],
    vectors: npt.NDArray[Any],
    missing: Sequence[int],
    *,
    npy: memoryview | None = None,
) -> Answer:
    """Return vectors as .npy or an Arrow stream; `missing` holds the positions of zeros.

    `npy` is the file of :func:`npy_file` if the vectors were written into it.
    """
    n_vectors = len(vectors) - len(missing)
    if media_type == NPY:
        if npy is None:
            vectors = plain(vectors)
            npy, room = npy_file(vectors.shape, vectors.dtype)
            room[...] = vectors
        headers = {MISSING_HEADER: ",".join(map(str, missing))} if missing else {}
        return Answer(npy, NPY, n_vectors, headers)
    return Answer(_arrow(facts, plain(vectors), missing), ARROW, n_vectors)


def npy_file(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[memoryview, npt.NDArray[Any]]:
    """Return a .npy file, and the array in it that is to be filled."""
    header = _npy_header(dtype.str, shape)
    content = np.empty(len(header) + math.prod(shape) * dtype.itemsize, np.uint8)
    content[: len(header)] = np.frombuffer(header, np.uint8)
    return content.data, np.ndarray(shape, dtype, content.data, len(header))


@lru_cache(64)
def _npy_header(kind: str, shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    facts = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, facts)
    return out.getvalue()


def has_arrow() -> bool:
    """Return whether pyarrow is installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def _arrow(facts: dict[str, Any], vectors: npt.NDArray[Any], missing: Sequence[int]) -> bytes:
    import pyarrow as pa

    from embmap.arrow import array

    nested = array(vectors)
    if missing:
        chosen_rows = np.arange(len(vectors)).astype(object)
        chosen_rows[list(missing)] = None
        nested = nested.take(pa.array(chosen_rows.tolist(), pa.int64()))
    columns = {}
    if "words" in facts:
        columns["word"] = pa.array(facts["words"], pa.string())
    columns["row"] = pa.array(facts["rows"], pa.int64())
    table = pa.table(columns | {"vector": nested})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
