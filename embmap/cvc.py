"""The public names for CVC files: what writes, changes and loads them, and the classes."""

from embmap.devices.chunks import load, load_chunks
from embmap.formats.cvc import (
    Chunk,
    CvcFile,
    Section,
    append,
    edit_columns,
    write,
    write_columns,
)

__all__ = [
    "Chunk",
    "CvcFile",
    "Section",
    "append",
    "edit_columns",
    "load",
    "load_chunks",
    "write",
    "write_columns",
]
