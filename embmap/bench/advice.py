"""What the figures say in words: whether to map this file or to read it."""

from __future__ import annotations

from embmap.bench.runner import AT_ONCE, COLD, WARM, Measurement, Result
from embmap.bench.workloads import BATCHES

__all__ = ["WHY_PROPORTIONAL", "advice", "bytes_in_words", "seconds_in_words"]

WHY_PROPORTIONAL = (
    "Memory is told as what a process has written (own), what no other process maps (private, USS) "
    "and that with its part of what is shared (PSS): resident size alone counts a mapped page in "
    "every process that looks at it, although it is there once and the system may take it back."
)
_OFTEN = 10  # look-ups of each row, beyond which nobody plans
_FEW = 50  # pieces of work say too little about a device
_SAME = 1.25  # figures closer than this are not told apart
_MAP, _RANDOM, _READ, _ALL = "map", "map, random", "positional reads", "read everything"
_BATCH = f"batches of {BATCHES[-1]:,}"


def advice(result: Result) -> list[str]:
    """Return a recommendation and the figures it rests on."""
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
    mapped, everything = (_get(result, name, "first look-up", coldest) for name in (_MAP, _ALL))
    if mapped is None or everything is None:
        return "Map this file: reading all of it was not possible here."
    sooner, n_rows = everything.median / mapped.median, result.about["shape"][-2]
    fraction, pays = _fraction(result, coldest), _pays_after(result)
    if sooner < _SAME:
        if pays is None or pays > n_rows:
            return (
                "Either will do: reading everything costs no more than opening a map, and no less."
            )
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
        return f"{verdict} Reading everything first does not pay within {_OFTEN} look-ups of a row."
    return f"{verdict} Read everything only if one process will {' or '.join(conditions)}."


def _pays_after(result: Result) -> float | None:
    """Return after how many single look-ups reading everything has paid, the file in memory."""
    mapped, everything = (_get(result, name, "random rows", WARM) for name in (_MAP, _ALL))
    loaded = _get(result, _ALL, "open", WARM)
    if mapped is None or everything is None or loaded is None:
        return None
    saved = mapped.median - everything.median
    return None if saved <= 0 else max(float(loaded.median / saved), 1.0)


def _first_vector(result: Result, coldest: str) -> list[str]:
    mapped, everything = (_get(result, name, "first look-up", coldest) for name in (_MAP, _ALL))
    if mapped is None or everything is None:
        return []
    state = "not in memory yet" if coldest == COLD else "in memory already"
    return [
        _told(
            f"Open and look one vector up, the file {state}:",
            f"{seconds_in_words(mapped.median)} with a map,",
            f"{seconds_in_words(everything.median)} after reading everything.",
        )
    ]


def _once_warm(result: Result) -> list[str]:
    sentences = []
    for workload in ("random rows", _BATCH, "sequential pass"):
        mapped, everything = (_get(result, name, workload, WARM) for name in (_MAP, _ALL))
        if mapped is None or everything is None:
            continue
        a, b = mapped.vectors_per_second or 0.0, everything.vectors_per_second or 0.0
        how = "the same as"
        if a and b and max(a / b, b / a) > _SAME:
            how = f"{_times(a / b)} faster than" if a > b else f"{_times(b / a)} slower than"
        sentences.append(
            f"Once warm, {workload}: {_rate(a)} with a map, {how} from memory of its own "
            f"({_rate(b)})."
        )
    return sentences


def _fraction(result: Result, coldest: str) -> float | None:
    """Return the part of the rows from which on reading everything first is quicker."""
    everything = _get(result, _ALL, "open", coldest)
    tried = (_get(result, name, _BATCH, coldest) for name in (_MAP, _RANDOM))
    rates = [each.vectors_per_second for each in tried if each and each.vectors_per_second]
    n_rows = float(result.about["shape"][-2])
    if everything is None or not rates or not n_rows:
        return None
    return everything.median * max(rates) / n_rows


def _break_even(result: Result, coldest: str) -> list[str]:
    everything = _get(result, _ALL, "open", coldest)
    fraction = _fraction(result, coldest)
    if everything is None or fraction is None:
        return []
    told = "all rows and more" if fraction > 1 else f"{_percent(fraction)} of the rows"
    return [
        _told(
            f"Reading everything takes {seconds_in_words(everything.median)};",
            f"random batches through the map reach {told} in that time.",
        )
    ]


def _read_ahead(result: Result) -> list[str]:
    plain, random = (_get(result, name, "random rows", COLD) for name in (_MAP, _RANDOM))
    if plain is None or random is None or min(plain.n_pieces, random.n_pieces) < _FEW:
        return []
    a, b = plain.vectors_per_second or 0.0, random.vectors_per_second or 0.0
    if not a or not b or max(a / b, b / a) <= _SAME:
        return []
    better = 'access="random"' if b > a else 'the default access="normal"'
    return [
        _told(
            f"For random rows that are not in memory, {better} is {_times(max(a / b, b / a))}",
            f"faster ({_rate(max(a, b))} to {_rate(min(a, b))}).",
        )
    ]


def _instead_of_a_map(result: Result) -> list[str]:
    mapped, read = (_get(result, name, "random rows", WARM) for name in (_MAP, _READ))
    if mapped is None or read is None:
        return []
    ratio = read.median / mapped.median
    pace = "as fast as a map" if ratio <= _SAME else f"{_times(ratio)} slower than a map"
    return [
        _told(
            f"Positional reads are {pace} for random rows;",
            "they are for network disks and for files that others may truncate.",
        )
    ]


def _shared(result: Result) -> list[str]:
    mapped, everything = (_get(result, name, AT_ONCE, WARM) for name in (_MAP, _ALL))
    if mapped is None or everything is None:
        return []
    a, b = mapped.usage.own, everything.usage.own
    if a is None or b is None:
        return []
    return [
        _told(
            f"Several processes at once need {bytes_in_words(max(a, 0))} of memory of their own",
            f"with maps, {bytes_in_words(max(b, 0))} when each reads everything.",
        )
    ]


def _get(result: Result, strategy: str, workload: str, temperature: str) -> Measurement | None:
    return result.find(strategy, workload, temperature)


def seconds_in_words(seconds: float) -> str:
    """Return a time as people write it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def bytes_in_words(nbytes: float) -> str:
    """Return a size as people write it."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"


def _told(*parts: str) -> str:
    return " ".join(parts)


def _rate(vectors: float) -> str:
    if vectors >= 1e6:
        return f"{vectors / 1e6:.3g} million vectors/s"
    return f"{float(f'{vectors:.3g}'):,.0f} vectors/s"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.01 else f"{100 * fraction:.2g} %"
