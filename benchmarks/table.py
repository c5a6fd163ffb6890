"""The table of docs/benchmarks.md, made from the figures of a run.

A row compares embmap with the peers at one kind of work, all of it measured in the same run, and
compares the result with the target that was set before. ROWS is the one list of what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from benchmarks.files import walk_shape

__all__ = [
    "HEADINGS",
    "MISSED",
    "ROWS",
    "Row",
    "collect_figures",
    "describe_run",
    "format_cells",
    "format_markdown",
]

HEADINGS = ("work", "embmap", "peers", "peer / embmap", "target", "met?")
MISSED = "**no**"
_TARGET_WORDS = 1_000_000

Figures = Mapping[tuple[str, str], Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    title : str
        The first cell.
    work : str
        The name under which the benchmarks record the work.
    way : str
        How embmap does it.
    limit : float, optional
        The target: the greatest value that meets it, in the unit of the row.
    ratios : dict
        For peers, the fraction of their value that embmap must stay below, as a part of the target.
    value : str
        Which figure: "seconds"; "symbols_per_second" or "bytes_per_second" if symbols or nbytes
        were recorded with it; or another recorded figure, in bytes, or a share if its name begins
        so.
    any_size : bool
        Whether the target holds for files of any size, not only of a million words.
    """

    title: str
    work: str
    way: str
    _: KW_ONLY
    limit: float | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    value: str = "seconds"
    any_size: bool = True

    def show(self, value: float) -> str:
        """Return a value with the unit of the row."""
        return _SHOWN.get(self.value.partition("_")[0], nbytes)(value)

    @property
    def target(self) -> str:
        """The target in words; empty if there is no target."""
        parts = [] if self.limit is None else [f"≤ {self.show(self.limit)}"]
        for peer, share in self.ratios.items():
            parts.append(f"< {peer}" if share == 1 else f"≥ {1 / share:.3g}x {peer}")
        return ", ".join(parts)


def _of_chunks(compression: str, times: float) -> tuple[Row, ...]:
    """Return the rows of one compression of CVC files, which are to be decoded `times` faster."""
    whole = f"{compression}, all rows"
    used = f"{compression}, all rows, used array"
    some = f"{compression}, 1000 rows"
    on_numpy, on_numba = "embmap, numpy", "embmap, numba"
    return (
        Row(whole, whole, "embmap", ratios={"decompressed": 1 / times}),
        Row("… numpy", whole, on_numpy),
        Row("… into a used array, numpy", used, on_numpy),
        Row("… into a used array, numba", used, on_numba),
        Row("… one row", f"{compression}, one row", "embmap", limit=4e-6),
        Row("… 1000 rows, numpy", some, on_numpy, limit=0.5e-3),
        Row("… 1000 rows, numba", some, on_numba, limit=0.5e-3),
    )


def _of_opening(layout: str) -> tuple[Row, ...]:
    """Return the rows of opening DWE files of one dialect."""
    work = f"DWE, open, {layout}"
    fresh = f"{work}, fresh process"
    return (
        Row(work, work, "embmap", limit=10e-3),
        Row("… in a fresh process", fresh, "embmap", limit=10e-3),
        Row("… peak memory over import", fresh, "embmap", limit=8e6, value="peak_nbytes"),
        Row("… private memory over import", fresh, "embmap", limit=8e6, value="private_nbytes"),
    )


def _of_tensors(n: int) -> tuple[Row, ...]:
    """Return the rows of opening a file of `n` tensors and reading one of them."""
    work = f"one of {n} tensors"
    return (
        Row(f"EMBD, flat: open, one of {n} tensors", work, "embmap, flat", ratios=_AS_FAST),
        Row("… spec", work, "embmap, spec", ratios=_AS_FAST),
        Row("… safetensors", work, "embmap, safetensors", ratios=_AS_FAST),
    )


def _over_time(title: str, work: str) -> tuple[Row, ...]:
    """Return the rows of work on DWE files without a target."""
    return (
        Row(f"{title}, numpy", work, "embmap, numpy"),
        Row("… numba, one thread", work, _ONE_THREAD),
        Row("… numba, two threads", work, _TWO_THREADS),
    )


def _of_served(n: int) -> tuple[Row, ...]:
    """Return the row of vectors by word over the network."""
    work = f"{n} words, served"
    return (Row(work, work, "embmap", ratios={"Redis": 1}),)


def _of_a_worker(kind: str, what: str, limit: float) -> tuple[Row, ...]:
    """Return the rows of what one worker of a server answers."""
    work = f"{kind}, served"
    title = f"{kind}: a worker's processor, each {what}"
    rows = [Row(title, work, "embmap", value="seconds_of_worker", limit=limit)]
    if what == "GET":
        rows.append(Row("… p99, one client", work, "embmap", value="seconds_p99", limit=5e-3))
    return tuple(rows)


_ONE_THREAD, _TWO_THREADS = "embmap, numba, one thread", "embmap, numba, two threads"
_ORIGINAL_TRAJECTORY = 4.8e-3  # seconds of the original program, on another machine
_EITHER = {"finalfusion": 1 / 300, "gensim": 1 / 300}
_BATCH = {"finalfusion": 1 / 8, "gensim": 1 / 15}
_TENTH = {"safetensors": 0.1}
_SEARCHES = {"finalfusion": 0.9, "gensim": 0.9, "one product": 0.9}
_SOME = {"all words": 0.25}
_PLAIN = {'access="normal"': 0.2}
_READ = 10 + 4096 / 1200  # ten bytes for each byte of a row, and a page
_AS_FAST = {"safetensors": 1}
_DEFAULT_LOADER = {"torch's default loader": 0.2}
_SPAWN, _FORK = (("spaCy worker, spawn", "embmap"), ("spaCy worker, fork", "embmap"))
ROWS = (
    Row("import, beyond numpy", "import", "embmap", limit=15e-3),
    Row("import, open, one row, beyond numpy", "import and open", "embmap"),
    Row("open", "open", "embmap", limit=1e-3, ratios=_EITHER, any_size=False),
    Row("… peak memory over import", "open", "embmap", limit=2e6, value="peak_nbytes"),
    Row("… private memory over import", "open", "embmap", limit=2e6, value="private_nbytes"),
    Row("first look-up, no index", "first look-up", "embmap", limit=60e-3, any_size=False),
    Row("first look-up, index file", "first look-up", "embmap, index file", limit=1e-3),
    Row(
        "f[word], index file",
        "look-up",
        "embmap, index file",
        ratios={"finalfusion": 1 / 1.3, "gensim": 1 / 1.9, "LMDB": 1 / 2},
    ),
    Row("f[word], index in memory", "look-up", "embmap"),
    Row("batch of 10k words, index file", "batch", "embmap, index file", ratios=_BATCH),
    Row("batch of 10k words, index in memory", "batch", "embmap", ratios=_BATCH),
    Row("index build", "index build", "embmap", limit=250e-3, any_size=False),
    Row("… per word", "index build", "embmap", limit=24, value="nbytes_per_word"),
    Row("unknown word", "unknown word", "embmap", ratios={"finalfusion": 1 / 1.4}),
    Row("… numpy", "unknown word", "embmap, numpy"),
    Row("… in a batch", "unknown word, batch", "embmap", ratios={"finalfusion": 1 / 4}),
    Row("… in a batch, numpy", "unknown word, batch", "embmap, numpy"),
    Row("unknown word, quantized", "unknown word, quantized", "embmap"),
    Row("… numpy", "unknown word, quantized", "embmap, numpy"),
    Row("… in a batch", "unknown word, quantized, batch", "embmap"),
    Row("… in a batch, numpy", "unknown word, quantized, batch", "embmap, numpy"),
    Row("quantized row by word", "quantized row", "embmap", limit=5e-6),
    Row("batch of 10k quantized rows", "quantized row, batch", "embmap", limit=20e-3),
    *_of_chunks("fp16", 6),
    *_of_chunks("int8", 4.5),
    Row("MiniLM, open, one tensor", "tensor", "embmap", limit=1e-3, ratios=_TENTH),
    Row("… in a fresh process", "tensor, fresh process", "embmap"),
    Row("… one row by token", "row of a tensor", "embmap"),
    *_of_tensors(40),
    *_of_tensors(1000),
    Row("torch.from_dlpack(f.vectors)", "from_dlpack", "embmap", limit=50e-6),
    Row("… private memory", "from_dlpack", "embmap", limit=100e3, value="private_nbytes"),
    Row("EMBD, 1000 tensors, torch", "load_file", "embmap", ratios={"safetensors": 0.5}),
    Row("… of a safetensors file", "load_file", "embmap, safetensors"),
    Row("10k rows as a tensor", "rows as a tensor", "embmap", ratios={"numpy.take": 1.1}),
    Row("batches of 4096 rows, shuffled, per row", "loader", "embmap", ratios=_DEFAULT_LOADER),
    *_of_opening("blocks"),
    *_of_opening("stream"),
    Row("trajectory", "trajectory", "embmap", limit=_ORIGINAL_TRAJECTORY / 1.8),
    Row("… without a cache, numpy", "trajectory", "embmap, numpy"),
    Row("… numba, one thread", "trajectory", _ONE_THREAD),
    Row("… numba, two threads", "trajectory", _TWO_THREADS),
    Row("… of it, symbols a second", "trajectory", _TWO_THREADS, value="symbols_per_second"),
    Row("… symbols decoded, of the file", "trajectory", _TWO_THREADS, value="share_of_symbols"),
    Row("… bytes read, of the file", "trajectory", _TWO_THREADS, value="share_of_bytes"),
    Row("… from the cache", "trajectory, from the cache", "embmap"),
    Row("time step, numpy", "time step", "embmap, numpy"),
    Row("… numba, one thread", "time step", _ONE_THREAD),
    Row("… numba, two threads", "time step", _TWO_THREADS, ratios={"constriction": 1 / 6}),
    Row("… of it, symbols a second", "time step", _TWO_THREADS, value="symbols_per_second"),
    Row("1M symbols, fresh process, first call", "first time steps", "embmap, first call"),
    Row("… second call", "first time steps", "embmap, second call"),
    Row(
        "… third to sixth call",
        "first time steps",
        "embmap, later calls",
        ratios={"constriction": 1 / 5},
    ),
    *_over_time("row of a time step", "row of a time step"),
    *_over_time("most related, first step", "most related, first step"),
    *_over_time("most related, middle step", "most related, middle step"),
    Row("DWE, written, blocks, per symbol", "write a DWE file, blocks", "embmap, numba"),
    Row("DWE, written, stream, per symbol", "write a DWE file, stream", "embmap, numba"),
    Row("most similar words", "most similar", "embmap", ratios=_SEARCHES, any_size=False),
    Row("… with FILE.sketch", "most similar", "embmap, sketch", ratios=_SEARCHES, any_size=False),
    Row("… 5 % of the words", "most similar, some", "embmap", ratios=_SOME, any_size=False),
    Row("… 5 %, with FILE.sketch", "most similar, some", "embmap, sketch"),
    Row("… quantized, numpy", "most similar, quantized", "embmap, numpy"),
    Row("… quantized, numba", "most similar, quantized", "embmap, numba"),
    Row("one row, not in memory", "cold, one row", "embmap", ratios=_PLAIN),
    Row("… bytes read", "cold, one row", "embmap", limit=16384, value="row_nbytes"),
    Row("5000 rows, not in memory", "cold, rows", "embmap", ratios=_PLAIN, any_size=False),
    Row("… read per byte", "cold, rows", "embmap", limit=_READ, value="ratio_read"),
    Row("5000 words, not in memory", "cold, words", "embmap", ratios=_PLAIN, any_size=False),
    Row("… read per byte", "cold, words", "embmap", limit=_READ, value="ratio_read"),
    Row("first look-up, not in memory", "cold, first look-up", "embmap", ratios=_PLAIN),
    Row("… pages read", "cold, first look-up", "embmap", limit=6, value="pages"),
    Row("all rows, not in memory", "cold, pass", "embmap", ratios={'access="sequential"': 1.1}),
    *_of_served(256),
    *_of_served(1024),
    *_of_a_worker("single GETs, JSON", "GET", 100e-6),
    *_of_a_worker("single GETs, .npy", "GET", 100e-6),
    *_of_a_worker("batches of 256, .npy", "vector", 1 / 600e3),
    *_of_a_worker("batches of 1024, .npy", "vector", 1 / 600e3),
    Row("text to finalfusion", "text", "embmap", value="bytes_per_second"),
    Row("… peak memory over import", "text", "embmap", value="peak_nbytes"),
    Row("write Parquet", "write Parquet", "embmap", ratios={"pyarrow": 1.2}),
    Row("… private memory", "write Parquet", "embmap", limit=150e6, value="private_nbytes"),
    Row("Parquet to npy", "read Parquet", "embmap", ratios={"pyarrow": 1.2}),
    Row("… private memory", "read Parquet", "embmap", limit=150e6, value="private_nbytes"),
    Row("spaCy worker, spawned, private memory", *_SPAWN, limit=300e6, value="private_nbytes"),
    Row("spaCy worker, forked, private memory", *_FORK, limit=10e6, value="private_nbytes"),
)


def collect_figures(results: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the medians of a run by (work, way), over the passes that pytest-benchmark wrote.

    "seconds" is the time for one unit of the work; other figures keep the names under which they
    were recorded.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for measured in (each for one_pass in results for each in one_pass["benchmarks"]):
        facts = dict(measured["extra_info"])
        values = found.setdefault((facts.pop("work"), facts.pop("way")), {})
        values.setdefault("seconds", []).append(measured["stats"]["median"] / facts.pop("per"))
        for name, value in facts.items():
            known = [one for one in np.atleast_1d(value).tolist() if one is not None]
            values.setdefault(name, []).extend(known)
    medians = {
        key: {name: median(value) for name, value in values.items() if value}
        for key, values in found.items()
    }
    for facts in medians.values():
        if "nbytes" in facts:
            facts["bytes_per_second"] = facts["nbytes"] / facts["seconds"]
        if "symbols" in facts:
            facts["symbols_per_second"] = facts["symbols"] / facts["seconds"]
    return medians


def format_cells(found: Figures, n_words: int) -> list[tuple[str, ...]]:
    """Return the rows that were measured, with a cell for each of HEADINGS."""
    lines = []
    for row in ROWS:
        ours = found.get((row.work, row.way), {}).get(row.value)
        if ours is None:
            continue
        peers = {
            way: values[row.value]
            for (work, way), values in found.items()
            if work == row.work and not way.startswith("embmap") and row.value in values
        }
        lines.append(
            (
                row.title,
                row.show(ours),
                "; ".join(f"{peer} {row.show(theirs)}" for peer, theirs in peers.items()),
                "; ".join(factor(theirs, ours) for theirs in peers.values()),
                row.target,
                _met(row, ours, peers, n_words),
            )
        )
    return lines


def _met(row: Row, ours: float, peers: Mapping[str, float], n_words: int) -> str:
    if not row.target:
        return ""
    if not row.any_size and n_words != _TARGET_WORDS:
        return "set for 1M words"
    if not row.ratios.keys() <= peers.keys():
        return "a peer is missing"
    within = row.limit is None or ours <= row.limit
    faster = all(ours < share * peers[peer] for peer, share in row.ratios.items())
    return "yes" if within and faster else MISSED


def seconds(value: float) -> str:
    """Return a time with three digits and a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value * 1e9)} ns"


def nbytes(value: float) -> str:
    """Return a number of bytes with three digits and a suitable unit."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value)} B"


def rate(value: float) -> str:
    """Return a rate in millions per second."""
    return f"{_digits(value / 1e6)} M/s"


def megabytes(value: float) -> str:
    """Return a rate in megabytes per second."""
    return f"{_digits(value / 1e6)} MB/s"


def share(value: float) -> str:
    """Return a part of a whole as a percentage."""
    return f"{_digits(100 * value)} %"


def count(value: float) -> str:
    """Return a number without a unit."""
    return _digits(value)


_SHOWN = {
    "ratio": count,
    "pages": count,
    "seconds": seconds,
    "symbols": rate,
    "share": share,
    "bytes": megabytes,
}


def factor(theirs: float, ours: float) -> str:
    """Return how many times longer a peer takes than embmap."""
    return f"{_digits(theirs / ours)}x" if ours > 0 else ""


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def describe_run(results: Sequence[Mapping[str, Any]], n_words: int, command: str) -> str:
    """Return a paragraph about the files and the machine, and the command that repeats the run."""
    about = results[0]["machine_info"]
    cpu = about["cpu"]
    n_steps, n_words_over_time, dim = walk_shape(n_words)
    walks = f"{n_steps} time steps of {n_words_over_time:,} words of {dim}"
    versions = ", ".join(
        f"{name} {number}" for name, number in about["libraries"].items() if number
    )
    return (
        f"`{command}`: files of {n_words:,} words of 300 dimensions, CVC files of {n_words // 2:,} "
        f"rows of 256, DWE files of {walks}, all in the page cache unless a row says "
        f"otherwise; medians, {len(results)} x over.\n"
        f"{cpu.get('brand_raw', about['machine'])}, {cpu.get('count', '?')} cores, "
        f"{about['system']} {about['machine']}; {versions}."
    )


def format_markdown(lines: list[tuple[str, ...]]) -> str:
    """Return the table as markdown, without a newline at the end."""
    every = [HEADINGS, ("---",) * len(HEADINGS), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in every)
