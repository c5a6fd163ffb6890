"""Conversion between the formats that embmap opens and the formats that others write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embmap.conversion.converting import convert
from embmap.conversion.report import ConversionReport
from embmap.formats.registry import FORMATS, get_written_formats

if TYPE_CHECKING:
    INPUT_FORMATS: tuple[str, ...]
    OUTPUT_FORMATS: tuple[str, ...]

__all__ = ["INPUT_FORMATS", "OUTPUT_FORMATS", "ConversionReport", "convert"]


def __getattr__(name: str) -> Any:
    """Return the names of the formats as the registry has them now."""
    if name == "INPUT_FORMATS":
        return tuple(FORMATS)
    if name == "OUTPUT_FORMATS":
        return tuple(get_written_formats())
    raise AttributeError(f"module 'embmap.conversion' has no attribute {name!r}")
