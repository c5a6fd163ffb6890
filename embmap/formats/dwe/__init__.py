"""The DWE format (``.dwe``): word vectors over time, differences in a tree, entropy-coded."""

from embmap.formats.dwe.file import DweFile, TimestepFile
from embmap.formats.dwe.timestep import Timestep
from embmap.formats.dwe.writer import write
from embmap.vectors.rounding import quantize

__all__ = ["DweFile", "Timestep", "TimestepFile", "quantize", "write"]
