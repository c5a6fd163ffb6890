"""Rows as one byte for each number, and bounds of their products with unit vectors.

A row x of length L is stored as whole numbers k from -127 to 127 and a scale t. It is about
L c + t w k, where c and w are a center and a width for each column. The row's error E is at least
the length of the difference, so that by Cauchy and Schwarz a product of x with a unit vector u lies
within E of L <u, c> + t <u w, k>.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embmap.codecs.products import vecdot
from embmap.search.lengths import HIGH, LOW, measure_lengths

__all__ = [
    "MOST_COLUMNS",
    "Asked",
    "Columns",
    "Rows",
    "encode",
    "find_wrong",
    "measure_columns",
    "sample_arguments",
]

MOST_COLUMNS = 1 << 16  # sums of more products might not fit into 32 bits
_HIGHEST = 127
_MOST = 2**31 - 1
_ROUNDING = 2.0**-20  # of a length: more than rounding in float32 adds to an error


class Columns(NamedTuple):
    """The center and the width of each column: (dim,) float32 each."""

    centers: npt.NDArray[np.float32]
    widths: npt.NDArray[np.float32]


class Rows(NamedTuple):
    """Some rows of a sketch: codes (n, width) int8, and (n,) scales, errors and lengths.

    Rows whose squares might overflow or vanish, and rows of zeros, have codes and errors of zero:
    their lengths show that the bounds do not hold.
    """

    codes: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    errors: npt.NDArray[np.float32]
    lengths: npt.NDArray[Any]

    def locked(self) -> Rows:
        """Return the same arrays, read-only like views of a map: loops are compiled for either."""
        for array in self:
            array.flags.writeable = False
        return self


@dataclass(frozen=True)
class Asked:
    """Unit vectors (m, dim) as whole numbers (m, width), for products with codes.

    The product with a row is about ``length * bases + scale * steps * (codes @ numbers)``. It
    differs by no more than the error of the row and ``scale * rests``.
    """

    numbers: npt.NDArray[np.int16]
    steps: npt.NDArray[np.float64]
    bases: npt.NDArray[np.float64]
    rests: npt.NDArray[np.float64]

    @classmethod
    def of(cls, units: npt.NDArray[np.float64], columns: Columns, width: int) -> Asked:
        """Round unit vectors to whole numbers whose products with codes fit into 32 bits."""
        m, dim = units.shape
        weighted = units * columns.widths
        highest = min(2**15 - 1, _MOST // ((_HIGHEST + 1) * max(dim, 1)))
        steps = np.abs(weighted).max(axis=1, initial=0) / highest
        numbers = np.zeros((m, width), np.int16)
        rounded = np.rint(weighted / np.where(steps > 0, steps, 1)[:, np.newaxis])
        numbers[:, :dim] = rounded
        rests = np.linalg.norm(weighted - rounded * steps[:, np.newaxis], axis=1)
        rests *= _HIGHEST * math.sqrt(dim) * (1 + _ROUNDING)
        return cls(numbers, steps, vecdot(units, columns.centers.astype(np.float64)), rests)

    def bound(self, rows: Rows, kernel: Any) -> npt.NDArray[Any]:
        """Return upper bounds of the products (m, n), computed by the compiled `code_bounds`.

        They are infinite for rows that are compared exactly in any case, and NaN for rows that are
        not finite.
        """
        arguments = self._arguments(rows)
        kernel(*arguments)
        bounds: npt.NDArray[Any] = arguments[-1]
        return bounds

    def _arguments(self, rows: Rows) -> tuple[Any, ...]:
        """Return the arguments of `code_bounds`; the last one takes the bounds."""
        terms = rows[1:], (self.steps, self.bases, self.rests), (LOW, HIGH)
        shape = len(self.numbers), len(rows.codes)
        return rows.codes, self.numbers, terms, np.empty(shape, rows.lengths.dtype)

    def errors(self, rows: Rows, chosen: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return how far the products of chosen rows may be below their bounds, halved: (m, n)."""
        rests = self.rests[:, np.newaxis].astype(rows.lengths.dtype)
        errors: npt.NDArray[Any] = rests * rows.scales[chosen] + rows.errors[chosen]
        return errors


def sample_arguments(dtype: npt.DTypeLike) -> tuple[Any, ...]:
    """Return arguments of the types that `code_bounds` is compiled for, for vectors of a type."""
    columns = Columns(np.zeros(1, np.float32), np.ones(1, np.float32))
    kinds = np.int8, np.float32, np.float32, np.result_type(dtype, np.float32)
    rows = Rows(*(np.zeros(1 if i else (1, 16), kind) for i, kind in enumerate(kinds)))
    return Asked.of(np.ones((1, 1)), columns, 16)._arguments(rows.locked())


def measure_columns(rows: npt.NDArray[Any]) -> Columns:
    """Return centers and widths that suit a sample of rows (n, dim)."""
    with np.errstate(all="ignore"):
        lengths = measure_lengths(rows)
        plain = (lengths >= LOW) & (lengths <= HIGH)
        units = rows[plain] / lengths[plain, np.newaxis].astype(np.float64)
    if not len(units):
        return Columns(np.zeros(rows.shape[1], "<f4"), np.ones(rows.shape[1], "<f4"))
    centers = units.mean(axis=0)
    widths = units.std(axis=0)
    # A column that is constant here may vary elsewhere.
    widths = np.maximum(widths, max(float(widths.max(initial=0)) / 64, 1e-6))
    return Columns(centers.astype("<f4"), widths.astype("<f4"))


def encode(rows: npt.NDArray[Any], columns: Columns, out: Rows) -> None:
    """Write the sketch of rows (n, dim) of float32 or float64 to `out`."""
    dtype, dim = rows.dtype, rows.shape[1]
    lengths = measure_lengths(rows)
    out.lengths[...] = lengths
    plain = (lengths >= LOW) & (lengths <= HIGH)
    known = np.where(plain, lengths, 0)[:, np.newaxis]
    with np.errstate(all="ignore"):
        rest = rows - known * columns.centers.astype(dtype)
        rest[~plain] = 0
        widths = columns.widths.astype(dtype)
        numbers = rest / widths
        scales = (np.abs(numbers).max(axis=1, initial=0) / _HIGHEST).astype(np.float32)
        by = np.where(scales > 0, scales, 1).astype(dtype)[:, np.newaxis]
        numbers /= by
        np.rint(numbers, out=numbers)
        np.clip(numbers, -_HIGHEST, _HIGHEST, out=numbers)
        out.codes[:, :dim] = numbers
        numbers *= widths
        numbers *= scales.astype(dtype)[:, np.newaxis]
        rest -= numbers
        errors = measure_lengths(rest).astype(np.float64)
        errors += errors * (dim * 2.0**-24) + (errors + known[:, 0]) * _ROUNDING
    out.scales[...] = scales
    upper = np.nextafter(errors.astype(np.float32), np.float32(np.inf))
    out.errors[...] = np.where(plain, upper, 0)


def find_wrong(rows: npt.NDArray[Any], columns: Columns, sketch: Rows) -> int | None:
    """Return the first row (n, dim) whose sketch does not hold; None if all do."""
    wide = rows.astype(np.float64)
    with np.errstate(all="ignore"):
        lengths = measure_lengths(wide)
        known = sketch.lengths.astype(np.float64)
        close = np.abs(known - lengths) <= lengths * (2.0**-24 * (8 + rows.shape[1])) + 1e-44
        same = close & ((known > 0) == (lengths > 0)) | np.isposinf(known) & (lengths > HIGH)
        same |= np.isnan(known) & np.isnan(lengths)
        about = known[:, np.newaxis] * columns.centers
        about += (
            sketch.codes[:, : rows.shape[1]]
            * sketch.scales[:, np.newaxis].astype(np.float64)
            * columns.widths
        )
        plain = (known >= LOW) & (known <= HIGH)
        holds = ~plain | (np.linalg.norm(wide - about, axis=1) <= sketch.errors)
    wrong = np.flatnonzero(~(same & holds))
    return int(wrong[0]) if wrong.size else None
