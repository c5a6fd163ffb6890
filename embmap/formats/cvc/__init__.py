"""The CVC format (``.cvc``): chunks of vectors as fp16, int8 or lossless planes, in columns."""

from embmap.formats.cvc.file import Chunk, CvcFile

__all__ = ["Chunk", "CvcFile"]
