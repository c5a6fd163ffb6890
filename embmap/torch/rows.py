"""A data set of rows, and loaders that read whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from embmap.torch.table import RowTable, Source, matrix_of

__all__ = ["Rows"]


class Rows(Dataset[torch.Tensor]):
    """The vectors of a file as a data set: an item is a copy of a row.

    It pickles by the path of the file, so that workers of a loader open the file again.

    Parameters
    ----------
    source : Embeddings or Matrix
        An open file, or its vectors.
    rows : array-like, optional
        Shape (n,), integers, or booleans of shape (rows,): the items. Every row by default.
    dtype : torch.dtype, optional
        The dtype of the items, by default the dtype of the vectors; see
        :func:`embmap.torch.tensor`.

    Raises
    ------
    IndexError
        If a row does not exist.
    FormatError
        If the file has no vectors.
    TypeError
        If an argument has a wrong type.
    """

    def __init__(
        self,
        source: Source,
        rows: npt.ArrayLike | torch.Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._table = RowTable(matrix_of(source), dtype)
        if isinstance(rows, torch.Tensor):
            rows = rows.detach().cpu().numpy()
        self._rows = None if rows is None else self._table.row_numbers(rows)

    def __len__(self) -> int:
        """Return the number of items."""
        return self._table.shape[0] if self._rows is None else self._rows.size

    def __getitem__(self, item: int) -> torch.Tensor:
        """Return an item.

        Parameters
        ----------
        item : int
            Its number; negative numbers count from the end.

        Returns
        -------
        torch.Tensor
            Shape (dim,), or (T, dim) where rows are trajectories.

        Raises
        ------
        IndexError
            If there is no such item.
        """
        return self._table.part(item if self._rows is None else self._rows[item])

    def __getitems__(self, items: Sequence[int]) -> list[torch.Tensor]:
        """Return several items, which are read together.

        Parameters
        ----------
        items : sequence of int
            Their numbers.

        Returns
        -------
        list of torch.Tensor
            A tensor of shape (dim,) for each.

        Raises
        ------
        IndexError
            If there is no such item.
        """
        return list(self.batch(items).unbind(0))

    def batch(self, items: npt.ArrayLike | torch.Tensor) -> torch.Tensor:
        """Return several items as one tensor.

        Parameters
        ----------
        items : array-like or torch.Tensor
            Their numbers: shape (n,), integers.

        Returns
        -------
        torch.Tensor
            Shape (n, dim), or (n, T, dim).

        Raises
        ------
        IndexError
            If there is no such item.
        """
        numbers = items.numpy() if isinstance(items, torch.Tensor) else np.asarray(items)
        return self._table.take(numbers if self._rows is None else self._rows[numbers])

    def loader(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> DataLoader[torch.Tensor]:
        """Return a loader of batches, which reads the rows of a batch together.

        Parameters
        ----------
        batch_size : int
            Number of rows in a batch.
        shuffle : bool
            Whether each pass has an order of its own.
        drop_last : bool
            Whether to leave out a last batch with too few rows.
        generator : torch.Generator, optional
            Source of random numbers for the order; torch's own by default.
        **options : object
            Other options of :class:`torch.utils.data.DataLoader`, such as `num_workers`.

        Returns
        -------
        torch.utils.data.DataLoader
            Its batches are tensors of shape (n, dim), or (n, T, dim).

        Raises
        ------
        ValueError
            If `batch_size` is not positive.
        TypeError
            If torch does not know an option.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, not {batch_size}")
        batches = _Batches(
            n_items=len(self),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            generator=generator,
        )
        return DataLoader(_Together(self), batch_size=None, sampler=batches, **options)


class _Together(Dataset[torch.Tensor]):
    """The rows of a data set by tensors of their numbers."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __getitem__(self, items: torch.Tensor) -> torch.Tensor:
        return self._rows.batch(items)


@dataclass(frozen=True, kw_only=True)
class _Batches(Sampler[torch.Tensor]):
    """The numbers of the rows of each batch, as tensors."""

    n_items: int
    batch_size: int
    shuffle: bool
    drop_last: bool
    generator: torch.Generator | None

    def __len__(self) -> int:
        n_whole, n_left = divmod(self.n_items, self.batch_size)
        return n_whole + (n_left > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(self.n_items, generator=self.generator) if self.shuffle else None
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            stop = min(start + self.batch_size, self.n_items)
            yield torch.arange(start, stop) if order is None else order[start:stop]
