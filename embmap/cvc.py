"""CVC files by their public name: ``embmap.cvc.write``, ``write_columns``."""

from embmap.formats.cvc import Chunk, CvcFile, Section, write, write_columns

__all__ = ["Chunk", "CvcFile", "Section", "write", "write_columns"]
