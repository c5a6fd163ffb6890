"""Product-quantized vectors: the matrix that decodes them, and the parts that a writer takes."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.product import distance_tables, reconstruct, table_sums
from embmap.codecs.products import multiply, vecdot
from embmap.errors import FormatError
from embmap.vectors.matrix import Matrix
from embmap.vectors.streamed import Leading, Selected

__all__ = ["ProductMatrix", "Quantized"]

_TAME = 1e9  # below this bound no float32 operation of decoding overflows


@dataclass(frozen=True)
class Quantized:
    """The parts of a product-quantized matrix, for a writer.

    Attributes
    ----------
    codes : array-like or Matrix
        Shape (rows, q), uint8.
    codebooks : array-like
        Shape (q, k, d / q), float32.
    projection : array-like, optional
        Shape (d, d), float32.
    norms : array-like, optional
        Shape (rows,), float32.
    """

    codes: Any
    codebooks: npt.ArrayLike
    projection: npt.ArrayLike | None = None
    norms: npt.ArrayLike | None = None


class ProductMatrix(Matrix):
    """Rows decoded from codes on request: (rows, d) float32."""

    def __init__(
        self,
        codes: Matrix,
        codebooks: Matrix,
        k: int,
        projection: Matrix | None,
        norms: Matrix | None,
        where: dict[str, Any],
    ) -> None:
        rows, q = codes.shape
        self.shape = (rows, codebooks.shape[1] * q)
        self.dtype = np.dtype(np.float32)
        self.codes = codes
        self._codebooks = codebooks
        self._k = k
        self._projection = projection
        self._norms = norms
        self._where = where
        self._numbers: npt.NDArray[np.int64] | None = None
        self._code_rows = codes.rows()
        self._norm_rows = None if norms is None else norms.rows()
        self._tables: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None] | None = None
        self._squares: npt.NDArray[np.float32] | None = None
        self._turns: bool | None = None
        self._tame = False

    @property
    def zero_copy(self) -> bool:
        return False

    @property
    def codebooks(self) -> npt.NDArray[np.float32]:
        """The centroids: shape (q, k, d / q), float32."""
        return self._decoding_tables()[0]

    @property
    def projection(self) -> npt.NDArray[np.float32] | None:
        """The projection: shape (d, d), float32; None in a file without a projection."""
        return self._decoding_tables()[1]

    @property
    def norms(self) -> npt.NDArray[np.float32] | None:
        """The norm of each row: shape (rows,), float32; None in a file without norms."""
        return None if self._norms is None else np.asarray(self._norms).reshape(-1)

    def _decoding_tables(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        if self._tables is None:
            # Aligned once: every gather would copy unaligned tables.
            q = self.codes.shape[1]
            codebooks = np.require(self._codebooks, requirements="A")
            projection = self._projection
            self._tables = (
                codebooks.reshape(q, self._k, self._codebooks.shape[1]),
                None if projection is None else np.require(projection, requirements="A"),
            )
            self._tame = all(
                table is None or bool((np.abs(table) < _TAME).all()) for table in self._tables
            )
        return self._tables

    def select(self, rows: npt.NDArray[np.int64]) -> ProductMatrix:
        """Return some rows of this matrix, which has the rows of a file, as a matrix."""
        part = copy(self)
        part.shape = (rows.size, self.shape[1])
        part._numbers = rows
        part.codes = Selected(self.codes, rows)
        part._code_rows = part.codes.rows()
        if self._norms is not None:
            part._norms = Selected(self._norms, rows)
            part._norm_rows = part._norms.rows()
        return part

    def leading(self, columns: int) -> Matrix:
        """Return the first columns; without a projection only their codes are decoded."""
        codebooks, projection = self._decoding_tables()
        if projection is not None:
            return Leading(self, columns)
        width = codebooks.shape[2]
        q = -(-columns // width)
        part = copy(self)
        part.shape = (self.shape[0], q * width)
        part.codes = Leading(self.codes, q)
        part._code_rows = part.codes.rows()
        part._tables = codebooks[:q], None
        part._squares = None
        part._turns = None
        return part if q * width == columns else Leading(part, columns)

    def row(self, i: int) -> npt.NDArray[np.float32]:
        norm = None if self._norm_rows is None else self._norm_rows[i]
        row: npt.NDArray[np.float32] = self._decode(self._code_rows[i][np.newaxis], norm, None, i)[
            0
        ]
        return row

    def _span(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        norms = None if self._norms is None else self._norms[start:stop][:, 0]
        return self._decode(self.codes[start:stop], norms, None, start)

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        norms = None if self._norms is None else self._norms.take(rows)[:, 0]
        if out.flags.c_contiguous:
            self._decode(self.codes.take(rows), norms, out, None)
        else:
            out[...] = self._decode(self.codes.take(rows), norms, None, None)

    def _decode(
        self,
        codes: npt.NDArray[np.uint8],
        norms: npt.NDArray[np.float32] | None,
        out: npt.NDArray[np.float32] | None,
        first: int | None,
    ) -> npt.NDArray[np.float32]:
        codebooks, projection = self._decoding_tables()
        tame = self._tame and (
            norms is None or (len(norms) == 1 and abs(norms.item()) < _TAME)  # of a single row
        )
        try:
            if tame:
                return reconstruct(codes, codebooks, projection, norms, out)
            with np.errstate(over="ignore", invalid="ignore"):
                return reconstruct(codes, codebooks, projection, norms, out)
        except IndexError as error:
            raise self._wrong_code(error, codes, first) from None

    def tables(self, vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the tables (n, q, k) with which :meth:`products` multiplies vectors (n, d)."""
        return distance_tables(vectors, *self._decoding_tables())

    @np.errstate(over="ignore", invalid="ignore")
    def products(
        self, tables: npt.NDArray[np.float32], start: int, stop: int
    ) -> npt.NDArray[np.float32]:
        """Return dot products (n, stop - start) of vectors with rows that are not decoded."""
        sums = self._sums(tables, start, stop)
        if self._norms is not None:
            sums *= self._norms[start:stop][:, 0]
        return sums

    @np.errstate(over="ignore", invalid="ignore")
    def lengths(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return the Euclidean lengths of a range of rows; decode the rows only if necessary."""
        codebooks, projection = self._decoding_tables()
        if self._squares is None:
            squares = vecdot(codebooks, codebooks, dtype=np.float64)
            # Their sums are exact enough unless a square vanished or overflowed.
            plain = bool((squares < 1e30).all() and ((squares > 1e-30) | (squares == 0)).all())
            self._turns = plain and (projection is None or _is_rotation(projection))
            self._squares = squares.astype(np.float32)[np.newaxis]
        lengths: npt.NDArray[np.float32]
        if self._turns:
            lengths = np.sqrt(self._sums(self._squares, start, stop)[0])
            if self._norms is not None:
                lengths *= np.abs(self._norms[start:stop][:, 0])
            return lengths
        rows = self._span(start, stop)
        lengths = np.sqrt(vecdot(rows, rows, dtype=np.float64)).astype(np.float32)
        return lengths

    def _sums(
        self, tables: npt.NDArray[np.float32], start: int, stop: int
    ) -> npt.NDArray[np.float32]:
        codes = self.codes[start:stop]
        try:
            return table_sums(codes, tables)
        except IndexError as error:
            raise self._wrong_code(error, codes, start) from None

    def _wrong_code(
        self, error: IndexError, codes: npt.NDArray[np.uint8], first: int | None
    ) -> FormatError:
        where = dict(self._where)
        if first is not None:
            wrong = first + int(np.flatnonzero((codes >= self._k).any(axis=1))[0])
            wrong = wrong if self._numbers is None else int(self._numbers[wrong])
            where["field"] = f"codes of row {wrong}"
        return FormatError(f"{error}", **where)

    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        self.codes.prefetch(rows)


def _is_rotation(projection: npt.NDArray[np.float32]) -> bool:
    """Whether a projection preserves lengths, up to rounding."""
    wide = projection.astype(np.float64)
    return bool(np.square(multiply(wide.T, wide.T) - np.eye(len(wide))).sum() < 1e-10)
