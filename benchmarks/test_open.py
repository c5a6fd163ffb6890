"""Opening a file in a fresh process, and the first look-up by word there."""

import numpy as np
import pytest

from benchmarks import files
from benchmarks.replay import clock, in_fresh_process, replay

pytestmark = pytest.mark.benchmark(timer=clock)

WAYS = {
    "embmap": ("embmap", "dense", {"index": "memory"}),
    "embmap, index file": ("embmap", "indexed", {"index": "require"}),
    "finalfusion": ("finalfusion", "dense", {}),
    "gensim": ("gensim", "gensim", {}),
}


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
