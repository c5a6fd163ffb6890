"""Writing ``.npz`` archives of integers over time, as the programs for DWE files read them."""

from __future__ import annotations

import zipfile
from typing import BinaryIO

import numpy as np

from embmap.formats.exchange import Output
from embmap.io.npz import QUANTIZED, SCALE
from embmap.vectors.blocks import split_blocks

__all__ = ["write_npz"]

_DATE = (1980, 1, 1, 0, 0, 0)  # the first that an archive can hold: equal data give equal files


def write_npz(out: BinaryIO, output: Output) -> None:
    """Write the time steps, one after the other, and their scale."""
    shape = (len(output.steps), *output.vectors.shape)
    with zipfile.ZipFile(out, "w") as archive:
        with _open(archive, QUANTIZED) as member:
            header = {"descr": "<i2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, header)
            for t, step in enumerate(output.steps, 1):
                for block in split_blocks(step):
                    member.write(np.ascontiguousarray(block, "<i2").tobytes())
                if output.progress is not None:
                    output.progress("writing timesteps", t, len(output.steps))
        with _open(archive, SCALE) as member:
            np.lib.format.write_array(member, np.array(output.scale, "<f4"), (1, 0))


def _open(archive: zipfile.ZipFile, name: str) -> BinaryIO:
    """Open a new, compressed member of an archive."""
    member = zipfile.ZipInfo(f"{name}.npy", _DATE)
    member.compress_type = zipfile.ZIP_DEFLATED
    return archive.open(member, "w", force_zip64=True)  # type: ignore[return-value]
