"""The fixed fields of EMBD files: magics, flags, dtypes, and the sizes of records."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from embmap.formats.tensors import StoredTensor

__all__ = [
    "CHECKSUM_ENABLED",
    "COMPRESSED",
    "DESCRIPTOR",
    "DIALECTS",
    "DTYPES",
    "END_MAGIC",
    "FOOTER",
    "FORMAT",
    "HEADER",
    "MAGIC",
    "REQUIRED_METADATA",
    "SPECIAL_TOKENS",
    "TENSORS_ALIGNED",
    "VOCAB_EMBEDDED",
    "TensorLayout",
    "fnv1a",
]

FORMAT = "embd"
MAGIC = b"EMBD"
END_MAGIC = b"DBME"
DIALECTS = ("spec", "flat")

VOCAB_EMBEDDED, TENSORS_ALIGNED, CHECKSUM_ENABLED, COMPRESSED = 1, 2, 4, 8
DTYPES = {
    0: "<f4",
    1: "<f2",
    2: "bfloat16",
    3: "<i4",
    4: "<i2",
    5: "<i1",
    6: "<u4",
    7: "<u2",
    8: "<u1",
}
SPECIAL_TOKENS = ("pad", "unk", "cls", "sep", "mask")
REQUIRED_METADATA = (
    "model_name",
    "model_version",
    "embedding_dim",
    "vocab_size",
    "num_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "max_position_emb",
    "created_at",
)
HEADER = struct.Struct("<4sHHIIIIIIIIQQII")
DESCRIPTOR = struct.Struct("<IBBH4IQ")
FOOTER = struct.Struct("<II4sI")


@dataclass(frozen=True, kw_only=True)
class TensorLayout(StoredTensor):
    """A tensor; `name_hash` is the stored FNV-1a hash of its name, None in flat files."""

    name_hash: int | None = None


def fnv1a(name: bytes) -> int:
    """Return the FNV-1a hash of a tensor name."""
    value = 0x811C9DC5
    for byte in name:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
