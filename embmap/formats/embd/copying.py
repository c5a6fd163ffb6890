"""Writing an EMBD file again: what of its tensors, special tokens and metadata is kept.

A safetensors file becomes an EMBD file with all tensors whose types EMBD files have.

All of it is kept if all tokens are. If some tokens are chosen, other tensors with a row for each
token are left out, because nothing says whether their rows go with the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import BFLOAT16, as_float32
from embmap.formats.embd.fields import (
    DTYPES,
    FORMAT,
    SPECIAL_TOKENS,
    TENSORS_ALIGNED,
    TensorLayout,
)
from embmap.formats.embd.file import EmbdFile, Tensors, find_word_embedding
from embmap.formats.embd.layout import EmbdLayout
from embmap.formats.embd.safetensors import NarrowTensor
from embmap.formats.exchange import Original, Output
from embmap.formats.tensors import NamedTensors, StoredTensor, TensorFile

__all__ = ["Copy", "list_parts", "plan_copy"]

_TENSORS, _SPECIAL = "other tensors", "special tokens"  # as reports name them
_BLOCK_NBYTES = 1 << 22
_PAGE = 4096
_FLOATS = ("<f4", "<f2", "bfloat16")

Rows = npt.NDArray[np.int64] | None


def list_parts(file: EmbdFile, *, has_vectors: bool) -> tuple[str, ...]:
    """Return what a file holds beyond tokens, the tensor of their vectors, and metadata."""
    parts = [_TENSORS] if len(file.tensors) > has_vectors else []
    return (*parts, _SPECIAL) if file.special_tokens else tuple(parts)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """What is written again.

    Attributes
    ----------
    dialect : str
        The dialect of the original.
    special : tuple of int or None
        The rows of the special tokens in the order of the file.
    metadata : tuple of (str, str)
        Keys and values.
    parts : frozenset of str
        The parts of :func:`list_parts` that are kept.
    """

    dialect: str
    tensors: Mapping[str, Any]
    special: tuple[int, ...] | None
    metadata: tuple[tuple[str, str], ...]
    align: int
    checksums: bool
    parts: frozenset[str]


def plan_copy(output: Output) -> Copy:
    """Return what is kept of the original of an output; reads only tensors of int64."""
    original = cast(Original, output.original)
    if original.source.format != FORMAT:
        return _plan_tensors(output, original)
    file = cast(EmbdFile, original.source.file)
    stored = cast(Tensors, file.tensors)
    layout = stored.offsets
    n_tokens = None if layout.vocabulary is None else layout.vocabulary.n
    rows = original.rows
    if rows is not None and len(rows) == n_tokens:
        rows = None
    is_flat = (output.dialect or layout.dialect) == "flat"
    tensors: Mapping[str, Any] = {output.tensor: output.vectors}
    if original.source.is_whole:
        tensors = _choose_tensors(output, stored, rows, is_flat)
    special = None if is_flat else _renumber(file.special_tokens, rows)
    n_lost = len(layout.tensors) - len(tensors)
    kept = {_TENSORS: not n_lost, _SPECIAL: special is not None}
    return Copy(
        dialect=layout.dialect,
        tensors=tensors,
        special=special,
        metadata=_count_again(layout, n_tokens, output),
        align=_find_alignment(layout),
        checksums=layout.has_checksums,
        parts=frozenset(part for part, is_kept in kept.items() if is_kept),
    )


def _plan_tensors(output: Output, original: Original) -> Copy:
    """Return what is kept of a file of tensors in another format."""
    file = cast(TensorFile, original.source.file)
    if file.vectors is None and not original.is_whole:
        names = ", ".join(
            name for name in file.tensors if len(file.tensors.layout(name).shape) == 2
        )
        raise ValueError(
            f"rows can be chosen, scaled or cast in one tensor; choose it with tensor: {names}"
        )
    tensors: dict[str, Any] = {}
    for name in file.tensors:
        tensor = file.tensors.layout(name)
        is_of_vectors = name == file.vectors_name
        found = None
        if original.is_whole or not (is_of_vectors or _has_rows(tensor, original, file)):
            found = _fit(file.tensors, tensor, is_flat=output.dialect == "flat")
        if found is None and is_of_vectors:
            found = output.vectors
        if found is not None:
            tensors[name] = found
    is_kept = len(tensors) == len(file.tensors)
    return Copy(
        dialect="spec",
        tensors=tensors,
        special=None,
        metadata=(),
        align=64,
        checksums=True,
        parts=frozenset({_TENSORS} if is_kept else ()),
    )


def _has_rows(tensor: StoredTensor, original: Original, file: TensorFile) -> bool:
    """Whether a tensor has a row for each word, of which only some are written."""
    return original.rows is not None and tensor.shape[:1] == file.shape[:1]


def _fit(tensors: NamedTensors, tensor: StoredTensor, *, is_flat: bool) -> Any:
    """Return a tensor as EMBD files can store it; None if they cannot."""
    if not 1 <= len(tensor.shape) <= 4:
        return None
    if is_flat:
        if tensor.dtype not in _FLOATS:
            return None
        is_bfloat16 = tensor.dtype == "bfloat16"
        return _Blocks(tensors[tensor.name], None, widen=True, is_bfloat16=is_bfloat16)
    if tensor.dtype == "<i8":
        narrow = NarrowTensor(tensor.name, tensors[tensor.name])
        return narrow if narrow.fits() else None
    dtype = tensor.dtype if tensor.bits > 8 else f"<{tensor.dtype}"
    return tensors[tensor.name] if dtype in DTYPES.values() else None


class _Copied(Tensors):
    """Some tensors of a file, of which some have other values."""

    def __init__(
        self, tensors: Tensors, chosen: list[TensorLayout], changed: Mapping[str, Any]
    ) -> None:
        super().__init__(tensors.data, tensors.offsets)
        self._tensors = {tensor.name: tensor for tensor in chosen}
        self._changed = changed

    def __getitem__(self, name: str) -> Any:
        """Return a tensor as it is stored, or an object with its blocks."""
        return self._changed[name] if name in self._changed else super().__getitem__(name)


class _Blocks:
    """A tensor with some of its rows, or as float32, a few rows at a time."""

    def __init__(
        self, array: npt.NDArray[Any], rows: Rows, *, widen: bool, is_bfloat16: bool
    ) -> None:
        n = len(array) if rows is None else len(rows)
        self.shape = (n, *array.shape[1:])
        self.dtype = np.dtype(np.float32) if widen else array.dtype
        self._array, self._rows = array, rows
        self._widen, self._is_bfloat16 = widen, is_bfloat16

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Return the start and the values of a few rows at a time."""
        step = max(_BLOCK_NBYTES // max(4 * math.prod(self.shape[1:]), 1), 1)
        for start in range(0, self.shape[0], step):
            span = slice(start, start + step)
            block = self._array[span if self._rows is None else self._rows[span]]
            if self._widen:
                block = as_float32(block) if self._is_bfloat16 else block.astype(np.float32)
            yield start, block


def _choose_tensors(output: Output, tensors: Tensors, rows: Rows, is_flat: bool) -> Tensors:
    """Return the tensors that the output holds, with their values there."""
    layout = tensors.offsets
    n_tokens = None if layout.vocabulary is None else layout.vocabulary.n
    words = find_word_embedding(layout)
    per_token = {n_tokens, None if words is None else words.shape[0]}
    chosen, changed = [], dict[str, Any]()
    for tensor in layout.tensors.values():
        is_of_words = tensor == words
        if rows is not None and not is_of_words and tensor.shape[0] in per_token:
            continue
        if is_flat and tensor.dtype not in _FLOATS:
            continue
        if is_of_words and cast(Original, output.original).changed:
            changed[tensor.name] = output.vectors
            dtype = output.vectors.dtype
            stored = "bfloat16" if dtype == BFLOAT16 else dtype.newbyteorder("<").str
            tensor = replace(tensor, dtype=stored, shape=output.vectors.shape)
        elif (is_of_words and rows is not None) or (is_flat and tensor.dtype != "<f4"):
            changed[tensor.name] = _Blocks(
                tensors[tensor.name],
                rows if is_of_words else None,
                widen=is_flat and tensor.dtype != "<f4",
                is_bfloat16=tensor.dtype == "bfloat16",
            )
            tensor = replace(tensor, dtype="<f4") if is_flat else tensor
        chosen.append(tensor)
    return _Copied(tensors, chosen, changed)


def _renumber(special: Mapping[str, int], rows: Rows) -> tuple[int, ...] | None:
    """Return the rows of the special tokens among the chosen ones; None if one is missing."""
    if not special:
        return None
    numbers = tuple(special[name] for name in SPECIAL_TOKENS)
    if rows is None:
        return numbers
    places = {row: place for place, row in enumerate(rows.tolist())}
    found = tuple(places.get(number, -1) for number in numbers)
    return None if -1 in found else found


def _count_again(
    layout: EmbdLayout, n_tokens: int | None, output: Output
) -> tuple[tuple[str, str], ...]:
    """Return the metadata, in which right numbers of tokens and dimensions go on to be right."""
    words = find_word_embedding(layout)
    if words is None:
        return layout.metadata
    n, dim = output.vectors.shape
    changed = {
        ("vocab_size", str(n_tokens)): ("vocab_size", str(n)),
        ("embedding_dim", str(words.shape[1])): ("embedding_dim", str(dim)),
    }
    return tuple(changed.get(entry, entry) for entry in layout.metadata)


def _find_alignment(layout: EmbdLayout) -> int:
    """Return the power of two, up to a page, by which the offset of every tensor is divisible."""
    if layout.dialect == "flat":
        return 64
    least = 64 if layout.flags & TENSORS_ALIGNED else 1
    every = math.gcd(_PAGE, *(tensor.offset for tensor in layout.tensors.values()))
    return max(least, every if layout.tensors else 64)
