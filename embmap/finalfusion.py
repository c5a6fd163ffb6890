"""Finalfusion files by their public name: ``embmap.finalfusion.write`` and what goes with it."""

from embmap.codecs.quantizer import quantize
from embmap.formats.finalfusion import FinalfusionFile, Quantized, write

__all__ = ["FinalfusionFile", "Quantized", "quantize", "write"]
