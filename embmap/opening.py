"""``embmap.open``: a file of any format, recognised by its bytes and never by its name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from embmap.embedding_file import EmbeddingFile
from embmap.formats.registry import get_file_formats, recognize_opened
from embmap.io.backends import open_mapped
from embmap.io.mapping import Access, Backend
from embmap.words.index_source import IndexChoice

__all__ = ["open"]


def open(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    layout: str | None = None,
    backend: Backend = "mmap",
    access: Access = "auto",
    index: IndexChoice = "auto",
    vocab: str | os.PathLike[str] | Sequence[str] | None = None,
) -> EmbeddingFile:
    """Open an embedding file without reading it.

    Parameters
    ----------
    path : path-like
        The file.
    format : str, optional
        Its format: "finalfusion", "embd", "cvc", "dwe", "fasttext", "npy", "safetensors" or
        "word2vec" (binary). By default, it is recognised by the bytes of the file.
    layout : str, optional
        The dialect of the format, for files that could be of several.
    backend : {"mmap", "read", "cached"}
        "mmap" maps the file. "read" copies the bytes that are needed, which suits network disks
        and files that others may truncate. "cached" copies them only if the system has them in
        memory (on Linux), which suits event loops. It raises a BlockingIOError for all others; a
        thread calls ``load()`` of that error before the loop tries again.
    access : {"auto", "normal", "sequential"}
        What is read from a disk before it is needed. "auto" reads the pages of single rows, all
        pages of a batch at once, and ahead of slices, blocks and searches. "normal" leaves this to
        the operating system, which may read megabytes for a row. "sequential" reads far ahead of
        everything; it suits single rows that are looked up in the order of the file.
    index : {"auto", "memory", "require"} or path-like
        "auto" uses FILE.embx if it matches, and otherwise builds an index in memory once that
        pays. "memory" never uses FILE.embx. "require" raises an error if FILE.embx does not match,
        and so does a path, which names another index. FILE.embx is read in the same way as the
        file; an index named by its path is mapped.
    vocab : path-like or sequence of str, optional
        Words for a file that contains no words: a text file with one word per line, the words, or
        a word list in JSON. This is an object with the words as ``"vocab"`` and, if there are any,
        the labels of time steps as ``"years"``: integers or text, all different.

    Returns
    -------
    EmbeddingFile
        The open file; a context manager.

    Raises
    ------
    OSError
        If the file cannot be opened.
    FormatError
        If the file is damaged or of no known format.
    StaleIndexError
        If an index is required and does not match.
    ValueError
        If an argument is not one of its choices.
    """
    chosen = None
    if format is not None:
        formats = get_file_formats()
        if format not in formats:
            raise ValueError(f"format must be one of {', '.join(formats)}, not {format!r}")
        chosen = formats[format]
    # A relative path keeps its meaning if the process changes its folder.
    if index not in ("auto", "memory", "require"):
        index = Path(os.fsdecode(index)).absolute()
    if isinstance(vocab, str | os.PathLike):
        vocab = Path(vocab).absolute()
    data = open_mapped(path, backend=backend, access=access)
    file = (chosen or recognize_opened(data)).open(data, layout, index, vocab)
    file._reopen_with(
        partial(
            open,
            cast(Path, data.path),
            format=format,
            layout=layout,
            backend=backend,
            access=access,
            index=index,
            vocab=vocab,
        )
    )
    return file
