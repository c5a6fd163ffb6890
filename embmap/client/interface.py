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
    """An entry in a server's list of files. A file that cannot be read has only the first two.

    Attributes
    ----------
    name : str
        The file's name in requests.
    available : bool
        Whether the server can read the file now.
    format : str
        Its format, such as "finalfusion".
    dim : int
        Length of a vector.
    dtype : str
        Type of an element.
    count : int
        Number of words, or of rows in a file without words.
    rows : int
        Number of rows, with the rows of subwords.
    words : bool
        Whether the file has words.
    vectors : bool
        Whether the file has one vector for each row.
    timesteps : int
        Number of time steps; absent in other files than DWE files.
    labels : list of int or str
        Labels of the time steps; absent if they have none.
    """

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
    labels: list[int | str]
