"""Measurements as lines of a table."""

from __future__ import annotations

from embmap.bench.advice import bytes_in_words, seconds_in_words
from embmap.bench.runner import Measurement

__all__ = ["COLUMNS", "cells"]

COLUMNS = (
    "strategy",
    "workload",
    "file",
    "median",
    "p99",
    "vectors/s",
    "from device",
    "faults",
    "own",
    "USS",
    "PSS",
)


def cells(each: Measurement) -> tuple[str, ...]:
    """Return a measurement as a line of a table."""
    spent, rate = each.usage, each.vectors_per_second
    faults = "-" if spent.minor is None else f"{spent.minor:,} + {spent.major:,}"
    sizes = (spent.device, spent.own, spent.private, spent.proportional)
    device, *memory = ("-" if size is None else bytes_in_words(max(size, 0)) for size in sizes)
    return (
        each.strategy,
        each.workload,
        each.temperature,
        seconds_in_words(each.median),
        seconds_in_words(each.p99),
        "-" if rate is None else f"{float(f'{rate:.3g}'):,.0f}",
        device,
        faults,
        *memory,
    )
