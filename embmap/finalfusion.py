"""Finalfusion files by their public name: ``embmap.finalfusion.write`` and what goes with it."""

from embmap.formats.finalfusion import FinalfusionFile, Quantized, write

__all__ = ["FinalfusionFile", "Quantized", "write"]
