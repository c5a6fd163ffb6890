"""What a server and its clients agree on: paths, media types and the names of choices."""

from __future__ import annotations

from typing import Literal, Required, TypedDict, get_args

__all__ = [
    "ARROW",
    "JSON",
    "MISSING",
    "MISSING_HEADER",
    "MODELS",
    "MODEL_TASK",
    "NPY",
    "Missing",
    "ModelFacts",
]

JSON = "application/json"
NPY = "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"

MODELS = "/v1/models"
MODEL_TASK = "/v1/{name}/{task}"

MISSING_HEADER = "Embmap-Missing"
"""The header of vectors that lists the positions of the missing ones."""

Missing = Literal["error", "null", "subwords"]
MISSING: tuple[Missing, ...] = get_args(Missing)
"""How a look-up answers unknown words; the first is the default."""


class ModelFacts(TypedDict, total=False):
    """A served file, as the server lists it. Only the first two are there if it cannot be read."""

    name: Required[str]
    available: Required[bool]
    format: str
    dim: int
    dtype: str
    count: int
    rows: int
    words: bool
    vectors: bool
    timesteps: int
