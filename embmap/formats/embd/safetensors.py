"""Conversion of a safetensors model, its vocabulary and its configuration to EMBD."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import BFLOAT16
from embmap.formats.embd.writer import write
from embmap.io.backends import open_mapped
from embmap.io.mapping import ByteSource
from embmap.io.parsing import parse_json
from embmap.io.safetensors import Tensor, read_header
from embmap.words.given import read_words

__all__ = ["NarrowTensor", "from_safetensors"]

_BLOCK_NBYTES = 1 << 22
_KINDS = ("F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U32", "U16", "U8")


def from_safetensors(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    vocab: str | os.PathLike[str] | Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    align: int = 64,
    checksums: bool = True,
) -> Path:
    """Convert a safetensors model to an EMBD file, in bounded memory.

    Parameters
    ----------
    source : path-like
        The ``.safetensors`` file. If there is a ``config.json`` beside it, the metadata are derived
        from it.
    target : path-like, optional
        The file to write; by default the source's name with the suffix ``.weights``.
    vocab : path-like or sequence of str, optional
        A text file with one token per line (``vocab.txt``), or the tokens.
    metadata : mapping, optional
        Keys and values that override the derived metadata.
    align : int
        A power of two; the offset of every tensor is a multiple of it.
    checksums : bool
        Whether to write checksums.

    Returns
    -------
    pathlib.Path
        The new file.

    Raises
    ------
    FormatError
        If `source` is not a safetensors file.
    ValueError
        If a tensor has a dtype that EMBD files cannot store, such as float64, or int64 values
        beyond 32 bits.
    OSError
        If a file cannot be read or written.
    """
    path = Path(os.fsdecode(source))
    if isinstance(vocab, str | os.PathLike):
        vocab = read_words(vocab)
    data = open_mapped(path)
    tensors = {
        name: _take(name, data, tensor) for name, tensor in read_header(data).tensors.items()
    }
    return write(
        path.with_suffix(".weights") if target is None else target,
        tensors,
        vocab=vocab,
        metadata={**_derive_metadata(path, len(vocab or ())), **(metadata or {})},
        align=align,
        checksums=checksums,
    )


class NarrowTensor:
    """A tensor of int64, which EMBD files lack, as int32, a few rows at a time."""

    def __init__(self, name: str, array: npt.NDArray[np.int64]) -> None:
        self._name = name
        self._array = array
        self.shape = array.shape
        self.dtype = np.dtype("i4")

    def fits(self) -> bool:
        """Whether all values are within 32 bits."""
        return all(np.array_equal(block.astype(np.int32), block) for block in self._split())

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Return the start and the values of a few rows at a time."""
        start = 0
        for block in self._split():
            narrow = block.astype(np.int32)
            if not np.array_equal(narrow, block):
                raise ValueError(f"tensor {self._name!r} has values beyond 32 bits")
            yield start, narrow
            start += len(block)

    def _split(self) -> Iterator[npt.NDArray[np.int64]]:
        row_nbytes = max(math.prod(self.shape[1:]) * 8, 1)
        step = max(_BLOCK_NBYTES // row_nbytes, 1)
        for start in range(0, self.shape[0], step):
            yield self._array[start : start + step]


def _take(name: str, data: ByteSource, tensor: Tensor) -> Any:
    """Return a tensor of a safetensors file as an EMBD file stores it."""
    if tensor.kind not in _KINDS:
        raise ValueError(f"tensor {name!r} is {tensor.kind}, which EMBD files cannot store")
    dtype = BFLOAT16 if tensor.kind == "BF16" else np.dtype(tensor.dtype)
    array = data.array(tensor.offset, dtype, tensor.shape)
    return NarrowTensor(name, array) if tensor.kind == "I64" else array


def _derive_metadata(path: Path, n_tokens: int) -> dict[str, str]:
    """Return metadata from the configuration beside a model."""
    beside = path.with_name("config.json")
    config: Any = {}
    if beside.exists():
        try:
            config = parse_json(beside.read_bytes())
        except ValueError as error:
            raise ValueError(f"{beside} is not JSON: {error}") from None
        if not isinstance(config, dict):
            raise ValueError(f"{beside} is not a JSON object")
    hidden = config.get("hidden_size", "unknown")
    return {
        "model_name": str(config.get("_name_or_path") or path.stem),
        "model_version": "1.0.0",
        "embedding_dim": str(hidden),
        "vocab_size": str(config.get("vocab_size", n_tokens)),
        "num_layers": str(config.get("num_hidden_layers", "unknown")),
        "num_attention_heads": str(config.get("num_attention_heads", "unknown")),
        "hidden_size": str(hidden),
        "intermediate_size": str(config.get("intermediate_size", "unknown")),
        "max_position_emb": str(config.get("max_position_embeddings", "unknown")),
        "created_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
