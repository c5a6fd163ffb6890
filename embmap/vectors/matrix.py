"""Lazy views: the rows of a file as numpy arrays.

:class:`Matrix` is the common face: rows, slices, gathers, blocks. A gather reads only the rows that
it returns, and a whole matrix is copied only on request.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, Self, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from embmap.vectors.exchange import CPU, Origin, check_request, export, find_again

__all__ = ["BLOCK_NBYTES", "Matrix", "RowIndex", "Rows", "check_out", "out_of_range"]

RowIndex = SupportsIndex | slice | npt.ArrayLike
BLOCK_NBYTES = 1 << 20
"""Size of the blocks in which rows are handed out."""


class Rows(Protocol):
    """Rows by subscript, which costs less than a call; the caller checks that a row exists."""

    def __getitem__(self, i: int, /) -> npt.NDArray[Any]:
        """Return row `i`: shape (columns,)."""
        ...


class Matrix(ABC):
    """An array that stays in its file and returns rows on request.

    Rows are vectors, and the shape is (rows, columns). Where rows are trajectories it is
    (rows, T, columns), and every shape below has T before the columns.

    Attributes
    ----------
    shape : tuple of int
        (rows, columns) or (rows, T, columns).
    dtype : numpy.dtype
        Type of an element of a returned row.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    origin: Origin | None = None  # None if the matrix is not a part of a file that can be reopened

    @property
    @abstractmethod
    def zero_copy(self) -> bool:
        """Whether ``m[i]`` and ``m[a:b]`` are views of the file."""

    @abstractmethod
    def row(self, i: int) -> npt.NDArray[Any]:
        """Return one row.

        Parameters
        ----------
        i : int
            A row that exists.

        Returns
        -------
        numpy.ndarray
            Shape (columns,).
        """

    @abstractmethod
    def _span(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return a range of rows, which all exist: shape (stop - start, columns)."""

    @abstractmethod
    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Write rows to `out`; the caller has checked both, the shape and the dtype as well."""

    def mapped(self) -> npt.NDArray[Any] | None:
        """Return all rows as one view of the file, for code in which a call per row is too slow.

        Returns
        -------
        numpy.ndarray or None
            Shape (rows, columns); None if rows are decoded or read.
        """
        return None

    def asked_for(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:  # noqa: ARG002
        """Return what :meth:`mapped` returns, after asking the system for some rows.

        Parameters
        ----------
        rows : numpy.ndarray
            Shape (n,), int64: rows that exist, which the caller reads next.

        Returns
        -------
        numpy.ndarray or None
            Shape (rows, columns); None if rows are decoded or read.
        """
        return None

    def rows(self) -> Rows:
        """Return the object whose subscripts are the fastest way to rows that exist.

        Returns
        -------
        Rows
            ``rows[i]`` is what :meth:`row` returns.
        """
        return _RowsOf(self)

    @abstractmethod
    def prefetch(self, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Ask the operating system to read rows ahead.

        Parameters
        ----------
        rows : numpy.ndarray, optional
            Shape (n,), int64; every row by default.
        """

    @property
    def random_access(self) -> bool:
        """Whether decoding a row needs only its own bytes, not a whole chunk."""
        return True

    def stored_as(self, dtype: str) -> Matrix | None:
        """Return the same rows in a dtype to which the stored numbers need no conversion.

        Parameters
        ----------
        dtype : str
            The name of a dtype, such as "float16" or "bfloat16".

        Returns
        -------
        Matrix or None
            Rows of that dtype, of which bfloat16 are bits: uint16. None if the file does not store
            its numbers so.
        """
        return self if self.dtype.name == dtype else None

    @property
    def ndim(self) -> int:
        """Number of dimensions: 2, or 3 where rows are trajectories."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the whole matrix in memory, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __repr__(self) -> str:
        """Say what it is without reading it."""
        sizes = " x ".join(map(str, self.shape))
        return f"<{type(self).__name__} {sizes} {self.dtype}, not read>"

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Return the rows in order, each of shape (columns,)."""
        for _, block in self.blocks():
            yield from block

    def __getitem__(self, item: RowIndex | tuple[Any, ...]) -> npt.NDArray[Any]:
        """Return one row, a slice, or the rows of an index array, and optionally some columns.

        Parameters
        ----------
        item : int, slice, array of int or of bool, or a tuple of these and columns
            The rows; negative numbers count from the end.

        Returns
        -------
        numpy.ndarray
            Shape (columns,) for one row, else (n, columns).

        Raises
        ------
        IndexError
            If a row does not exist.
        """
        if isinstance(item, tuple):
            if item and _is_row(item[0]):
                return self[item[0]][item[1:]]
            rows: npt.NDArray[Any] = self[item[0]] if item else self[:]
            return rows[(slice(None), *item[1:])]
        if isinstance(item, slice):
            start, stop, step = item.indices(self.shape[0])
            if step == 1:
                return self._span(start, max(start, stop))
            return self.take(np.arange(start, stop, step, dtype=np.int64))
        if _is_row(item):
            i = operator.index(cast(SupportsIndex, item))
            if not -self.shape[0] <= i < self.shape[0]:
                raise out_of_range("row", i, self.shape[0])
            return self.row(i % self.shape[0])
        return self.take(cast("npt.ArrayLike", item))

    def take(self, rows: npt.ArrayLike, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the rows of an index array.

        Parameters
        ----------
        rows : array-like
            Shape (n,), integers, or booleans of shape (rows,).
        out : numpy.ndarray, optional
            The array to fill: shape (n, columns), with this matrix's dtype.

        Returns
        -------
        numpy.ndarray
            Shape (n, columns): a new array, or `out`.

        Raises
        ------
        IndexError
            If a row does not exist.
        ValueError
            If `out` does not fit.
        """
        wanted = self.row_numbers(rows)
        out = check_out(out, (wanted.size, *self.shape[1:]), self.dtype)
        self._gather(wanted, out)
        return out

    def blocks(self, rows_per_block: int | None = None) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the matrix a few rows at a time, in bounded memory.

        Parameters
        ----------
        rows_per_block : int, optional
            Rows of a block; by default as many as fit into 1 MiB.

        Yields
        ------
        start : int
            The block's first row.
        block : numpy.ndarray
            Shape (rows of the block, columns).

        Raises
        ------
        ValueError
            If `rows_per_block` is not positive.
        """
        if rows_per_block is None:
            row_nbytes = max(math.prod(self.shape[1:]) * self.dtype.itemsize, 1)
            rows_per_block = max(BLOCK_NBYTES // row_nbytes, 1)
        if rows_per_block < 1:
            raise ValueError(f"rows_per_block must be positive, not {rows_per_block}")
        for start in range(0, self.shape[0], rows_per_block):
            yield start, self._span(start, min(start + rows_per_block, self.shape[0]))

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return the whole matrix as an array: a view if the matrix is zero-copy."""
        if copy is False and not self.zero_copy:
            raise ValueError("the rows of this matrix are decoded or read: copy must not be False")
        array = self._span(0, self.shape[0])
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(
                    f"{array.dtype} is converted to {np.dtype(dtype)}: copy must not be False"
                )
            with np.errstate(over="ignore", invalid="ignore"):
                return array.astype(dtype)
        return array.copy() if copy and not array.flags.writeable else array

    def _private_view(self) -> npt.NDArray[Any] | None:
        """Return all rows over copy-on-write memory; None if they are decoded or read."""
        return None

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the whole matrix as a capsule of DLPack, with which libraries exchange arrays.

        The rows of a zero-copy matrix are not read. The consumer gets a map of the file of its own:
        what it writes stays in its memory, and the file stays as it is. The map remains valid when
        the file is closed. If the file is cut short later, reading the lost part kills the process.

        Parameters
        ----------
        stream : None
            A stream of the device, which the CPU does not have.
        max_version : tuple of int, optional
            The highest version of DLPack that the consumer knows.
        dl_device : tuple of int, optional
            The device for the array, which can only be the CPU: (1, 0).
        copy : bool, optional
            Whether to copy the rows. By default they are copied if they are decoded, read or not
            aligned to their items. For a consumer that gives no `max_version`, they are also copied
            if they do not start at a multiple of 64 bytes.

        Returns
        -------
        capsule
            An array of the matrix's shape and dtype, which may be written to.

        Raises
        ------
        BufferError
            If a stream or another device is asked for, or if `copy` is False and a copy is needed.
        FormatError
            If the file was replaced while it was open. With ``copy=True`` it is copied.
        TruncatedError
            If the file shrank.
        """
        check_request(stream, dl_device)
        if copy is False and not self.zero_copy:
            raise BufferError("copy must not be False: the rows are decoded or read")
        private = None if copy else self._private_view()
        array = np.asarray(self) if private is None else private
        return export(array, max_version=max_version, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device of the array that DLPack gets: (1, 0), the CPU."""
        return CPU

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by path: the copy opens the file again and checks that it is the same."""
        if self.origin is None:
            raise TypeError(
                f"{self!r} is not a part of a file that embmap.open opened, and cannot be pickled"
            )
        return find_again, self.origin

    def __copy__(self) -> Self:
        """Return another matrix over the same data, for a subclass to change."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.origin = None
        return made

    def row_numbers(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the row numbers that an index array selects.

        Parameters
        ----------
        rows : array-like
            Shape (n,), integers, or booleans of shape (rows,).

        Returns
        -------
        numpy.ndarray
            Shape (n,), int64: rows that exist, none of them negative.

        Raises
        ------
        IndexError
            If a row does not exist.
        """
        wanted = np.asarray(rows)
        if wanted.ndim != 1:
            raise IndexError(f"rows must be a one-dimensional array, not {wanted.ndim}-dimensional")
        if wanted.dtype == np.bool_:
            if wanted.size != self.shape[0]:
                raise IndexError(
                    f"rows must be {self.shape[0]} booleans, one for each row, not {wanted.size}"
                )
            return np.flatnonzero(wanted)
        if wanted.size == 0:
            return np.empty(0, np.int64)
        if wanted.dtype.kind not in "iu":
            raise IndexError(f"rows must be integers or booleans, not {wanted.dtype}")
        lowest, highest = int(wanted.min()), int(wanted.max())
        if lowest < -self.shape[0] or highest >= self.shape[0]:
            wrong = lowest if lowest < -self.shape[0] else highest
            raise out_of_range("row", wrong, self.shape[0])
        wanted = wanted.astype(np.int64, copy=False)
        return np.where(wanted < 0, wanted + self.shape[0], wanted) if lowest < 0 else wanted


class _RowsOf:
    """Subscripts of a matrix that decodes or reads its rows."""

    __slots__ = ("_row",)

    def __init__(self, matrix: Matrix) -> None:
        self._row = matrix.row

    def __getitem__(self, i: int) -> npt.NDArray[Any]:
        return self._row(i)


def check_out(
    out: npt.NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return `out`, or a new array in place of None; raise ValueError if `out` does not fit."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.writeable:
        writable = "" if out.flags.writeable else "read-only "
        raise ValueError(
            f"out must be a writable {dtype} array of shape {shape}, "
            f"not a {writable}{out.dtype} array of shape {out.shape}"
        )
    return out


def out_of_range(what: str, number: int, n: int) -> IndexError:
    """Return the error for the number of a row or time step of which there are `n`."""
    return IndexError(f"{what} must be at least {-n} and below {n}, not {number}")


def _is_row(item: object) -> bool:
    """Whether an index selects one row; True and False do not."""
    return (
        hasattr(item, "__index__")
        and not isinstance(item, bool | np.bool_)
        and not (isinstance(item, np.ndarray) and item.ndim)
    )
