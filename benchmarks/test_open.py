"""Opening a file in a fresh process, and the first look-up by word there."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import embmap
from benchmarks import files
from benchmarks.replay import clock, in_fresh_process, replay

pytestmark = pytest.mark.benchmark(timer=clock)

WAYS = {
    "embmap": ("embmap", "dense", {"index": "memory"}),
    "embmap, index file": ("embmap", "indexed", {"index": "require"}),
    "finalfusion": ("finalfusion", "dense", {}),
    "gensim": ("gensim", "gensim", {}),
}


IMPORTING = """
import numpy, sys, time
start = time.perf_counter()
import embmap
if len(sys.argv) > 1:
    embmap.open(sys.argv[1]).vectors[0]
print(time.perf_counter() - start)
"""


@pytest.mark.parametrize("work", ["import", "import and open"])
def test_import(benchmark, record, rounds, data, warmed, tmp_path, work):
    path = [str(warmed(data.dense))] if work == "import and open" else []
    environment = {name: value for name, value in os.environ.items() if "BYTECODE" not in name}
    environment["PYTHONPATH"] = str(Path(embmap.__file__).parents[1])
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)  # whether or not modules were compiled
    command = [sys.executable, "-P", "-c", IMPORTING, *path]

    def import_once():
        done = subprocess.run(command, capture_output=True, env=environment, check=True)
        replay(float(done.stdout))

    import_once()  # which compiles the modules
    benchmark.pedantic(import_once, rounds=rounds(15))
    record(work, "embmap")


@pytest.fixture
def task(way, data, warmed):
    """The file that a fresh process opens, and how."""
    library, name, options = WAYS[way]
    if library != "embmap":
        pytest.importorskip(library, reason=f"{library} is not installed here")
    return {"library": library, "path": str(warmed(getattr(data, name))), "options": options}


@pytest.mark.parametrize("way", ["embmap", "finalfusion", "gensim"])
def test_open(benchmark, record, rounds, data, task, way):
    outcomes = []

    def open_once():
        outcomes.append(in_fresh_process("open", **task))
        replay(outcomes[-1]["seconds"])

    benchmark.pedantic(open_once, rounds=rounds(7))
    measured = {
        name: [outcome[name] for outcome in outcomes] for name in ("private_nbytes", "peak_nbytes")
    }
    record("open", way, **measured)
    assert {outcome["n_words"] for outcome in outcomes} == {data.n_words}


@pytest.mark.parametrize("way", list(WAYS))
def test_first_look_up(benchmark, record, rounds, data, task, way):
    n = rounds(7)
    # Spread over the file, since without an index the time depends on the row.
    asked = [int((i + 0.5) / n * data.n_words) for i in range(n)]
    found = []

    def look_up():
        word = files.word(asked[len(found)])
        outcome = in_fresh_process("open", **task, word=word)
        found.append(outcome["vector"])
        replay(outcome["seconds"])

    benchmark.pedantic(look_up, rounds=n)
    record("first look-up", way)
    assert np.array_equal(np.array(found, np.float32), files.rows(np.array(asked)))
