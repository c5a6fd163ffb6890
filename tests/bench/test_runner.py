"""``embmap bench``: what it measures, what it says about it, and the page it writes."""

import json
import mmap
import os

import numpy as np
import pytest

import embmap

pytest.importorskip("psutil", reason="psutil is not installed")
pytest.importorskip("typer", reason="typer is not installed")

from embmap.bench.advice import advise, format_nbytes, format_seconds
from embmap.bench.probes import Usage, drop_from_cache, fraction_cached, read_through, read_usage
from embmap.bench.runner import COLD, WARM, Measurement, Result, measure
from embmap.bench.workloads import AT_ONCE, STRATEGIES, WORKLOADS, Opened, Settings, draw_sample

pytestmark = pytest.mark.slow

WORDS = [f"word{i}" for i in range(500)]
VECTORS = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32)


def written(folder, format):
    """Return a small file of a format, and how to open it."""
    path = folder / f"small.{format}"
    if format == "finalfusion":
        return embmap.finalfusion.write(path, WORDS, VECTORS), {}
    if format == "embd":
        return embmap.embd.write(path, {"wte.weight": VECTORS}, vocab=WORDS), {}
    if format == "cvc":
        return embmap.cvc.write(path, VECTORS, chunk_rows=100), {}
    quantized, scale = embmap.dwe.quantize([VECTORS, VECTORS + 1, VECTORS])
    return embmap.dwe.write(path, quantized, scale=scale, group=10), {"vocab": WORDS}


@pytest.mark.parametrize("format", ["finalfusion", "embd", "cvc", "dwe"])
def test_every_format_is_measured_in_every_way(tmp_path, format):
    path, options = written(tmp_path, format)
    steps = []
    settings = Settings(path=path, seconds=0.002, options=options, processes=2)
    result = measure(settings, lambda *step: steps.append(step))
    for temperature in (WARM, COLD) if result.cold else (WARM,):
        for strategy in STRATEGIES:
            for workload in WORKLOADS:
                found = result.find(strategy.name, workload.name, temperature)
                in_memory = strategy.prepare == "load" and not workload.times_opening
                if temperature == COLD and in_memory:
                    assert found is None
                    continue
                assert found.n_pieces > 0
                assert 0 < found.median <= found.p99
                assert (found.vectors_per_second is None) == (workload.name == "open")
    assert result.find("map", AT_ONCE).n_vectors > 0
    assert result.about["format"] == format
    assert steps[-1][1] == steps[-1][2]
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert advise(result)[0].endswith(".")


def test_the_command_prints_json_and_writes_a_page(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from embmap.cli import run

    path, _ = written(tmp_path, "finalfusion")
    page = tmp_path / "out.html"
    arguments = ["bench", str(path), "--quick", "--processes", "1", "--json", "--report", str(page)]
    assert run(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["advice"]
    assert {each["strategy"] for each in told["measurements"]} == {s.name for s in STRATEGIES}
    text = page.read_text("utf-8")
    assert text.count("<svg") >= 3
    for from_elsewhere in ("<script", "<link", "<img", "src=", "@import", "url(http"):
        assert from_elsewhere not in text
    assert run(["bench", str(path), "--quick", "--report", str(path)]) == 2
    for nowhere in (tmp_path, tmp_path / "none" / "out.html"):
        assert run(["bench", str(path), "--quick", "--report", str(nowhere)]) == 2
    # A report that is there stays until there is a new one.
    assert run(["bench", str(tmp_path / "none"), "--quick", "--report", str(page)]) == 2
    assert page.read_text("utf-8") == text
    assert run(["bench", str(tmp_path / "none")]) == 2


def test_files_without_vectors_are_refused(tmp_path):
    path = embmap.cvc.write_columns(tmp_path / "a.cvc", {"a": VECTORS, "b": VECTORS})
    with pytest.raises(ValueError, match="name a column"):
        draw_sample(Settings(path=path))
    assert draw_sample(Settings(path=path, column="b")).n_rows == 500
    with pytest.raises(ValueError, match="no column"):
        draw_sample(Settings(path=path, column="c"))
    empty = embmap.cvc.write(tmp_path / "b.cvc", np.empty((0, 3), np.float32))
    with pytest.raises(ValueError, match="no vectors"):
        draw_sample(Settings(path=empty))


def test_what_is_asked_for_is_the_same_every_time(tmp_path):
    path, _ = written(tmp_path, "finalfusion")
    first, again = draw_sample(Settings(path=path)), draw_sample(Settings(path=path))
    assert np.array_equal(first.rows, again.rows)
    assert first.stream == again.stream
    assert first.rows.max() < 500
    # By Zipf's law the first word comes about as often as all from the tenth to the thirtieth.
    counts = [first.stream.count(word) for word in WORDS]
    assert counts[0] > 5 * counts[9] > 0
    with Opened(Settings(path=path), STRATEGIES[0]) as opened:
        assert np.array_equal(opened.look_up("word7"), VECTORS[7])


def test_dropped_pages_are_noticed(tmp_path):
    path = tmp_path / "pages"
    path.write_bytes(os.urandom(1 << 20))
    read_through(path)
    cached = fraction_cached(path)
    if cached is None:
        pytest.skip("this system does not report which pages are in memory")
    assert cached == 1.0
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    drop_from_cache(path)
    assert 0 <= fraction_cached(path) <= 1.0


def test_memory_that_is_written_is_counted():
    before = read_usage()
    if before.own is None:
        pytest.skip("this system does not report how much a process has written")
    with mmap.mmap(-1, 8 << 20) as block:  # new pages, whatever the allocator has lying around
        block.write(bytes([1]) * len(block))
        spent = read_usage().since(before)
        assert spent.own >= 0.9 * len(block)
    assert Usage(1, None, 3, 4, 5, 6).since(Usage(0, 1, 1, 1, 1, 1)) == (1, None, 2, 3, 4, 5)


def result(per_byte=None, **medians):
    """Return a result with medians as ``strategy__workload__temperature=seconds``."""
    per_byte = per_byte or {}
    names = {
        "map": "map",
        "all": "read everything",
        "reads": "positional reads",
        "normal": "map, normal",
        "first": "first look-up",
        "rows": "random rows",
        "open": "open",
        "batch": "batches of 10,000",
    }
    measurements = []
    for name, seconds in medians.items():
        strategy, workload, temperature = name.split("__")
        n = 10_000 if workload == "batch" else 1
        nothing = Usage(None, None, None, None, None, None)
        rate = n / seconds
        measurements.append(
            Measurement(
                strategy=names[strategy],
                workload=names[workload],
                temperature=temperature,
                n_pieces=99,
                n_vectors=n,
                median=seconds,
                p99=seconds,
                vectors_per_second=rate,
                read_per_byte=per_byte.get(name),
                usage=nothing,
            )
        )
    return Result(tuple(measurements), True, {"shape": [100_000, 8]}, ())


def test_advice_follows_the_figures():
    figures = {
        "map__first__cold": 1e-3,
        "all__first__cold": 1.0,
        "all__open__cold": 1.0,
        "map__batch__cold": 0.2,
        "map__rows__warm": 1e-6,
        "all__rows__warm": 0.5e-6,
        "all__open__warm": 0.4,
        "reads__rows__warm": 3e-6,
    }
    verdict, *reasons = advise(result(**figures))
    assert verdict == (
        "Map this file: the first vector comes 1000 times sooner. Read everything only if one "
        "process will touch more than 50 % of its rows at random or look up more than 800,000 "
        "vectors one by one."
    )
    assert any("Positional reads are 3.0 times slower" in reason for reason in reasons)
    cheap = {**figures, "map__batch__cold": 0.01, "all__rows__warm": 1e-6}
    assert advise(result(**cheap))[0].endswith("does not pay within 10 look-ups of each row.")
    small = {**figures, "all__first__cold": 1e-3, "all__open__warm": 1e-3}
    assert advise(result(**small))[0].startswith("Read everything: it costs no more")
    small["all__rows__warm"] = 1e-6
    assert advise(result(**small))[0].startswith("Either will do")


def test_the_advice_says_what_reading_ahead_is_worth():
    figures = {"map__rows__cold": 1e-4, "normal__rows__cold": 3e-3}
    per_byte = {"map__rows__cold": 4.44, "normal__rows__cold": 2783.0}
    assert advise(result(per_byte, **figures))[1:] == [
        (
            "Not in memory, random rows: 10,000 vectors/s with the default access, 30 times faster "
            'than with access="normal" (333 vectors/s). 4.4 bytes are read from the disk for each '
            "byte of a vector, instead of 2,800 bytes."
        )
    ]
    figures["map__rows__cold"] = 6e-3
    (sentence,) = advise(result(**figures))[1:]
    assert "2.0 times slower than with" in sentence
    assert "from the disk" not in sentence
    figures["map__rows__cold"] = 3e-3
    assert advise(result(**figures))[1:] == []


def test_figures_are_told_with_three_digits():
    assert [format_seconds(x) for x in (2, 0.0123, 4.56e-6, 7e-8)] == [
        "2 s",
        "12.3 ms",
        "4.56 µs",
        "70 ns",
    ]
    assert [format_nbytes(x) for x in (12, 3456, 7.5e6, 1.2e9)] == [
        "12 B",
        "3.46 kB",
        "7.5 MB",
        "1.2 GB",
    ]
