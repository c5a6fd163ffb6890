"""``embmap.open``: a file of any format, recognised by what it holds and never by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from embmap.embedding_file import EmbeddingFile
from embmap.errors import FormatError
from embmap.formats.cvc.file import CvcFile
from embmap.formats.cvc.layout import MAGIC as CVC_MAGIC
from embmap.formats.dwe.file import DweFile
from embmap.formats.dwe.layout import MAGIC as DWE_MAGIC
from embmap.formats.embd.file import EmbdFile
from embmap.formats.embd.layout import MAGIC as EMBD_MAGIC
from embmap.formats.finalfusion.file import FinalfusionFile
from embmap.formats.finalfusion.layout import MAGIC, looks_bare
from embmap.io.backends import open_mapped
from embmap.io.mapping import Access, Backend, ByteSource
from embmap.words.index_source import IndexChoice

__all__ = ["open"]

Opener = Callable[[ByteSource, str | None, IndexChoice, Any], EmbeddingFile]
FORMATS: dict[str, tuple[Callable[[ByteSource], bool], Opener]] = {
    "finalfusion": (
        lambda file: file.read(0, min(4, file.nbytes)) == MAGIC or looks_bare(file),
        FinalfusionFile,
    ),
    "embd": (
        lambda file: file.read(0, min(4, file.nbytes)) == EMBD_MAGIC,
        EmbdFile,
    ),
    "cvc": (
        lambda file: file.read(0, min(4, file.nbytes)) == CVC_MAGIC,
        CvcFile,
    ),
    "dwe": (
        lambda file: file.read(0, min(4, file.nbytes)) == DWE_MAGIC,
        DweFile,
    ),
}


def open(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    layout: str | None = None,
    backend: Backend = "mmap",
    access: Access = "normal",
    index: IndexChoice = "auto",
    vocab: str | os.PathLike[str] | Sequence[str] | None = None,
) -> EmbeddingFile:
    """Open an embedding file without reading it.

    Parameters
    ----------
    path : path-like
        The file.
    format : {"finalfusion", "embd", "cvc", "dwe"}, optional
        Its format; by default the bytes decide, and never the name.
    layout : str, optional
        A dialect of the format, where the bytes allow two.
    backend : {"mmap", "read", "cached"}
        Map the file; or read the parts that are asked for: the same bytes as copies, for network
        disks and for files that may be truncated by others; or read them only as far as the system
        has them in memory (on Linux), for event loops: for the rest the BlockingIOError is raised
        whose ``load()`` reads it, which a thread does before the loop asks again.
    access : {"normal", "random", "sequential", "willneed"}
        How it will be read: advice to the operating system.
    index : {"auto", "memory", "require"} or path-like
        "auto" uses FILE.embx if it matches and else builds an index in memory once it pays;
        "memory" does not look for one; "require" and a path insist on it. FILE.embx is read as the
        file is; one that is named by its path is mapped.
    vocab : path-like or sequence of str, optional
        Words for a file that carries none: a text file with one word per line, or the words.

    Returns
    -------
    EmbeddingFile
        The open file; a context manager.

    Raises
    ------
    OSError
        When the file cannot be opened.
    FormatError
        When it is damaged or of no known format.
    StaleIndexError
        When an index is insisted on and does not match.
    ValueError
        For an argument that is not one of the choices.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
    # Relative paths mean what they mean now, wherever the process goes later.
    if index not in ("auto", "memory", "require"):
        index = Path(os.fsdecode(index)).absolute()
    if isinstance(vocab, str | os.PathLike):
        vocab = Path(vocab).absolute()
    file = open_mapped(path, backend=backend, access=access)
    name = format or recognize(file)
    opened = FORMATS[name][1](file, layout, index, vocab)
    opened._reopen = partial(
        open,
        cast(Path, file.path),
        format=format,
        layout=layout,
        backend=backend,
        access=access,
        index=index,
        vocab=vocab,
    )
    return opened


def recognize(file: ByteSource) -> str:
    """Return the format of a file from its content."""
    if file.nbytes == 0:
        raise FormatError("the file is empty", path=file.path)
    for name, (recognizes, _) in FORMATS.items():
        if recognizes(file):
            return name
    start = file.read(0, min(8, file.nbytes))
    raise FormatError(
        f"not a file of a known format ({', '.join(FORMATS)})",
        path=file.path,
        offset=0,
        field="magic",
        found=start,
    )
