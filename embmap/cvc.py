"""The public names for CVC files: what writes, changes and loads them, and the classes."""

from embmap.devices.chunks import load, load_chunks
from embmap.formats.cvc.chunks import Chunk
from embmap.formats.cvc.editing import append, edit_columns
from embmap.formats.cvc.file import CvcFile
from embmap.formats.cvc.layout import Section
from embmap.formats.cvc.writer import write, write_columns

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
