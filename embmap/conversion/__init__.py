"""Conversion between the formats that embmap opens and those that people have."""

from embmap.conversion.arguments import OUTPUT_FORMATS
from embmap.conversion.converting import convert
from embmap.conversion.report import ConversionReport
from embmap.conversion.source import INPUT_FORMATS

__all__ = ["INPUT_FORMATS", "OUTPUT_FORMATS", "ConversionReport", "convert"]
