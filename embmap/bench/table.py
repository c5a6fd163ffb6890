"""Measurements as rows of a table."""

from __future__ import annotations

from embmap.bench.advice import format_nbytes, format_seconds
from embmap.bench.runner import Measurement

__all__ = ["COLUMNS", "format_cells"]

COLUMNS = (
    "strategy",
    "workload",
    "file",
    "median",
    "p99",
    "vectors/s",
    "from device",
    "per byte",
    "faults",
    "own",
    "USS",
    "PSS",
)


def format_cells(each: Measurement) -> tuple[str, ...]:
    """Return a measurement as a row of a table, with "-" for unknown figures."""
    spent, rate = each.usage, each.vectors_per_second
    faults = "-" if spent.minor is None else f"{spent.minor:,} + {spent.major:,}"
    sizes = (spent.device, spent.own, spent.private, spent.proportional)
    device, *memory = ("-" if size is None else format_nbytes(max(size, 0)) for size in sizes)
    ratio = "-" if each.read_per_byte is None else f"{float(f'{each.read_per_byte:.3g}'):,g}"
    return (
        each.strategy,
        each.workload,
        each.temperature,
        format_seconds(each.median),
        format_seconds(each.p99),
        "-" if rate is None else f"{float(f'{rate:.3g}'):,.0f}",
        device,
        ratio,
        faults,
        *memory,
    )
