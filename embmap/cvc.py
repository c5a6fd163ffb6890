"""The public names for CVC files: ``write``, ``write_columns`` and the classes."""

from embmap.formats.cvc import Chunk, CvcFile, Section, write, write_columns

__all__ = ["Chunk", "CvcFile", "Section", "write", "write_columns"]
