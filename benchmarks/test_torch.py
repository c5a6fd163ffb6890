"""Tensors of PyTorch: whole files, rows, and the batches of a training loop."""

import numpy as np
import pytest

import embmap
from benchmarks import files
from benchmarks.replay import in_fresh_process

torch = pytest.importorskip("torch", reason="torch is not installed here")

from torch.utils.data import DataLoader  # noqa: E402

from embmap.torch import Rows, load_file, tensor  # noqa: E402

BATCH = 4096


@pytest.fixture
def dense(data, warmed):
    """The dense file."""
    with embmap.open(warmed(data.dense)) as file:
        yield file


def test_from_dlpack(benchmark, record, dense):
    found = benchmark(torch.from_dlpack, dense.vectors)
    outcome = in_fresh_process("dlpack", path=str(dense.path))
    record("from_dlpack", "embmap", private_nbytes=outcome["private_nbytes"])
    assert outcome["row"] == dense[1].tolist()
    found[0] = 5
    assert np.array_equal(dense[0], files.rows(np.array([0]))[0])


@pytest.mark.parametrize("way", ["embmap", "embmap, safetensors", "safetensors"])
def test_load_file(benchmark, record, data, warmed, way):
    peer = pytest.importorskip("safetensors.torch", reason="safetensors is not installed here")
    embd, other = (warmed(data.tensors(1000, layout)) for layout in ("spec", "safetensors"))
    load = peer.load_file if way == "safetensors" else load_file
    found = benchmark(load, embd if way == "embmap" else other)
    record("load_file", way)
    expected = peer.load_file(other)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], each) for name, each in expected.items())


@pytest.mark.parametrize("way", ["embmap", "numpy.take"])
def test_rows(benchmark, record, data, dense, way):
    rows = np.random.default_rng(1).permutation(data.n_words)[:10_000]
    array = np.asarray(dense.vectors)
    arguments = (tensor, dense, rows) if way == "embmap" else (np.take, array, rows, 0)
    found = benchmark(*arguments)
    record("rows as a tensor", way)
    assert np.array_equal(found, array[rows])


def read_all(loader):
    """Pass over a loader and return the number of rows."""
    return sum(map(len, loader))


@pytest.mark.parametrize("way", ["embmap", "torch's default loader"])
def test_loader(benchmark, record, rounds, data, dense, way):
    n = min(data.n_words, 50 * BATCH)
    rows = Rows(dense, np.random.default_rng(2).permutation(data.n_words)[:n])
    if way == "embmap":
        loader = rows.loader(BATCH, shuffle=True)
    else:
        loader = DataLoader(rows, BATCH, shuffle=True)
    found = benchmark.pedantic(read_all, (loader,), rounds=rounds(9), warmup_rounds=rounds(2) - 1)
    record("loader", way, n)
    assert found == n
