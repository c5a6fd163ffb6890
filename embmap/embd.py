"""EMBD files by their public name: ``embmap.embd.write``, ``from_safetensors``."""

from embmap.formats.embd import EmbdFile, from_safetensors, write

__all__ = ["EmbdFile", "from_safetensors", "write"]
