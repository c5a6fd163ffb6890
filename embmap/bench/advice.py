"""Advice in words, from the figures of a run: whether to map this file or to read it."""

from __future__ import annotations

from embmap.bench.runner import COLD, WARM, Result
from embmap.bench.workloads import (
    AT_ONCE,
    BATCHES,
    FIRST_LOOKUP,
    MAP,
    MAP_NORMAL,
    PASS,
    POSITIONAL_READS,
    RANDOM_ROWS,
    READ_EVERYTHING,
)

__all__ = ["ABOUT_MEMORY", "advise", "format_nbytes", "format_seconds"]

ABOUT_MEMORY = (
    "Memory is given in three figures: the bytes that a process has written (own), the bytes that "
    "no other process maps (private, USS), and the private bytes with a proportional part of the "
    "shared ones (PSS). Resident size would count a mapped page in every process that reads it, "
    "although it is in memory once and the system may take it back."
)
_OFTEN = 10  # look-ups of each row; if reading pays only after more, it is not advised
_FEW = 50  # pieces of work; a device is not judged by fewer
_SAME = 1.25  # figures with a smaller ratio are called the same
_BATCH = BATCHES[max(BATCHES)]


def advise(result: Result) -> list[str]:
    """Return a recommendation, followed by its reasons."""
    coldest = COLD if result.cold else WARM
    sentences = [
        *_first_vector(result, coldest),
        *_once_warm(result),
        *_break_even(result, coldest),
        *_read_ahead(result),
        *_instead_of_a_map(result),
        *_shared(result),
    ]
    return [_verdict(result, coldest), *sentences]


def _verdict(result: Result, coldest: str) -> str:
    mapped, everything = (
        result.find(name, FIRST_LOOKUP, coldest) for name in (MAP, READ_EVERYTHING)
    )
    if mapped is None or everything is None:
        return "Map this file: reading all of it was not possible here."
    sooner, n_rows = everything.median / mapped.median, result.about["shape"][0]
    fraction, pays = _fraction(result, coldest), _pays_after(result)
    if sooner < _SAME:
        if pays is None or pays > n_rows:
            return "Either will do: reading everything costs about as much as opening a map."
        return (
            "Read everything: it costs no more than opening a map and looking one vector up, and "
            f"pays after {pays:,.0f} single look-up{'s' if pays >= 1.5 else ''}."
        )
    conditions = []
    if fraction is not None and fraction <= 1:
        conditions.append(f"touch more than {_percent(fraction)} of its rows at random")
    if pays is not None and pays <= _OFTEN * n_rows:
        conditions.append(f"look up more than {pays:,.0f} vectors one by one")
    verdict = f"Map this file: the first vector comes {_times(sooner)} sooner."
    if not conditions:
        return (
            f"{verdict} Reading everything first does not pay within {_OFTEN} look-ups of each row."
        )
    return f"{verdict} Read everything only if one process will {' or '.join(conditions)}."


def _pays_after(result: Result) -> float | None:
    """Return the number of single look-ups after which reading everything pays, once warm.

    None if it never pays, or was not measured.
    """
    mapped, everything = (result.find(name, RANDOM_ROWS, WARM) for name in (MAP, READ_EVERYTHING))
    loaded = result.find(READ_EVERYTHING, "open", WARM)
    if mapped is None or everything is None or loaded is None:
        return None
    saved = mapped.median - everything.median
    return None if saved <= 0 else max(float(loaded.median / saved), 1.0)


def _first_vector(result: Result, coldest: str) -> list[str]:
    mapped, everything = (
        result.find(name, FIRST_LOOKUP, coldest) for name in (MAP, READ_EVERYTHING)
    )
    if mapped is None or everything is None:
        return []
    state = "not yet in memory" if coldest == COLD else "already in memory"
    return [
        (
            f"Opening the file ({state}) and looking one vector up takes "
            f"{format_seconds(mapped.median)} with a map and "
            f"{format_seconds(everything.median)} when everything is read first."
        )
    ]


def _once_warm(result: Result) -> list[str]:
    sentences = []
    for workload in (RANDOM_ROWS, _BATCH, PASS):
        mapped, everything = (result.find(name, workload, WARM) for name in (MAP, READ_EVERYTHING))
        if mapped is None or everything is None:
            continue
        a, b = mapped.vectors_per_second or 0.0, everything.vectors_per_second or 0.0
        how = "the same as"
        if a and b and max(a / b, b / a) > _SAME:
            how = f"{_times(a / b)} faster than" if a > b else f"{_times(b / a)} slower than"
        sentences.append(
            f"Once warm, {workload}: {_rate(a)} with a map, {how} when everything was read "
            f"({_rate(b)})."
        )
    return sentences


def _fraction(result: Result, coldest: str) -> float | None:
    """Return the fraction of the rows above which reading everything first is faster."""
    everything = result.find(READ_EVERYTHING, "open", coldest)
    tried = (result.find(name, _BATCH, coldest) for name in (MAP, MAP_NORMAL))
    rates = [each.vectors_per_second for each in tried if each and each.vectors_per_second]
    n_rows = float(result.about["shape"][0])
    if everything is None or not rates or not n_rows:
        return None
    return everything.median * max(rates) / n_rows


def _break_even(result: Result, coldest: str) -> list[str]:
    everything = result.find(READ_EVERYTHING, "open", coldest)
    fraction = _fraction(result, coldest)
    if everything is None or fraction is None:
        return []
    reached = "more than all rows" if fraction > 1 else f"{_percent(fraction)} of the rows"
    return [
        (
            f"Reading everything takes {format_seconds(everything.median)}; "
            f"random batches through the map read {reached} in that time."
        )
    ]


def _read_ahead(result: Result) -> list[str]:
    """Compare what is read ahead by default with what the system reads ahead by itself."""
    sentences = []
    for workload in (RANDOM_ROWS, _BATCH, PASS):
        ours, plain = (result.find(name, workload, COLD) for name in (MAP, MAP_NORMAL))
        if ours is None or plain is None:
            continue
        a, b = ours.vectors_per_second or 0.0, plain.vectors_per_second or 0.0
        few = workload == RANDOM_ROWS and min(ours.n_pieces, plain.n_pieces) < _FEW
        if few or not a or not b or max(a / b, b / a) <= _SAME:
            continue
        pace = f"{_times(a / b)} faster than" if a > b else f"{_times(b / a)} slower than"
        sentence = (
            f"Not in memory, {workload}: {_rate(a)} with the default access, {pace} with "
            f'access="normal" ({_rate(b)}).'
        )
        if ours.read_per_byte is not None and plain.read_per_byte is not None:
            sentence += (
                f" {_ratio(ours.read_per_byte)} are read from the disk for each byte of a vector, "
                f"instead of {_ratio(plain.read_per_byte)}."
            )
        sentences.append(sentence)
    return sentences


def _instead_of_a_map(result: Result) -> list[str]:
    mapped, read = (result.find(name, RANDOM_ROWS, WARM) for name in (MAP, POSITIONAL_READS))
    if mapped is None or read is None:
        return []
    ratio = read.median / mapped.median
    pace = "as fast as a map" if ratio <= _SAME else f"{_times(ratio)} slower than a map"
    return [
        (
            f"Positional reads are {pace} for random rows; "
            "use them for network disks and for files that others may truncate."
        )
    ]


def _shared(result: Result) -> list[str]:
    mapped, everything = (result.find(name, AT_ONCE, WARM) for name in (MAP, READ_EVERYTHING))
    if mapped is None or everything is None:
        return []
    a, b = mapped.usage.own, everything.usage.own
    if a is None or b is None:
        return []
    return [
        (
            f"Several processes at once need {format_nbytes(max(a, 0))} of memory of their own "
            f"with maps, {format_nbytes(max(b, 0))} when each reads everything."
        )
    ]


def format_seconds(seconds: float) -> str:
    """Return a time with three digits and a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def format_nbytes(nbytes: float) -> str:
    """Return a size with three digits and a suitable unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"


def _rate(vectors: float) -> str:
    if vectors >= 1e6:
        return f"{vectors / 1e6:.3g} million vectors/s"
    return f"{float(f'{vectors:.3g}'):,.0f} vectors/s"


def _ratio(nbytes: float) -> str:
    return f"{float(f'{nbytes:.2g}'):,g} bytes"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.01 else f"{100 * fraction:.2g} %"
