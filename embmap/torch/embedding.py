"""A layer whose vectors stay in their file."""

from __future__ import annotations

from typing import Any

import torch

from embmap.torch.table import RowTable, Source, matrix_of

__all__ = ["Embedding"]


class Embedding(torch.nn.Module):
    """A frozen layer of embeddings whose vectors stay in their file, compressed or not.

    Only the rows that are looked up are decoded. The layer has no parameters: its state holds the
    sizes of the file, and it pickles by the file's path. For rows that are mapped and not
    compressed, ``torch.nn.Embedding.from_pretrained(torch.from_dlpack(f.vectors))`` is faster.

    Parameters
    ----------
    source : Embeddings or Matrix
        An open file, or its vectors.
    dtype : torch.dtype, optional
        The dtype of the vectors, by default their own; see :func:`embmap.torch.tensor`.

    Attributes
    ----------
    num_embeddings : int
        Number of rows.
    embedding_dim : int
        Length of a vector.

    Raises
    ------
    FormatError
        If the file has no vectors.
    TypeError
        If an argument has a wrong type.
    """

    def __init__(self, source: Source, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._table = RowTable(matrix_of(source), dtype)
        self.num_embeddings = self._table.shape[0]
        self.embedding_dim = self._table.shape[-1]

    @torch.compiler.disable  # reading a file is nothing that a compiler can trace
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the vectors of rows, on the device of `rows`.

        Parameters
        ----------
        rows : torch.Tensor
            Any shape; int32 or int64.

        Returns
        -------
        torch.Tensor
            The shape of `rows`, followed by dim, or by (T, dim) where rows are trajectories.

        Raises
        ------
        IndexError
            If a row is negative or does not exist.
        TypeError
            If `rows` are not integers.
        """
        if rows.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"rows must be int64 or int32, not {rows.dtype}")
        flat = rows.detach().reshape(-1).cpu()
        if flat.numel() and int(flat.min()) < 0:
            lowest, n = int(flat.min()), self.num_embeddings
            raise IndexError(f"row must be at least 0 and below {n}, not {lowest}")
        if self._table.reads_views:
            found = self._table.take(flat.numpy())
        else:  # each row is decoded once
            distinct, places = torch.unique(flat, return_inverse=True)
            found = self._table.take(distinct.numpy())[places]
        return found.reshape(*rows.shape, *self._table.shape[1:]).to(rows.device)

    def extra_repr(self) -> str:
        """Return what the text of a module shows of it.

        Returns
        -------
        str
            The sizes and the dtype.
        """
        return f"{self.num_embeddings}, {self.embedding_dim}, dtype={self._table.dtype}"

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state that takes the place of the vectors.

        Returns
        -------
        dict
            The shape of the vectors.
        """
        return {"shape": list(self._table.shape)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Compare a stored state with the file.

        Parameters
        ----------
        state : dict
            What :meth:`get_extra_state` returned.

        Raises
        ------
        ValueError
            If the vectors have another shape.
        """
        if state != self.get_extra_state():
            found = tuple(self._table.shape)
            raise ValueError(f"the vectors must have the shape {state['shape']}, not {found}")
