"""The public names for EMBD files: ``write``, ``from_safetensors`` and the class."""

from embmap.formats.embd import EmbdFile, from_safetensors, write

__all__ = ["EmbdFile", "from_safetensors", "write"]
