"""Words in a text file beside vectors that carry none, and what keeps the two together.

FILE.words.txt holds a word for each row of FILE. Where embmap writes it, FILE.words.json holds
digests of both files, and words that were written with other vectors are refused. A list without
digests belongs to the vectors that it is beside.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
from xxhash import xxh3_128_hexdigest

from embmap.errors import ChecksumError
from embmap.io.mapping import ByteSource

__all__ = ["check_words", "describe", "digests_beside", "exists", "find_words", "words_beside"]

_SAMPLES = 64
_SAMPLE = 4096  # bytes of each


def words_beside(path: Path) -> Path:
    """Return the path of the words that belong to vectors."""
    return path.with_name(f"{path.name}.words.txt")


def digests_beside(path: Path) -> Path:
    """Return the path of the digests of vectors and their words."""
    return path.with_name(f"{path.name}.words.json")


def describe(vectors: ByteSource, words: ByteSource | None) -> bytes:
    """Return the digests of two files that belong together, as FILE.words.json holds them."""
    files = {"vectors": vectors, "words": words}
    text = json.dumps(
        {name: None if file is None else _digest(file) for name, file in files.items()}
    )
    return f"{text}\n".encode()


def _digest(file: ByteSource) -> dict[str, Any]:
    """Return the size of a file, and the digest of samples of its bytes; of all if they are few."""
    file.check_whole()
    if file.nbytes <= _SAMPLES * _SAMPLE:
        data = file.read(0, file.nbytes)
    else:
        offsets = [i * (file.nbytes - _SAMPLE) // (_SAMPLES - 1) for i in range(_SAMPLES)]
        data = file.gather(np.array(offsets), np.full(_SAMPLES, _SAMPLE)).tobytes()
    return {"nbytes": file.nbytes, "xxh3_128": xxh3_128_hexdigest(data)}


def find_words(vectors: ByteSource) -> Path | None:
    """Return the path of the words beside vectors, which :func:`check_words` has to see then."""
    path = words_beside(cast(Path, vectors.path))
    if exists(path):
        return path
    _compare(vectors, None)
    return None


def check_words(vectors: ByteSource, words: ByteSource) -> None:
    """Refuse words beside vectors that were written with other vectors.

    Words of any other path belong to the vectors because the caller says so.
    """
    beside = words_beside(cast(Path, vectors.path))
    try:
        same = beside.samefile(cast(Path, words.path))
    except OSError:  # there are none beside the vectors
        same = False
    if same:
        _compare(vectors, words)


def exists(path: Path) -> bool:
    """Return whether there is a file; there is none of a name that is too long."""
    return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises for long names)


def _compare(vectors: ByteSource, words: ByteSource | None) -> None:
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
            f"there is no {beside}"
            if words is None
            else f"{beside} was not written with these vectors"
        )
        raise ChecksumError(
            f"{what}, by the digests in {path.name}; write both files again, or delete {path.name} "
            "if the files beside it do belong together",
            path=vectors.path,
        )
