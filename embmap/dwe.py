"""DWE files by their public name: ``embmap.dwe.write``, ``embmap.dwe.quantize``."""

from embmap.formats.dwe import DweFile, Neighbor, Timestep, quantize, write

__all__ = ["DweFile", "Neighbor", "Timestep", "quantize", "write"]
