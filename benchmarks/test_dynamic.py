"""Words over time: opening, trajectories, time steps and rankings out of a compressed file."""

from itertools import islice

import numpy as np
import pytest

import embmap
from benchmarks import files
from benchmarks.replay import clock, in_fresh_process, replay
from benchmarks.test_lookup import look_up_each
from embmap.codecs.entropy_model import model_size
from embmap.formats.dwe.layout import entries_of, model_of

LAYOUTS = ["blocks", "stream"]
KERNELS = ["embmap, numpy", "embmap, numba, one thread", "embmap, numba, two threads"]
SCALE = np.float32(files.WALK_SCALE)
N_WRITTEN = 5  # time steps
N_FIRST = 10_000  # words of the first calls: a million symbols


@pytest.fixture(scope="module")
def path(data, warmed):
    """The stream dialect, which the original program writes today."""
    return warmed(data.walks("stream"))


@pytest.fixture
def file(path):
    """The open file, without a cache of decoded groups."""
    with embmap.open(path) as opened:
        opened.cache_nbytes = 0
        yield opened


@pytest.fixture(scope="module")
def asked(data):
    """Words in random order, by their rows."""
    return np.random.default_rng(1).permutation(data.walk_shape[1])[:40]


@pytest.fixture(scope="module")
def walked(data, asked):
    """Their trajectories as they were made."""
    return files.trajectories(asked, data.walk_shape[0])


@pytest.fixture(scope="module")
def steps(data):
    """The first time steps and the middle one as they were made."""
    n_steps, n_words, _ = data.walk_shape
    middle = n_steps // 2
    made = enumerate(islice(files.walk_steps(n_steps, n_words), middle + 1))
    return {t: step for t, step in made if t < N_WRITTEN or t == middle}


def few(asked, way):
    """Two of the words for numpy, which takes a tenth of a second for each; all for numba."""
    return asked[:2].tolist() if "numpy" in way else asked.tolist()


# Opening


@pytest.mark.parametrize("layout", LAYOUTS)
def test_open(benchmark, record, data, warmed, layout):
    def open_and_close():
        with embmap.open(path) as file:
            return file.layout, file.shape

    path = warmed(data.walks(layout))
    found = benchmark(open_and_close)
    record(f"DWE, open, {layout}", "embmap")
    n_steps, n_words, dim = data.walk_shape
    assert found == (layout, (n_words, n_steps, dim))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.benchmark(timer=clock)
def test_open_in_a_fresh_process(benchmark, record, rounds, data, warmed, layout):
    path = str(warmed(data.walks(layout)))
    outcomes = []

    def open_once():
        outcomes.append(in_fresh_process("open", library="embmap", path=path, options={}))
        replay(outcomes[-1]["seconds"])

    benchmark.pedantic(open_once, rounds=rounds(7))
    measured = {
        name: [outcome[name] for outcome in outcomes] for name in ("private_nbytes", "peak_nbytes")
    }
    record(f"DWE, open, {layout}, fresh process", "embmap", **measured)
    assert {outcome["n_words"] for outcome in outcomes} == {data.walk_shape[1]}


# Trajectories


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.usefixtures("chosen_kernels")
def test_trajectory(benchmark, record, file, asked, walked, way):
    rows = few(asked, way)
    look_up_each(file, rows)
    benchmark(look_up_each, file, rows)
    record("trajectory", way, len(rows), **touched(file, asked))
    for row, walk in zip(rows, walked, strict=False):
        assert np.array_equal(file[row], walk * SCALE)


def test_trajectory_from_the_cache(benchmark, record, path, asked, walked):
    rows = asked[:10].tolist()
    with embmap.open(path) as file:
        look_up_each(file, rows)
        benchmark(look_up_each, file, rows)
        record("trajectory, from the cache", "embmap", len(rows))
        for row, walk in zip(rows, walked, strict=False):
            assert np.array_equal(file[row], walk * SCALE)


def touched(file, rows):
    """Return how much of the file one trajectory needs, from the jump table."""
    layout = file._offsets
    groups = np.unique(rows // layout.group)
    groups = groups[groups < layout.n_groups - 1]  # the jump table has no end of the last group
    all_steps = np.arange(layout.n_steps)[:, np.newaxis]
    entries = entries_of(file._groups.file, layout, all_steps, groups)
    nbytes = 2 * (entries.ends - entries.positions).sum() / groups.size
    nbytes += 16 * layout.n_steps + sum(2 * model_size(n) for n in layout.model_sizes)
    symbols = layout.n_steps * layout.group * layout.dim
    return {
        "symbols": symbols,
        "share_of_symbols": symbols / np.prod(file.shape, dtype=float).item(),
        "share_of_bytes": nbytes.item() / file.path.stat().st_size,
    }


# Time steps


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.usefixtures("chosen_kernels")
def test_step(benchmark, record, file, steps, way):
    np.asarray(file.at(0).vectors.quantized)
    found = benchmark(lambda: np.asarray(file.at(0).vectors.quantized))
    record("time step", way, symbols=found.size)
    assert np.array_equal(found, steps[0])


CALLS = {"first call": slice(0, 1), "second call": slice(1, 2), "later calls": slice(2, 6)}


@pytest.mark.parametrize("calls", list(CALLS))
@pytest.mark.benchmark(timer=clock)
def test_first_steps(benchmark, record, rounds, path, data, steps, calls):
    """A million symbols six times over, in a process that has loaded nothing before."""
    n_rows = min(N_FIRST, data.walk_shape[1])
    seconds = []

    def decode():
        if not seconds:
            outcome = in_fresh_process("steps", path=str(path), n_rows=n_rows, rounds=6)
            assert outcome["total"] == steps[0][:n_rows].sum(dtype=np.int64)
            seconds.extend(outcome["seconds"][CALLS[calls]])
        replay(seconds.pop())

    benchmark.pedantic(decode, rounds=rounds(8))
    record("first time steps", f"embmap, {calls}")


def test_first_steps_in_another_coder(benchmark, record, file, steps):
    decode_elsewhere(benchmark, file, steps[0][:N_FIRST])
    record("first time steps", "constriction")


def test_step_in_another_coder(benchmark, record, file, steps):
    decode_elsewhere(benchmark, file, steps[0])
    record("time step", "constriction", symbols=steps[0].size)


def decode_elsewhere(benchmark, file, step):
    """Let constriction decode its own encoding of the same symbols to symbol numbers."""
    stream = pytest.importorskip("constriction", reason="constriction is not installed here").stream
    model = model_of(file._groups.file, file._offsets, 0)
    number_of = np.zeros(1 << 16, np.int32)
    number_of[model.symbols.view(np.uint16)] = np.arange(model.symbols.size)
    numbers = number_of[step.reshape(-1).view(np.uint16)]
    probabilities = (model.frequencies / 4096).astype(np.float32)
    categorical = stream.model.Categorical(probabilities, perfect=False, lazy=False)
    coder = stream.stack.AnsCoder()
    coder.encode_reverse(numbers, categorical)
    words = coder.get_compressed()
    found = benchmark(lambda: stream.stack.AnsCoder(words).decode(categorical, numbers.size))
    assert np.array_equal(found, numbers)


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.usefixtures("chosen_kernels")
def test_row_of_a_step(benchmark, record, file, data, asked, walked, way):
    t = data.walk_shape[0] // 2 + 1  # a leaf of the tree
    rows = few(asked, way)
    step = file.at(t).vectors.quantized
    look_up_each(step, rows)
    benchmark(look_up_each, step, rows)
    record("row of a time step", way, len(rows))
    assert np.array_equal([step[row] for row in rows], walked[: len(rows), t])


@pytest.mark.parametrize("where", ["first", "middle"])
@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.usefixtures("chosen_kernels")
def test_most_related(benchmark, record, file, data, asked, steps, way, where):
    t = 0 if where == "first" else data.walk_shape[0] // 2
    row = int(asked[0])
    file.most_related(row, t)
    found = benchmark(file.most_related, row, t)
    record(f"most related, {where} step", way)
    products = steps[t].astype(np.int32) @ steps[t][row].astype(np.int32)
    order = np.argsort(-products, kind="stable")
    order = order[order != row][:10]
    assert [each.row for each in found] == order.tolist()
    assert [each.score for each in found] == (
        products[order].astype(np.float32) * (SCALE * SCALE)
    ).tolist()


# Writing


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", ["embmap, numba"])
@pytest.mark.usefixtures("chosen_kernels")
def test_write(benchmark, record, rounds, steps, tmp_path, layout, way):
    def write():
        return embmap.dwe.write(
            tmp_path / "out.dwe", quantized, scale=SCALE, group=files.WALK_GROUP, layout=layout
        )

    quantized = np.stack(list(islice(steps.values(), N_WRITTEN)))
    benchmark.pedantic(write, rounds=rounds(3), warmup_rounds=rounds(2) - 1)
    record(f"write a DWE file, {layout}", way, quantized.size, symbols=1)
    with embmap.open(tmp_path / "out.dwe") as file:
        for t, step in enumerate(quantized):
            assert np.array_equal(file.at(t).vectors.quantized, step)
