"""Writing and reading Parquet, compared with pyarrow, and the memory of spaCy's workers."""

import numpy as np
import pytest

import embmap
from benchmarks import files
from benchmarks.replay import clock, in_fresh_process, replay

pytestmark = pytest.mark.benchmark(timer=clock)


@pytest.fixture
def measured(benchmark, record):
    """A function that measures work in a fresh process, and returns what it found."""

    def measure(work, way, what, **task):
        outcomes = []

        def once():
            outcomes.append(in_fresh_process(what, **task))
            replay(outcomes[-1]["seconds"])

        benchmark.pedantic(once, rounds=1)
        record(work, way, private_nbytes=[each["private_nbytes"] for each in outcomes])
        return outcomes[-1]

    return measure


@pytest.mark.parametrize("way", ["embmap", "pyarrow"])
def test_write_parquet(measured, data, warmed, tmp_path, way):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed here")
    path, out = warmed(data.dense), tmp_path / "out.parquet"
    measured("write Parquet", way, "parquet", library=way, path=str(path), out=str(out))
    with embmap.open(path) as file:
        assert parquet.read_metadata(out).num_rows == len(file)


@pytest.mark.parametrize("way", ["embmap", "pyarrow"])
def test_read_parquet(measured, data, warmed, tmp_path, way):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
    from embmap.arrow import write_parquet

    path = tmp_path / "in.parquet"
    out = tmp_path / ("out.npy" if way == "embmap" else "out.raw")
    with embmap.open(warmed(data.dense)) as file:
        write_parquet(path, file)
        nbytes = file.vectors.nbytes
    measured("read Parquet", way, "parquet", library=way, path=str(path), out=str(out))
    assert out.stat().st_size - nbytes == (128 if way == "embmap" else 0)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_of_spacy(measured, data, warmed, method):
    pytest.importorskip("spacy", reason="spaCy is not installed here")
    path = warmed(data.dense)
    words = [files.word(row) for row in range(200)]
    task = {"method": method, "path": str(path), "words": words}
    outcome = measured(f"spaCy worker, {method}", "embmap", "worker", **task)
    with embmap.open(path) as file:
        assert np.isclose(outcome["sum"], file[words].mean(axis=0).sum(), atol=1e-3)
