"""DWE files by their public name: ``embmap.dwe.write``, ``embmap.dwe.quantize``."""

from embmap.formats.dwe import DweFile, Timestep, TimestepFile, quantize, write

__all__ = ["DweFile", "Timestep", "TimestepFile", "quantize", "write"]
