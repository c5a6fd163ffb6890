"""Reading one array out of an ``.npz`` archive."""

from __future__ import annotations

import errno
import shutil
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy.typing as npt

from embmap.errors import ArgumentError, FormatError
from embmap.io.npy import map_stream, parse_header

__all__ = ["map_npz"]

_QUOTED = 200  # characters of zipfile's messages, which quote names of any length


def map_npz(path: Path, name: str | None, spool: BinaryIO) -> npt.NDArray[Any]:
    """Copy an array out of an archive and map the copy; without a name, the only matrix."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.namelist() if member.endswith(".npy")]
            if name is None:
                members = [member for member in members if _is_matrix(archive, member)]
            else:
                members = [member for member in members if member == f"{name}.npy"]
            if len(members) == 1:
                with archive.open(members[0]) as member:
                    shutil.copyfileobj(member, spool)
                spool.flush()
    except Exception as error:  # zipfile raises errors of many classes about damaged archives
        # It seeks to offsets that the file gives, and the system refuses some of them.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        message = f"not an npz file: {str(error)[:_QUOTED]}"
        raise FormatError(message, path=path, format="npz") from None
    if name is not None and not members:
        raise ValueError(f"{path} has no array {name!r}")
    if not members:
        raise ValueError(f"{path} has no array of numbers in two dimensions")
    if len(members) > 1:
        names = ", ".join(member.removesuffix(".npy") for member in members)
        raise ArgumentError(f"{path} has several arrays; choose one with {{tensor}}: {names}")
    spool.seek(0)
    return map_stream(spool, path)


def _is_matrix(archive: zipfile.ZipFile, member: str) -> bool:
    with archive.open(member) as stream:
        try:
            parse_header(stream)
        except ValueError:
            return False
    return True
