"""The public names for EMBD files: ``write``, ``from_safetensors`` and the class."""

from embmap.formats.embd.file import EmbdFile
from embmap.formats.embd.safetensors import from_safetensors
from embmap.formats.embd.writer import write

__all__ = ["EmbdFile", "from_safetensors", "write"]
