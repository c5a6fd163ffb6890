"""The public names for CVC files: what writes and changes them, and the classes."""

from embmap.formats.cvc import (
    Chunk,
    CvcFile,
    Section,
    append,
    edit_columns,
    write,
    write_columns,
)

__all__ = ["Chunk", "CvcFile", "Section", "append", "edit_columns", "write", "write_columns"]
