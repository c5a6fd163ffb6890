"""Training product quantizers: centroids by k-means, and optionally a rotation before them.

Codebooks are learned from a sample of rows; then all rows are encoded in a stream. Large
intermediate arrays are in temporary files, so that memory stays bounded. The same vectors, settings
and seed give the same codes.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import is_number
from embmap.codecs.product import reconstruct
from embmap.codecs.products import multiply, vecdot
from embmap.progress import Progress
from embmap.threads import in_parallel
from embmap.vectors.blocks import Blocks, report_rows, split_blocks
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import Quantized
from embmap.vectors.segments import normalize

__all__ = ["encode", "kmeans", "quantize", "train"]

SAMPLES_PER_CENTROID = 256
"""Rows per centroid in the sample: more of them hardly change the centroids."""

_SEEDS_PER_CENTROID = 16  # rows from which the first centroids are chosen
_DISTANCES = 1 << 18  # computed together: they fit into the second-level cache
_ENCODED = 1 << 14  # largest number of rows that are encoded at a time
_BLOCK_NBYTES = 1 << 22
_IN_MEMORY = 1 << 24  # bytes of the largest array without a temporary file
_STEPS = 2  # iterations of k-means between two updates of the projection
_TINY = 1e-12


def quantize(
    vectors: Blocks,
    q: int,
    k: int = 256,
    *,
    iterations: int = 25,
    projection: Literal["opq"] | None = None,
    normalize: bool = True,
    sample: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Quantized:
    """Train a product quantizer and encode vectors with it, for ``write(..., quantized=...)``.

    Parameters
    ----------
    vectors : array-like, Matrix or iterable of blocks
        Shape (rows, d), or blocks of rows in order, which are copied to a temporary file.
    q : int
        Number of parts of a vector, which is the bytes of a row. Divides d.
    k : int
        Centroids of each part, at most 256.
    iterations : int
        Rounds of k-means; with a projection, also the updates of the projection before them.
    projection : {"opq"}, optional
        Learn a rotation that reduces the loss; None leaves vectors as they are.
    normalize : bool
        Scale rows to unit length first and store their norms, as finalfusion's tools do.
    sample : int, optional
        Rows to learn from; 256 for each centroid by default.
    seed : int
        Seed of the random generator.
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    Quantized
        codes (rows, q) uint8, codebooks (q, k, d / q) float32, projection (d, d) float32 or None,
        norms (rows,) float32 or None. Codes of more than 16 MiB are mapped from a temporary file.

    Raises
    ------
    ValueError
        If `q` does not divide d, or if there are no vectors, or some that are not finite.
    """
    if not 1 <= k <= 256:
        raise ValueError(f"k must be from 1 to 256, not {k}")
    if projection not in (None, "opq"):
        raise ValueError(f"projection must be 'opq' or None, not {projection!r}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")
    if isinstance(vectors, Matrix):
        return _quantize(vectors, q, k, iterations, projection, normalize, sample, seed, progress)
    if isinstance(vectors, np.ndarray) or hasattr(vectors, "__array__"):
        rows = np.asarray(vectors)
        return _quantize(rows, q, k, iterations, projection, normalize, sample, seed, progress)
    with tempfile.TemporaryFile() as spool:
        columns = None
        for block in split_blocks(vectors):
            if block.ndim != 2 or block.shape[1] != (columns or block.shape[1]):
                raise ValueError(f"vectors must be blocks of one width, not of shape {block.shape}")
            columns = block.shape[1]
            spool.write(
                np.ascontiguousarray(block, np.float32).data.cast("B") if block.size else b""
            )
        spool.flush()
        if not spool.tell() or columns is None:
            raise ValueError("there are no vectors to learn from")
        rows = np.memmap(spool, np.float32, "r").reshape(-1, columns)
        return _quantize(rows, q, k, iterations, projection, normalize, sample, seed, progress)


def _quantize(
    vectors: Matrix | npt.NDArray[Any],
    q: int,
    k: int,
    iterations: int,
    projection: str | None,
    unit: bool,
    sample: int | None,
    seed: int,
    progress: Progress | None,
) -> Quantized:
    if len(vectors.shape) != 2:
        raise ValueError(f"vectors must have two dimensions, not {len(vectors.shape)}")
    n, d = vectors.shape
    if not n or not d:
        raise ValueError("there are no vectors to learn from")
    if q < 1 or d % q:
        raise ValueError(f"q must divide the {d} dimensions, not be {q}")
    rng = np.random.default_rng(seed)
    n_sample = min(n, SAMPLES_PER_CENTROID * k if sample is None else sample)
    if n_sample < 1:
        raise ValueError(f"sample must be at least 1, not {n_sample}")
    chosen = np.arange(n) if n_sample == n else np.sort(rng.choice(n, n_sample, replace=False))
    taken = _scratch((n_sample, d), np.float32)
    at_once = _rows_at_once(d)
    for start in range(0, n_sample, at_once):
        numbers = chosen[start : start + at_once]
        block = vectors.take(numbers) if isinstance(vectors, Matrix) else vectors[numbers]
        taken[start : start + at_once], _ = _prepared(block, unit)
    codebooks, turn = train(taken, q, k, iterations, projection, rng, progress)
    codes = _scratch((n, q), np.uint8)
    lengths = np.empty(n, np.float32) if unit else None
    start = 0
    for block in report_rows(_sized(vectors), progress, "encoding rows", n):
        rows, norms = _prepared(block, unit)
        part = slice(start, start + len(block))
        if lengths is not None:
            lengths[part] = norms
        codes[part] = encode(rows if turn is None else multiply(rows, turn.T), codebooks)
        start += len(block)
    return Quantized(codes, codebooks, turn, lengths)


def _sized(vectors: Matrix | npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    at_once = _rows_at_once(vectors.shape[1])
    for start in range(0, len(vectors), at_once):
        yield vectors[start : start + at_once]


def _rows_at_once(columns: int) -> int:
    return max(min(_BLOCK_NBYTES // (4 * columns), _ENCODED), 1)


def _scratch(shape: tuple[int, int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array to fill; a large array is mapped from a temporary file."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes <= _IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as spool:
        # Zeros, not a hole: writing to a hole on a full disk would kill the process.
        for start in range(0, nbytes, _BLOCK_NBYTES):
            spool.write(bytes(min(_BLOCK_NBYTES, nbytes - start)))
        spool.flush()
        return np.memmap(spool, dtype, "r+", shape=shape).view(np.ndarray)


def _prepared(
    rows: npt.NDArray[Any], unit: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
    """Return a float32 copy of rows; with `unit`, scaled to unit length, and their lengths."""
    if not is_number(rows.dtype):
        raise ValueError(f"vectors must be numbers, not {rows.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        copied = np.array(rows, np.float32, order="C")
    if not np.isfinite(copied).all():
        raise ValueError("a vector holds values that are not finite")
    return copied, normalize(copied) if unit else None


def train(
    rows: npt.NDArray[np.float32],
    q: int,
    k: int,
    iterations: int,
    projection: str | None,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
    """Return codebooks (q, k, d / q) learned from rows (n, d), and a rotation (d, d) or None."""
    n, d = rows.shape
    seeds = rng.integers(1 << 63, size=q)
    turn = None
    turned = rows
    codebooks = np.empty((q, k, d // q), np.float32)
    if projection is not None:
        turn = _allocated(rows, q)
        turned, decoded = (_scratch((n, d), np.float32) for _ in range(2))
        multiply(rows, turn.T, out=turned)

    def each_part(work: Callable[[int, npt.NDArray[np.float32]], None]) -> None:
        parts = turned.reshape(n, q, -1)
        in_parallel(lambda j: work(j, np.ascontiguousarray(parts[:, j])), range(q))

    def begin(j: int, part: npt.NDArray[np.float32]) -> None:
        codebooks[j] = first_centroids(part, k, np.random.default_rng(seeds[j]))

    def refine(steps: int) -> Callable[[int, npt.NDArray[np.float32]], None]:
        def work(j: int, part: npt.NDArray[np.float32]) -> None:
            codebooks[j] = kmeans(part, codebooks[j], steps)

        return work

    each_part(begin)
    if turn is not None:
        for done in range(1, iterations + 1):
            each_part(refine(_STEPS))
            reconstruct(encode(turned, codebooks), codebooks, out=decoded)
            # The rotation that brings rows closest to their decoded values (Procrustes).
            left, _, right = np.linalg.svd(multiply(rows.T, decoded.T).astype(np.float64))
            turn = multiply(left, right.T).astype(np.float32)
            multiply(rows, turn.T, out=turned)
            if progress is not None:
                progress("updating the projection", done, iterations)
    each_part(refine(iterations))
    if progress is not None:
        progress("learning codebooks", q, q)
    return codebooks, turn


def first_centroids(
    rows: npt.NDArray[np.float32], k: int, rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Choose k rows (k, d) that lie far apart, by k-means++ over a sample of the rows."""
    n = min(len(rows), _SEEDS_PER_CENTROID * k)
    rows = rows[np.sort(rng.choice(len(rows), n, replace=False))]
    chosen = np.empty(k, np.int64)
    chosen[0] = rng.integers(n)
    nearest = np.full(n, np.inf, np.float32)
    for i in range(1, k):
        away = rows - rows[chosen[i - 1]]
        np.minimum(nearest, vecdot(away, away), out=nearest)
        sums = np.cumsum(nearest, dtype=np.float64)
        if sums[-1] > 0:
            chosen[i] = min(int(np.searchsorted(sums, rng.random() * sums[-1], "right")), n - 1)
        else:  # fewer different rows than centroids
            chosen[i] = rng.integers(n)
    return rows[chosen]


def kmeans(
    rows: npt.NDArray[np.float32], centroids: npt.NDArray[np.float32], iterations: int
) -> npt.NDArray[np.float32]:
    """Repeatedly move each centroid to the mean of the rows nearest to it.

    A centroid without such rows moves to the row that is farthest from its own centroid.
    """
    k, d = centroids.shape
    centroids = centroids.copy()
    before = None
    for _ in range(iterations):
        codes = _nearest(rows, centroids)
        if before is not None and np.array_equal(codes, before):
            break
        before = codes
        counts = np.bincount(codes, minlength=k)
        for j in range(d):
            sums = np.bincount(codes, weights=rows[:, j], minlength=k)
            centroids[:, j] = np.where(counts, sums / np.maximum(counts, 1), centroids[:, j])
        empty = np.flatnonzero(counts == 0)
        if empty.size:
            away = rows - centroids[codes]
            distances = vecdot(away, away)
            far = np.argsort(-distances, kind="stable")[: empty.size]
            far = far[distances[far] > _TINY * max(float(distances.max()), _TINY)]
            centroids[empty[: far.size]] = rows[far]
    return centroids


def encode(
    rows: npt.NDArray[np.float32], codebooks: npt.NDArray[np.float32]
) -> npt.NDArray[np.uint8]:
    """Return codes (n, q): for each part of each row, the number of the nearest centroid."""
    q = len(codebooks)
    codes = np.empty((len(rows), q), np.uint8)
    parts = rows.reshape(len(rows), q, -1)

    def work(j: int) -> None:
        codes[:, j] = _nearest(np.ascontiguousarray(parts[:, j]), codebooks[j])

    in_parallel(work, range(q))
    return codes


def _nearest(
    rows: npt.NDArray[np.float32], centroids: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """Return the number of the centroid nearest to each row: shape (n,), int64."""
    codes = np.empty(len(rows), np.int64)
    # One product gives the squared distances, up to the squared length of the row.
    squares = vecdot(centroids, centroids)[:, np.newaxis]
    columns = np.concatenate((-2 * centroids, squares), axis=1)
    at_once = max(_DISTANCES // len(columns), 16)
    ones = np.ones((at_once, 1), np.float32)
    for start in range(0, len(rows), at_once):
        block = rows[start : start + at_once]
        wide = np.concatenate((block, ones[: len(block)]), axis=1)
        distances = multiply(wide, columns)
        np.argmin(distances, axis=1, out=codes[start : start + at_once])
    return codes


def _allocated(rows: npt.NDArray[np.float32], q: int) -> npt.NDArray[np.float32]:
    """Return the rotation (d, d) onto the principal axes, ordered so that parts vary equally.

    Eigenvalue allocation: axes are taken by falling variance, and each goes to the part with the
    smallest product of variances among those with room. It is optimal for normally distributed
    rows.
    """
    wide = _scratch(rows.shape, np.float64)
    wide[...] = rows
    d = rows.shape[1]
    values, axes = np.linalg.eigh(multiply(wide.T, wide.T) / len(rows))
    parts: list[list[int]] = [[] for _ in range(q)]
    # Relative to the smallest variance: logarithms below 0 would attract further axes.
    logs = np.log(np.maximum(values / max(float(values[-1]), _TINY), 1e-9))
    logs -= logs.min()
    products = np.zeros(q)
    for axis in np.argsort(-values, kind="stable").tolist():
        open_parts = [j for j in range(q) if len(parts[j]) < d // q]
        j = min(open_parts, key=lambda j: (products[j], j))
        parts[j].append(axis)
        products[j] += logs[axis]
    order = [axis for part in parts for axis in part]
    return axes[:, order].astype(np.float32)
