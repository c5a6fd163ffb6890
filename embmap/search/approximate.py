"""Approximate search: a graph over the rows in FILE.usearch beside the data, mapped on first use.

usearch writes the graph. The 64 bytes that follow it identify its data by size, modification time
and number of rows, so that the index of other data is refused. The graph only proposes rows, which
are then compared exactly. Needs the extra "ann".
"""

from __future__ import annotations

import errno
import os
import struct
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from embmap.errors import StaleIndexError, UnsupportedError
from embmap.io.atomic_write import replacing
from embmap.io.backends import open_mapped
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.threads import away_from_signals, n_threads
from embmap.vectors.matrix import Matrix
from embmap.vectors.segments import normalize

__all__ = ["SUFFIX", "ApproximateIndex", "build_index"]

SUFFIX = ".usearch"
MAGIC = b"EMBU\r\n\x1a\n"
VERSION = 1
_TRAILER = struct.Struct("<8sIIQqQQQQ")  # magic, version, dim, size, time, rows, graph, 0, checksum
_AT_ONCE = 1 << 14  # rows passed to usearch together
_PROPOSED = 4  # proposed rows for each result
_FILLED = 1 << 20  # zeros per write, to see the error of a failed write
_LEAST = 64  # smallest number of proposed rows


class ApproximateIndex:
    """A mapped graph over the first `shape[0]` rows of the file `data`."""

    def __init__(self, path: Path, data: ByteSource, shape: tuple[int, int]) -> None:
        usearch = _usearch()
        self._path = path
        self._n_rows = shape[0]
        # The graph is searched in our own map, because usearch cannot open every path.
        mapped = self._checked(data, shape)
        try:
            graph = usearch.Index.restore(mapped.array(0, np.uint8, mapped.nbytes), view=True)
        except (RuntimeError, ValueError) as error:
            raise self._stale(f"usearch cannot read it: {error}") from None
        if graph is None or graph.ndim != shape[1] or len(graph) > shape[0]:
            raise self._stale("its graph covers other rows")
        self._graph = graph
        self._mapped = mapped

    def _stale(self, why: str) -> StaleIndexError:
        return StaleIndexError(f"{self._path}: {why}; build it again with build_ann()")

    def _checked(self, data: ByteSource, shape: tuple[int, int]) -> ByteSource:
        try:
            mapped = open_mapped(self._path)
        except FileNotFoundError:
            raise StaleIndexError(
                f"{self._path}: there is no approximate index; build it with build_ann()"
            ) from None
        except OSError as error:
            raise self._stale(f"cannot be opened: {error.strerror}") from None
        except UnsupportedError as error:
            raise self._stale(error.message) from None
        nbytes = mapped.nbytes
        trailer = mapped.read(max(nbytes - _TRAILER.size, 0), min(nbytes, _TRAILER.size))
        if len(trailer) < _TRAILER.size or not trailer.startswith(MAGIC):
            raise self._stale("it is not an approximate index of embmap")
        _, version, dim, size, mtime, n_rows, graph_nbytes, _, checksum = _TRAILER.unpack(trailer)
        if version != VERSION:
            raise self._stale(f"version {version}; this embmap reads {VERSION}")
        if xxhash.xxh3_64_intdigest(trailer[:-8]) != checksum or graph_nbytes != nbytes - len(
            trailer
        ):
            raise self._stale("it is damaged")
        if (size, mtime, n_rows, dim) != (data.nbytes, data.mtime_ns, *shape):
            raise self._stale("it belongs to other data")
        return mapped

    def candidates(
        self, units: npt.NDArray[Any], n: int, excluded: list[npt.NDArray[np.int64]]
    ) -> list[npt.NDArray[np.int64]]:
        """Return, for each unit vector (m, dim), rows that are probably among the `n` nearest.

        Rows are int64, each once, without the excluded ones; usually more than `n`.
        """
        wanted = max(_PROPOSED * n, _LEAST)
        numbers = [min(wanted + len(each), max(len(self._graph), 1)) for each in excluded]
        found = []
        for keys, left_out in zip(self._search(units, numbers), excluded, strict=True):
            if keys.size and int(keys.max()) >= self._n_rows:
                raise self._stale(f"it names row {int(keys.max())} of {self._n_rows}")
            rows = np.unique(keys.astype(np.int64))
            found.append(np.setdiff1d(rows, left_out, assume_unique=True))
        return found

    def _search(self, units: npt.NDArray[Any], numbers: list[int]) -> list[npt.NDArray[np.uint64]]:
        """Return the keys of as many rows for each unit vector, in no order."""

        def search() -> list[npt.NDArray[np.uint64]]:
            found = []
            for unit, wanted in zip(units.astype(np.float32), numbers, strict=True):
                self._graph.expansion_search = max(wanted, _LEAST)
                found.append(np.asarray(self._graph.search(unit, wanted).keys, np.uint64))
            return found

        return away_from_signals(search)  # usearch turns every interrupt into a RuntimeError


def build_index(
    path: Path, data: ByteSource, matrix: Matrix, n_rows: int, *, progress: Progress | None
) -> None:
    """Write an approximate index over the first rows of a matrix.

    Rows of zeros and rows that are not finite are left out. The graph stores rows in half precision
    and stays in memory until it is written.
    """
    dim = matrix.shape[1]
    graph = _usearch().Index(ndim=dim, metric="cos", dtype="f16")
    for start in range(0, n_rows, _AT_ONCE):
        stop = min(start + _AT_ONCE, n_rows)
        with np.errstate(all="ignore"):
            rows = np.array(matrix[start:stop], np.float32)
            lengths = normalize(rows)
        usable = np.flatnonzero(np.isfinite(lengths) & (lengths > 0))
        keys = (usable + start).astype(np.uint64)
        if usable.size:
            away_from_signals(partial(_link, graph, keys, rows[usable]))
        if progress is not None:
            progress("linking rows", stop, n_rows)
    with replacing(path) as out:
        _save(graph, out, path)
        size = out.seek(0, os.SEEK_END)
        head = _TRAILER.pack(MAGIC, VERSION, dim, data.nbytes, data.mtime_ns, n_rows, size, 0, 0)
        out.write(head[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(head[:-8])))


def _link(graph: Any, keys: npt.NDArray[np.uint64], rows: npt.NDArray[np.float32]) -> None:
    """Add rows to a graph so that each of them is found.

    Threads of usearch that link rows at the same time may leave one that no search reaches. Such
    rows are linked again, one after the other.
    """
    n = n_threads()
    graph.add(keys, rows, threads=n)
    nearest = np.asarray(graph.search(rows, 1, threads=n).keys).reshape(-1) if n > 1 else keys
    lost = np.flatnonzero(nearest != keys)
    if lost.size:
        graph.remove(keys[lost])
        graph.add(keys[lost], rows[lost], threads=1)


def _save(graph: Any, out: BinaryIO, path: Path) -> None:
    """Let usearch write a graph to a temporary file, which needs no copy in memory."""
    failed = None
    for _ in range(2):
        failed = None
        try:
            graph.save(out.name)
        except RuntimeError as error:
            failed = str(error)
        missing = graph.serialized_length - out.seek(0, os.SEEK_END)
        if failed is None and not missing:
            return
        # usearch does not report why a write failed. Writing further shows it, as an OSError.
        out.writelines(bytes(min(_FILLED, missing - done)) for done in range(0, missing, _FILLED))
        out.flush()
        # No error: a signal interrupted the write, and usearch does not repeat it.
    raise OSError(errno.EIO, f"usearch cannot write it: {failed}", str(path))


def _usearch() -> ModuleType:
    try:
        import usearch.index as module
    except ImportError as error:
        raise ImportError("approximate search needs usearch: pip install 'embmap[ann]'") from error
    return module
