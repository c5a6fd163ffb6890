"""Everything that any file can be asked through the public face, and how its answers must agree."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import embmap
from tests.judges.damage import REFUSED, UNKNOWN, attempt, loaded

__all__ = ["ask"]

Put = Callable[[str, Callable[[], Any]], Any]
MOST_NUMBERS = 1 << 20  # of a matrix that is read at once


def ask(f: Any, words: Sequence[str]) -> dict[str, Any]:
    """Ask an open file for everything; answers by question, REFUSED or UNKNOWN among them."""
    found: dict[str, Any] = {}

    def put(question: str, read: Callable[[], Any]) -> Any:
        found[question] = attempt(read)
        return found[question]

    put("repr", lambda: repr(f))
    put("info", lambda: json.dumps(f.info()))
    put("shape", lambda: (f.shape, f.dim, f.dtype, len(f), bool(f), f.layout))
    put("metadata", lambda: f.metadata)
    put("verify", lambda: f.verify().ok)
    put("check index", f.check_index)
    put("pickle", lambda: pickle.loads(pickle.dumps(f)).close())
    if f.vocab is not None:
        put("first words", lambda: list(itertools.islice(f, 3)))
    ask_for_words(f, words, put)
    if f.vectors is not None:
        ask_a_matrix("vectors", f.vectors, put)
    for name in ("norms", "metadata_toml", "special_tokens"):
        if hasattr(type(f), name):
            put(name, lambda name=name: getattr(f, name))
    for name in itertools.islice(getattr(f, "tensors", ()), 20):
        put(f"tensor {name}", lambda name=name: f.tensors[name].shape)
    for name, matrix in itertools.islice(getattr(f, "columns", {}).items(), 20):
        ask_a_matrix(f"column {name}", matrix, put)
    for number, chunk in enumerate(getattr(f, "chunks", ())[:20]):
        if hasattr(chunk, "decode"):
            for column in itertools.islice(f.columns, 5):
                put(f"chunk {number} {column}", lambda c=chunk, n=column: c.decode(column=n).shape)
    if f.num_timesteps is not None:
        ask_over_time(f, put)
    return found


def ask_for_words(f: Any, words: Sequence[str], put: Put) -> None:
    """Look words up in every way."""
    rows = put("find", lambda: f.find(words).tolist())
    for i, word in enumerate(words):
        present = put(f"in {word}", lambda word=word: word in f)
        if isinstance(rows, list) and present is not REFUSED:
            assert present is (rows[i] >= 0), f"{word!r} in f is {present}, its row {rows[i]}"
        vector = put(f"f[{word}]", lambda word=word: f[word])
        got = put(f"get {word}", lambda word=word: f.get(word))
        if isinstance(vector, np.ndarray):
            assert same(vector, got), f"get and f[] disagree about {word!r}"
    # Zeros for unknown words are as many as the dimension says, which no row need prove.
    for missing in ("raise", "zero") if f.dim * len(words) < MOST_NUMBERS else ("raise",):
        put(f"batch {missing}", lambda m=missing: f.batch(words, missing=m).shape)
    if f.vectors is None:
        return
    for word in words[:2]:
        found = put(f"similar {word}", finite(lambda w=word: f.most_similar(w, 3)))
        if found not in (REFUSED, UNKNOWN):
            assert len(found) <= 3
    put("similarity", finite(lambda: f.similarity(words[0], words[1])))
    put("analogy", finite(lambda: f.analogy(words[0], words[1], words[-1], 2)))
    for name in ("subword_rows", "embedding_with_norm", "unnormalized"):
        if hasattr(f, name):
            for word in words[:3]:
                put(f"{name} {word}", lambda n=name, w=word: getattr(f, n)(w))


def finite(search: Callable[[], Any]) -> Callable[[], Any]:
    """Count the ValueError for vectors that are not finite, which searches promise, as refused."""

    def read() -> Any:
        try:
            return search()
        except ValueError as error:
            if isinstance(error, embmap.EmbmapError):
                raise
            return REFUSED

    return read


def ask_a_matrix(name: str, matrix: Any, put: Put) -> None:
    """Read a matrix by row, by rows, in blocks and whole."""
    n = len(matrix)
    put(f"{name} repr", lambda: repr(matrix))
    few = [0, n // 2, n - 1] if n else []
    taken = put(f"{name} take", lambda: matrix.take(few))
    for i, row in enumerate(few):
        vector = put(f"{name} row {row}", lambda row=row: matrix[row])
        if isinstance(taken, np.ndarray) and isinstance(vector, np.ndarray):
            assert near(taken[i], vector), f"take and row disagree about row {row} of {name}"
    put(f"{name} slice", lambda: matrix[: min(n, 3)])
    block = put(f"{name} block", lambda: next(iter(matrix.blocks(2)), None))
    if isinstance(block, tuple):
        assert block[0] == 0
        assert len(block[1]) <= 2
    if (
        matrix.size
        if hasattr(matrix, "size")
        else np.prod(matrix.shape, dtype=object) < MOST_NUMBERS
    ):
        put(f"{name} whole", lambda: np.asarray(matrix))


def ask_over_time(f: Any, put: Put) -> None:
    """Ask a file of vectors over time."""
    steps, n = f.num_timesteps, len(f)
    few = sorted({0, n - 1})
    put("trajectories", lambda: f[few])
    put("trajectory", lambda: f[0])
    put("over time", lambda: f.similarity_over_time([0], [n - 1]))
    put("related", lambda: f.most_related(0, steps - 1, min(n - 1, 3)))
    put("changes", lambda: f.largest_changes(0, min(n - 1, 3)))
    for t in sorted({0, steps // 2, steps - 1}):
        put(f"step {t}", lambda t=t: f.at(t).vectors[few])


def same(one: Any, other: Any) -> bool:
    """Whether two arrays have the same shape, dtype and bits."""
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())


def near(one: Any, other: Any) -> bool:
    """Whether two rows are the same, but for the order in which a projection adds up."""
    if same(one, other) or one.dtype.kind != "f":
        return same(one, other)
    large = max(float(np.max(np.abs(one), initial=0.0)), 1e-30)
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-5 * large, equal_nan=True))


def ask_file(path: Any, words: Sequence[str], **options: Any) -> dict[str, Any]:
    """Open a file and ask for everything; empty where it is refused."""
    try:
        f = loaded(lambda: embmap.open(path, **options))
    except embmap.EmbmapError:
        return {}
    with f:
        return ask(f, words)
