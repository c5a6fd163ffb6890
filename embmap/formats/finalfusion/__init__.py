"""The finalfusion format (``.fifu``): words and matrix, subwords, quantization, norms, metadata."""

from embmap.codecs.product import Quantized
from embmap.formats.finalfusion.file import FinalfusionFile
from embmap.formats.finalfusion.writer import write

__all__ = ["FinalfusionFile", "Quantized", "write"]
