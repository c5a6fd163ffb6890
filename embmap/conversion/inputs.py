"""Opening an input: its format is recognised, words beside it are found, a limit is applied."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from embmap.formats.format import Input, Request
from embmap.formats.registry import FORMATS, recognize
from embmap.io.backends import open_mapped
from embmap.vectors.streamed import Selected
from embmap.words.beside import find_words
from embmap.words.given import vocabulary_of
from embmap.words.table import WordTable

__all__ = ["Request", "open_input"]


def open_input(path: Path, request: Request, stack: ExitStack) -> Input:
    """Open an input; `stack` closes what has to be closed after the conversion."""
    data = open_mapped(path, access="sequential")
    format = FORMATS[request.format] if request.format else recognize(data, FORMATS.values())
    for value, has_choice, what in (
        (request.timestep, format.has_timesteps, "time steps"),
        (request.scale, format.is_scaled, "integers"),
        (request.tensor, format.has_tensors, "tensors"),
        (request.dialect, bool(format.dialects), "layout"),
    ):
        if value is not None and not has_choice:
            raise ValueError(f"{path} is {format.name}, which has no {what} to choose from")
    source = format.read(data, request, stack)
    if source.steps and request.labels:
        source = replace(source, parts=(*source.parts, "labels of time steps"))
    if source.words is not None:
        if request.vocab is not None:
            raise ValueError(f"{path} has words of its own; vocab= is for files without")
        n = len(source.words)
    else:
        n = len(source.vectors)
        vocab = request.vocab
        if vocab is None and source.subwords is None:
            vocab = find_words(data)
        if vocab is not None:
            words = WordTable.of(vocabulary_of(vocab, n, format.name, vectors=data), request.limit)
            source = replace(source, words=words)
    if request.limit is not None and request.limit < n:
        n = request.limit
        if source.words is not None:
            source = replace(source, words=source.words.select(np.arange(n)))
    if len(source.vectors) != n and source.subwords is None:
        source = replace(source, vectors=Selected(source.vectors, range(n)))
    return source
