"""The public names for DWE files: ``write``, ``quantize`` and the classes."""

from embmap.formats.dwe.file import DweFile, TimestepFile
from embmap.formats.dwe.timestep import Timestep
from embmap.formats.dwe.writer import write
from embmap.vectors.rounding import quantize

__all__ = ["DweFile", "Timestep", "TimestepFile", "quantize", "write"]
