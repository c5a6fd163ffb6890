"""Converting a text file, compared with loading it."""

import numpy as np
import pytest

import embmap
from benchmarks import files
from benchmarks.replay import clock, in_fresh_process, replay

pytestmark = pytest.mark.benchmark(timer=clock)


@pytest.mark.parametrize("way", ["embmap", "gensim"])
def test_text(benchmark, record, data, warmed, tmp_path, way):
    if way == "gensim":
        pytest.importorskip("gensim", reason="gensim is not installed here")
    path, out = warmed(data.text), tmp_path / "out.fifu"
    outcomes = []

    def once():
        outcomes.append(in_fresh_process("text", library=way, path=str(path), out=str(out)))
        replay(outcomes[-1]["seconds"])

    benchmark.pedantic(once, rounds=1)
    peaks = [outcome["peak_nbytes"] for outcome in outcomes]
    record("text", way, nbytes=path.stat().st_size, peak_nbytes=peaks)
    assert {outcome["n_words"] for outcome in outcomes} == {data.n_text_words}
    if way == "embmap":
        with embmap.open(out) as file:
            last = data.n_text_words - 1
            expected = files.rows(np.array([last]))[0]
            assert np.allclose(
                file[files.word(last)] * np.linalg.norm(expected), expected, atol=1e-5
            )
