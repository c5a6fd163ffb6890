"""The public names for DWE files: ``write``, ``quantize`` and the classes."""

from embmap.formats.dwe import DweFile, Timestep, TimestepFile, quantize, write

__all__ = ["DweFile", "Timestep", "TimestepFile", "quantize", "write"]
