"""The report: one HTML file without references to others, with pictures and every figure."""

from __future__ import annotations

import html
import io
from collections.abc import Callable

try:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
except ImportError:
    raise ImportError("a report needs matplotlib: pip install 'embmap[bench]'") from None

from embmap.bench.advice import ABOUT_MEMORY, advise, format_nbytes, format_seconds
from embmap.bench.runner import COLD, WARM, Measurement, Result
from embmap.bench.table import COLUMNS, format_cells
from embmap.bench.workloads import AT_ONCE, FIRST_LOOKUP, STRATEGIES, WORKLOADS

__all__ = ["render_page"]

_COLORS = ("#1b6ca8", "#63a4d4", "#9cc9e8", "#d98e04", "#b23a48")
_LEGEND = (
    "Medians and 99th percentiles are for a piece of work: one opening, one row, one batch or "
    "one block of a pass. “Per byte” is how many bytes were read from devices for each byte of a "
    "vector. Faults are page faults: minor ones, which memory could satisfy, + major ones, which "
    "waited for a device."
)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c1c1c; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.verdict { font-size: 1.15rem; padding: .8rem 1rem; background: #eef5fb; border-left: 5px solid
           #1b6ca8; }
svg { max-width: 100%; height: auto; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd;
         white-space: nowrap; }
th:nth-child(-n+3), td:nth-child(-n+3) { text-align: left; }
footer { color: #555; font-size: .85rem; margin-top: 2rem; }
"""


def render_page(result: Result, machine: dict[str, str]) -> str:
    """Return the report as HTML; `machine` holds facts for its end."""
    verdict, *reasons = advise(result)
    about = result.about
    facts = {
        "file": f"{about['path']} ({about['format']}, {about['layout']})",
        "size": format_nbytes(about["nbytes"]),
        "vectors": f"{' x '.join(map(str, about['shape']))} {about['dtype']}",
        **machine,
    }
    lines = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>map or read: {_escaped(about['path'])}</title><style>{_STYLE}</style>",
        "<h1>Map this file or read it?</h1>",
        f"<p class='verdict'>{_escaped(verdict)}</p><ul>",
        *(f"<li>{_escaped(reason)}</li>" for reason in (*reasons, *result.notes)),
        "</ul>",
        "<h2>From opening to the first vector</h2>",
        _first_vector(result),
        "<h2>Vectors per second</h2>",
        _throughput(result),
        "<h2>Memory of several processes at once</h2>",
        _memory(result),
        f"<p>{_escaped(ABOUT_MEMORY)}</p>",
        "<h2>All figures</h2>",
        f"<p>{_LEGEND}</p>",
        "<div class='table'><table><thead><tr>",
        *(f"<th>{_escaped(name)}</th>" for name in COLUMNS),
        "</tr></thead><tbody>",
        *(_row(each) for each in result.measurements),
        "</tbody></table></div><footer>",
        *(f"{_escaped(name)}: {_escaped(value)}<br>" for name, value in facts.items()),
        "</footer></html>",
    ]
    return "\n".join(lines)


def _row(each: Measurement) -> str:
    return f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in format_cells(each))}</tr>"


def _escaped(text: str) -> str:
    return html.escape(str(text))


def _plain(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.0f}"


def _first_vector(result: Result) -> str:
    names = [strategy.name for strategy in STRATEGIES]
    bars = {
        temperature: [_median(result, name, temperature) for name in names]
        for temperature in ((COLD, WARM) if result.cold else (WARM,))
    }
    return _bars(
        names,
        bars,
        "seconds (less is better)",
        colors=("#b23a48", "#1b6ca8"),
        show=format_seconds,
    )


def _median(result: Result, name: str, temperature: str) -> float | None:
    found = result.find(name, FIRST_LOOKUP, temperature)
    return None if found is None else found.median


def _throughput(result: Result) -> str:
    workloads = [each.name for each in WORKLOADS if not each.times_opening] + [AT_ONCE]
    parts = []
    for temperature in (COLD, WARM) if result.cold else (WARM,):
        shown = [name for name in workloads if temperature == WARM or name != AT_ONCE]
        bars = {
            strategy.name: [_rate(result, strategy.name, name, temperature) for name in shown]
            for strategy in STRATEGIES
        }
        label = f"vectors/s, {temperature} (more is better)"
        parts.append(_bars(shown, bars, label, colors=_COLORS, show=_plain))
    return "\n".join(parts)


def _rate(result: Result, strategy: str, workload: str, temperature: str) -> float | None:
    found = result.find(strategy, workload, temperature)
    return None if found is None else found.vectors_per_second


def _memory(result: Result) -> str:
    measured = [each for each in result.measurements if each.workload == AT_ONCE]
    if not measured or measured[0].usage.own is None:
        return "<p>The system does not report it.</p>"
    bars: dict[str, list[float | None]] = {
        "own, which cannot be taken back": [max(each.usage.own or 0, 1) for each in measured],
        "PSS, with mapped pages of the file": [
            max(each.usage.proportional or 0, 1) for each in measured
        ],
    }
    names = [each.strategy for each in measured]
    return _bars(
        names,
        bars,
        "bytes, all processes together",
        colors=("#b23a48", "#9cc9e8"),
        show=format_nbytes,
    )


def _bars(
    names: list[str],
    bars: dict[str, list[float | None]],
    label: str,
    *,
    colors: tuple[str, ...],
    show: Callable[[float], str],
) -> str:
    """Return horizontal bars on a logarithmic scale as SVG."""
    height = 0.8 / len(bars)
    with rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "0"}):
        figure = Figure(figsize=(9, 1 + 0.26 * len(bars) * len(names)), layout="constrained")
        axes = figure.add_subplot()
        for i, (name, values) in enumerate(bars.items()):
            at = [j + (i - (len(bars) - 1) / 2) * height for j in range(len(names))]
            known = [(y, value) for y, value in zip(at, values, strict=True) if value]
            if not known:
                continue
            drawn = axes.barh(
                [y for y, _ in known],
                [value for _, value in known],
                height * 0.9,
                label=name,
                color=colors[i % len(colors)],
            )
            axes.bar_label(drawn, [show(value) for _, value in known], padding=3, fontsize=8)
        axes.set_xscale("log")
        axes.margins(x=0.12)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.legend(frameon=False, ncols=min(len(bars), 3), loc="lower left", bbox_to_anchor=(0, 1))
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    picture = out.getvalue()
    return picture[picture.index("<svg") :]
