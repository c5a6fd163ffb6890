"""Inputs of conversions, byte for byte as other programs write them."""

import io
import json
import struct

import numpy as np

__all__ = ["DIM", "RNG", "WORDS", "fasttext", "npy", "npz", "safetensors", "tensors", "word2vec"]

WORDS = ["</s>", "berlin", "zürich", "東京"]
DIM = 3
RNG = np.random.default_rng(1)


def fasttext(
    words=WORDS,
    *,
    labels=(),
    matrix=None,
    model=2,
    buckets=7,
    lengths=(2, 4),
    version=12,
    pruned=-1,
    quantized=0,
):
    """A fastText model, byte for byte as fastText saves it; the first version has no number."""
    rows = len(words) + (buckets if lengths[1] else 0)
    matrix = RNG.standard_normal((rows, DIM)).astype("<f4") if matrix is None else matrix
    parts = [] if version is None else [struct.pack("<ii", 793712314, version)]
    parts.append(
        struct.pack("<12id", matrix.shape[1], 5, 5, 1, 5, 1, 2, model, buckets, *lengths, 100, 1e-4)
    )
    n = len(words) + len(labels)
    parts.append(struct.pack("<iiiq", n, len(words), len(labels), 100))
    parts += [] if version is None else [struct.pack("<q", pruned)]
    for kind, entries in ((0, words), (1, labels)):
        parts += [entry.encode() + b"\0" + struct.pack("<qb", 9, kind) for entry in entries]
    output = np.zeros((n, matrix.shape[1]), "<f4")
    for flag, each in ((quantized, matrix), (0, output)):
        parts += [] if version is None else [struct.pack("<?", flag)]
        parts.append(struct.pack("<qq", *each.shape) + each.tobytes())
    return b"".join(parts), matrix


def word2vec(words=WORDS, newline=b"\n", vectors=None):
    """A binary file of word2vec, and its vectors."""
    vectors = RNG.standard_normal((len(words), DIM)).astype("<f4") if vectors is None else vectors
    parts = [b"%d %d\n" % vectors.shape]
    parts += [
        word.encode() + b" " + row.tobytes() + newline
        for word, row in zip(words, vectors, strict=True)
    ]
    return b"".join(parts), vectors


def npy(array):
    """An array as numpy saves it."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def tensors(header, data=b""):
    """A safetensors file of a header, given as values or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors(arrays, metadata=None):
    """A safetensors file of arrays by name, as the library saves them."""
    header = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, array in arrays.items():
        kind = "BF16" if array.dtype.name == "bfloat16" else None
        header[name] = {
            "dtype": kind or f"{array.dtype.kind.upper()}{8 * array.itemsize}",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    return tensors(header, data)


def npz(array):
    """An archive of one array, x, as numpy saves it."""
    stream = io.BytesIO()
    np.savez(stream, x=array)
    return stream.getvalue()
