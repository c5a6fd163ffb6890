"""The model that the metadata of an EMBD file name, compared with its tensors and tokens.

The published text lists the tensors of one model, all-MiniLM-L6-v2. The sizes of any model are
compared where the file has tensors with the names of BERT that show them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from embmap.formats.embd.fields import TensorLayout
from embmap.formats.embd.layout import EmbdLayout

__all__ = ["compare_metadata"]

_MINILM = "all-MiniLM-L6-v2"
_ROWS, _POSITIONS, _DIM, _INNER, _LAYERS = 30522, 512, 384, 1536, 6
_EMBEDDINGS = {
    "word_embeddings.weight": (_ROWS, _DIM),
    "position_embeddings.weight": (_POSITIONS, _DIM),
    "token_type_embeddings.weight": (2, _DIM),
    "LayerNorm.weight": (_DIM,),
    "LayerNorm.bias": (_DIM,),
}
_DENSE = {  # the shapes of the weights; a bias has the first size
    "attention.self.query": (_DIM, _DIM),
    "attention.self.key": (_DIM, _DIM),
    "attention.self.value": (_DIM, _DIM),
    "attention.output.dense": (_DIM, _DIM),
    "attention.output.LayerNorm": (_DIM,),
    "intermediate.dense": (_INNER, _DIM),
    "output.dense": (_DIM, _INNER),
    "output.LayerNorm": (_DIM,),
}
_LAYER = re.compile(r"(?:^|\.)encoder\.layer\.([0-9]{1,9})\.(.*)")
_SIZES = {  # the dimension of a tensor, of a layer if the name is part of one, that shows a size
    "attention.self.query.weight": ("hidden_size", 1),
    "intermediate.dense.weight": ("intermediate_size", 0),
    "embeddings.position_embeddings.weight": ("max_position_emb", 0),
}
_NUMBER = re.compile("[0-9]{1,18}")
_MOST_NAMED = 3  # tensors that a message names


def compare_metadata(layout: EmbdLayout, words: TensorLayout | None) -> Iterator[str]:
    """Yield a warning for each difference; `words` is the tensor of the word embedding."""
    stated = dict(layout.metadata)
    for key, what, found in _find_sizes(layout, words):
        value = stated.get(key, "").strip()
        if _NUMBER.fullmatch(value) and int(value) != found:
            yield f"the metadata state {key} {int(value)}, but {what} {found}"
    if stated.get("model_name", "").rsplit("/", 1)[-1] == _MINILM:
        yield from _compare_tensors(layout)


def _find_sizes(layout: EmbdLayout, words: TensorLayout | None) -> Iterator[tuple[str, str, int]]:
    """Yield the key of a size in the metadata, what shows the size, and the size there."""
    if layout.vocabulary is not None:
        yield "vocab_size", "the number of tokens is", layout.vocabulary.n
    elif words is not None:
        yield "vocab_size", f"the number of rows of {words.name!r} is", words.shape[0]
    if words is not None:
        yield "embedding_dim", f"the length of a row of {words.name!r} is", words.shape[1]
    layers, seen = set(), set()
    for tensor in layout.tensors.values():
        layer = _LAYER.search(tensor.name)
        if layer is not None:
            layers.add(int(layer[1]))
        key, axis = _SIZES.get(tensor.name if layer is None else layer[2], ("", 0))
        if key and axis < len(tensor.shape) and (key, tensor.shape[axis]) not in seen:
            seen.add((key, tensor.shape[axis]))
            yield key, f"in the shape of {tensor.name!r} it is", tensor.shape[axis]
    if layers:
        yield "num_layers", "the number of layers is", len(layers)


def _compare_tensors(layout: EmbdLayout) -> Iterator[str]:
    """Compare the tensors with those that the published text requires of all-MiniLM-L6-v2."""
    shapes = {name: tensor.shape for name, tensor in layout.tensors.items()}
    required = dict(_list_required())
    missing = [name for name in required if name not in shapes]
    if missing:
        named = ", ".join(missing[:_MOST_NAMED])
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        n, total = len(missing), len(required)
        yield f"the file lacks {n} of the {total} tensors of {_MINILM}: {named}{more}"
    for name, shape in required.items():
        found = shapes.get(name, shape)
        if found != shape:
            yield f"tensor {name!r} of {_MINILM} must have the shape {shape}, not {found}"


def _list_required() -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in _EMBEDDINGS.items():
        yield f"embeddings.{name}", shape
    for number in range(_LAYERS):
        for part, shape in _DENSE.items():
            yield f"encoder.layer.{number}.{part}.weight", shape
            yield f"encoder.layer.{number}.{part}.bias", shape[:1]
