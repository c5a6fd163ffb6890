"""Finalfusion files by their public name: ``embmap.finalfusion.write`` and what goes with it."""

from embmap.formats.finalfusion import FinalfusionFile, Quantized, write
from embmap.vectors.quantizer import quantize

__all__ = ["FinalfusionFile", "Quantized", "quantize", "write"]
