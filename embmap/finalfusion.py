"""The public names for finalfusion files: ``write``, ``quantize`` and the classes."""

from embmap.formats.finalfusion import FinalfusionFile, Quantized, write
from embmap.vectors.quantizer import quantize

__all__ = ["FinalfusionFile", "Quantized", "quantize", "write"]
