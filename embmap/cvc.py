"""CVC files by their public name."""

from embmap.formats.cvc import Chunk, CvcFile

__all__ = ["Chunk", "CvcFile"]
