"""The public names for finalfusion files: ``write``, ``quantize`` and the classes."""

from embmap.formats.finalfusion.file import FinalfusionFile
from embmap.formats.finalfusion.writer import write
from embmap.vectors.product import Quantized
from embmap.vectors.quantizer import quantize

__all__ = ["FinalfusionFile", "Quantized", "quantize", "write"]
