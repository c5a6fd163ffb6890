"""The finalfusion format (``.fifu``): words and matrix, subwords, quantization, norms, metadata."""

from embmap.formats.finalfusion.file import FinalfusionFile
from embmap.formats.finalfusion.writer import write
from embmap.vectors.product import Quantized

__all__ = ["FinalfusionFile", "Quantized", "write"]
