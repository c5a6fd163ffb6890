"""Reading one array out of an ``.npz`` archive."""

from __future__ import annotations

import errno
import shutil
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from embmap.errors import ArgumentError, FormatError
from embmap.io.npy import map_stream, parse_header

__all__ = ["QUANTIZED", "SCALE", "map_npz"]

QUANTIZED = "uncompressed_quantized"  # what the programs for DWE files call the integers over time
SCALE = "scale_factor"
_QUOTED = 200  # characters of zipfile's messages, which quote names of any length


def map_npz(
    path: Path, name: str | None, spool: BinaryIO
) -> tuple[npt.NDArray[Any], np.float32 | None, bool]:
    """Copy an array out of an archive and map the copy.

    Returns the array, the scale in the archive, and whether there are other members.
    Without a name, the array is the integers over time, else the only matrix, else the only array
    of three dimensions. Only an array of three dimensions has a scale.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.namelist()
            members = [member for member in listed if member.endswith(".npy")]
            if name is None and f"{QUANTIZED}.npy" in members:
                name = QUANTIZED
            if name is None:
                shapes = [_count_dimensions(archive, member) for member in members]
                chosen = 2 if 2 in shapes else 3
                members = [each for each, n in zip(members, shapes, strict=True) if n == chosen]
            else:
                members = [member for member in members if member == f"{name}.npy"]
            if len(members) == 1:
                with archive.open(members[0]) as member:
                    shutil.copyfileobj(member, spool)
                spool.flush()
            scale = _read_scale(archive) if f"{SCALE}.npy" in listed else None
    except FormatError as error:
        raise FormatError(error.message, path=path, format="npz", field=SCALE) from None
    except Exception as error:  # zipfile raises errors of many classes about damaged archives
        # It seeks to offsets that the file gives, and the system refuses some of them.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        message = f"not an npz file: {str(error)[:_QUOTED]}"
        raise FormatError(message, path=path, format="npz") from None
    if name is not None and not members:
        raise ValueError(f"{path} has no array {name!r}")
    if not members:
        raise ValueError(f"{path} has no array of numbers in two or three dimensions")
    if len(members) > 1:
        names = ", ".join(member.removesuffix(".npy") for member in members)
        raise ArgumentError(f"{path} has several arrays; choose one with {{tensor}}: {names}")
    spool.seek(0)
    array = map_stream(spool, path, (2, 3))
    scale = scale if array.ndim == 3 else None
    return array, scale, len(listed) > 1 + (scale is not None)


def _count_dimensions(archive: zipfile.ZipFile, member: str) -> int | None:
    """Return the number of dimensions of an array of numbers; None for other members."""
    with archive.open(member) as stream:
        try:
            return len(parse_header(stream, (2, 3)).shape)
        except ValueError:
            return None


def _read_scale(archive: zipfile.ZipFile) -> np.float32:
    """Return the scale in an archive; FormatError if it is not a factor."""
    with archive.open(f"{SCALE}.npy") as stream:
        try:
            dtype = parse_header(stream, (0,)).dtype
        except ValueError as error:
            raise FormatError(str(error).replace("vectors", SCALE)) from None
        data = stream.read(dtype.itemsize)
    if dtype.kind != "f" or len(data) < dtype.itemsize:
        raise FormatError(f"{SCALE} must be a floating-point number, not {dtype}")
    with np.errstate(over="ignore"):
        scale = np.frombuffer(data, dtype)[0].astype(np.float32)
    if not np.isfinite(scale) or not scale:
        raise FormatError(f"{SCALE} must be finite and not 0 in float32, not {scale}")
    return np.float32(scale)
