"""Everything that reads a file, by name, with its answers in a form that can be compared."""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import embmap
from tests.judges.damage import loaded

__all__ = ["FILES", "QUESTIONS", "READERS", "answer_of", "open_source", "read_disturbed"]

FILES = (
    "data.fifu",
    "subwords.fifu",
    "quantized.fifu",
    "input.weights",
    "input.cvc",
    "input.dwe",
)


def _words(file: Any) -> Any:
    return list(file)


def _one(file: Any) -> Any:
    return [np.asarray(file[f"w{i}"]).tobytes() for i in (0, 7, 399, 30)]


def _rows(file: Any) -> Any:
    return file.find([f"w{i}" for i in range(0, 420, 3)]).tobytes()


def _batch(file: Any) -> Any:
    words = [f"w{i}" for i in range(0, 400, 7)]
    return file.batch(words).tobytes()


def _all(file: Any) -> Any:
    return np.asarray(file.vectors).tobytes()


def _blocks(file: Any) -> Any:
    return [(start, block.tobytes()) for start, block in file.vectors.blocks(37)]


def _taken(file: Any) -> Any:
    return file.vectors.take([5, 300, 5, 17]).tobytes(), file.vectors[3:9].tobytes()


def _near(file: Any) -> Any:
    if file.format == "dwe":
        file = file.at(0).vectors
        query = np.asarray(file[3])
        return np.argsort(np.asarray(file[:]) @ query)[-5:].tolist()
    words = [f"w{i}" for i in range(3, 35)]  # many at once are multiplied in threads
    return [[each.row for each in found] for found in file.most_similar(words, 5)]


def _info(file: Any) -> Any:
    file.info()  # has to be there; where the index is differs
    return file.format, file.layout, file.shape, str(file.dtype), len(file), repr(file.metadata)


def _verified(file: Any) -> Any:
    """The outcome of a check; one that finds problems is neither right nor wrong."""
    report = file.verify()
    return "ok" if report.ok else _TOLD


_TOLD = "problems reported"
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "words": _words,
    "one word": _one,
    "rows of words": _rows,
    "a batch": _batch,
    "all vectors": _all,
    "blocks": _blocks,
    "some rows": _taken,
    "the nearest": _near,
    "info": _info,
    "verify": _verified,
}
READERS = {  # name: file, back end, what is asked
    f"{ask} of {file} by {backend}": (file, backend, ask)
    for file in FILES
    for backend in ("read", "cached", "mmap")
    for ask in QUESTIONS
}


def open_source(path: str | Path, backend: str) -> Any:
    """Open a file; if it has no words, take them from the file beside it."""
    beside = Path(f"{path}.words.txt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vocab = beside if beside.exists() else None
        return loaded(lambda: embmap.open(path, backend=backend, vocab=vocab))


def answer_of(file: Any, ask: str) -> Any:
    """Ask an open file."""
    return loaded(lambda: QUESTIONS[ask](file))


def read_disturbed(path: str, backend: str, name: str) -> str | None:
    """Open a file and ask it while calls fail; then compare with what is right, and ask again."""
    ask = READERS[name][2]
    file = None
    try:
        file = open_source(path, backend)
        found = answer_of(file, ask)
    finally:
        ctypes.CDLL(None).campaign_disarm()
        with open_source(path, "mmap") as truth:
            right = answer_of(truth, ask)
        if file is not None:
            again = answer_of(file, ask)
            assert again == right, f"wrong afterwards: {str(again)[:1000]}, not {str(right)[:1000]}"
    if found == _TOLD:
        return "told"
    assert found == right, f"{_digest(found)}, not {_digest(right)}"
    return "right"


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]
