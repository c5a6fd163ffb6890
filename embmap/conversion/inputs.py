"""Opening an input: it is decompressed, its format is recognised, a limit is applied.

Words beside it are found, too.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from embmap.errors import ArgumentError, FormatError, UnsupportedError
from embmap.formats.format import Format, Input, Request
from embmap.formats.registry import FORMATS, recognize
from embmap.io.atomic_write import spool_beside
from embmap.io.backends import open_mapped
from embmap.io.compressed import ZIP, Decompressed, detect_compression, list_members
from embmap.io.mapping import ByteSource, MemoryMap
from embmap.vectors.streamed import Selected
from embmap.words.beside import find_words
from embmap.words.given import vocabulary_of
from embmap.words.table import WordTable

__all__ = ["Request", "open_input", "split_member"]

_LISTED = 10  # members of an archive that a message names


def open_input(path: Path, request: Request, stack: ExitStack) -> Input:
    """Open an input; `stack` closes what has to be closed after the conversion."""
    data, format = _open_bytes(path, request, stack)
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
            raise ArgumentError(f"{path} has words of its own; {{vocab}} is for files without")
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


def split_member(path: Path) -> tuple[Path, str | None]:
    """Return a zip archive and the member that a path like ``glove.zip/a.txt`` names in it."""
    if not path.exists():
        for parent in path.parents:
            if parent.is_file() and detect_compression(open_mapped(parent)) == ZIP:
                return parent, path.relative_to(parent).as_posix()
    return path, None


def _open_bytes(path: Path, request: Request, stack: ExitStack) -> tuple[ByteSource, Format]:
    """Open the bytes of an input, decompressed, and recognise their format.

    Text stays a stream. What needs random access is copied into a temporary file.
    """
    named = None if request.format is None else FORMATS[request.format]
    file, member = split_member(path)
    data = open_mapped(file)
    kind = detect_compression(data)
    members = list_members(file) if kind == ZIP else []
    is_npz = member is None and members and all(name.endswith(".npy") for name in members)
    if kind is None or is_npz or (kind == ZIP and request.format == "npz"):
        return data, named or recognize(data, FORMATS.values())
    if kind == ZIP:
        member = _choose_member(file, members, member)
    stream = Decompressed(data, kind, member)
    stack.callback(stream.close)
    twice = detect_compression(stream)
    if twice is not None:
        raise UnsupportedError(
            f"compressed twice, with {kind} and in it with {twice}; unpack it once",
            path=stream.path,
        )
    format = named or recognize(stream, FORMATS.values())
    # The words of several inputs are put in one order, for which each is read in any order.
    if format.is_streamed and request.output_format is not None:
        return stream, format
    # In the folder of the output there is room for a copy.
    spool = stack.enter_context(spool_beside(request.folder / "input"))
    for block in stream.blocks():
        spool.write(block)
    spool.flush()
    data = MemoryMap(cast(Path, stream.path), spool=spool)
    return data, named or recognize(data, FORMATS.values())


def _choose_member(archive: Path, members: list[str], name: str | None) -> str:
    """Return the member to read: by its name, else the only one."""
    found = [each for each in members if name is None or each == name]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(str(archive / each) for each in members[:_LISTED])
    more = f" and {len(members) - _LISTED} more" if len(members) > _LISTED else ""
    if not members:
        raise FormatError("the archive has no files", path=archive, format=ZIP)
    if name is not None:
        raise ValueError(f"{archive} has no file {name!r}; it has {listed}{more}")
    raise ValueError(f"{archive} has {len(members)} files; name one: {listed}{more}")
