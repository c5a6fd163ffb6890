"""Words in a text file beside vectors that have no words of their own.

FILE.words.txt contains a word for each row of FILE. embmap writes digests of both files to
FILE.words.json, and refuses words that were written with other vectors. A list without digests is
taken to belong to the vectors beside it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
from xxhash import xxh3_128_hexdigest

from embmap.errors import ChecksumError
from embmap.io.mapping import ByteSource

__all__ = ["check_words", "describe", "digests_beside", "exists", "find_words", "words_beside"]

_SAMPLES = 64  # ranges of a large file that its digest covers
_SAMPLE = 4096  # bytes of each


def words_beside(path: Path) -> Path:
    """Return the path of the words beside vectors: FILE.words.txt."""
    return path.with_name(f"{path.name}.words.txt")


def digests_beside(path: Path) -> Path:
    """Return the path of the digests of vectors and their words: FILE.words.json."""
    return path.with_name(f"{path.name}.words.json")


def describe(vectors: ByteSource, words: ByteSource | None) -> bytes:
    """Return the contents of FILE.words.json for vectors and their words."""
    import json

    files = {"vectors": vectors, "words": words}
    text = json.dumps(
        {name: None if file is None else _digest(file) for name, file in files.items()}
    )
    return f"{text}\n".encode()


def _digest(file: ByteSource) -> dict[str, Any]:
    """Return the size of a file and a digest: of all bytes of a small file, else of samples."""
    file.check_whole()
    if file.nbytes <= _SAMPLES * _SAMPLE:
        data = file.read(0, file.nbytes)
    else:
        offsets = [i * (file.nbytes - _SAMPLE) // (_SAMPLES - 1) for i in range(_SAMPLES)]
        data = file.gather(np.array(offsets), np.full(_SAMPLES, _SAMPLE)).tobytes()
    return {"nbytes": file.nbytes, "xxh3_128": xxh3_128_hexdigest(data)}


def find_words(vectors: ByteSource) -> Path | None:
    """Return the path of the words beside vectors, if any; the caller passes them to check_words.

    ChecksumError is raised if the digests are about words that are missing.
    """
    path = words_beside(cast(Path, vectors.path))
    if exists(path):
        return path
    _compare(vectors, None)
    return None


def check_words(vectors: ByteSource, words: ByteSource) -> None:
    """Raise ChecksumError if the words beside vectors were written with other vectors.

    Words at any other path are not checked: the caller has named them.
    """
    beside = words_beside(cast(Path, vectors.path))
    try:
        same = beside.samefile(cast(Path, words.path))
    except OSError:  # no words are beside the vectors
        same = False
    if same:
        _compare(vectors, words)


def exists(path: Path) -> bool:
    """Return whether a file exists; False for a name that is too long for a file."""
    return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises for long names)


def _compare(vectors: ByteSource, words: ByteSource | None) -> None:
    """Raise ChecksumError if the digests, where they exist, do not match these files."""
    path = digests_beside(cast(Path, vectors.path))
    try:
        with path.open("rb") as handle:
            noted = handle.read(_SAMPLE)
    except OSError:
        if exists(path):
            raise
        return
    if noted.strip() != describe(vectors, words).strip():
        beside = words_beside(cast(Path, vectors.path)).name
        what = (
            f"{beside} is missing"
            if words is None
            else f"{beside} was not written with these vectors"
        )
        raise ChecksumError(
            f"{what}, according to the digests in {path.name}; write both files again, or delete "
            f"{path.name} if the files do belong together",
            path=vectors.path,
        )
