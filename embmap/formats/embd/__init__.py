"""The EMBD format (``.weights``): named tensors, a WordPiece vocabulary, metadata, checksums."""

from embmap.formats.embd.file import EmbdFile
from embmap.formats.embd.safetensors import from_safetensors
from embmap.formats.embd.writer import write

__all__ = ["EmbdFile", "from_safetensors", "write"]
