"""Fixtures: the files, the open libraries, and whether to measure or only to test."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import pytest

import embmap
from benchmarks import files
from benchmarks.table import ROWS
from embmap.codecs import kernels

_TINY = 2000
_LIBRARIES = ["numpy", "xxhash", "numba"]
_LIBRARIES += ["finalfusion", "gensim", "decompressed", "safetensors", "constriction", "lmdb"]
_LIBRARIES += ["redis", "hiredis", "torch", "pyarrow", "spacy"]
_THREADS = {"one thread": "1", "two threads": "2"}


def pytest_addoption(parser):
    parser.addoption(
        "--bench-words",
        type=int,
        metavar="N",
        help=f"measure with files of N words; without it the benchmarks run once, with {_TINY}",
    )


def pytest_benchmark_update_machine_info(machine_info):
    machine_info["libraries"] = {
        "Python": platform.python_version(),
        "embmap": embmap.__version__,
        **{name: _version(name) for name in _LIBRARIES},
    }


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@pytest.fixture(scope="session")
def asked_words(request):
    """The size to measure with; None when nothing is to be measured."""
    return request.config.getoption("--bench-words", None)


@pytest.fixture
def benchmark(benchmark, asked_words):
    """pytest-benchmark's fixture, which runs the work only once unless a size was asked for."""
    benchmark.disabled = benchmark.disabled or asked_words is None
    return benchmark


@pytest.fixture
def record(benchmark):
    """Note what a measurement is about, for its row of the table: ``record(work, way, per)``."""

    def note(work, way, per=1, **facts):
        assert work in {row.work for row in ROWS}
        benchmark.extra_info.update(work=work, way=way, per=per, **facts)

    return note


@pytest.fixture
def rounds(benchmark):
    """A function of n that returns n if something is measured, else 1."""
    return lambda n: n if benchmark.enabled else 1


@pytest.fixture(scope="session")
def data(asked_words, tmp_path_factory):
    """The files."""
    if asked_words is None:
        return files.Files(tmp_path_factory.mktemp("bench"), _TINY)
    return files.Files(files.cache_folder(asked_words), asked_words)


@pytest.fixture(scope="session")
def warmed(asked_words):
    """A function that brings a file into the page cache and returns its path."""
    seen = set()

    def warm(path):
        if asked_words is not None and path not in seen:
            seen.add(path)
            files.warm(path)
        return path

    return warm


@pytest.fixture
def chosen_kernels(way, monkeypatch):
    """Let embmap use the kernels and threads that `way` names."""
    library, *choices = way.split(", ")
    if library != "embmap" or not choices:
        return
    pytest.importorskip(choices[0], reason=f"{choices[0]} is not installed here")
    monkeypatch.setattr(kernels, "CHOICE", choices[0])
    if len(choices) > 1:
        monkeypatch.setenv("EMBMAP_THREADS", _THREADS[choices[1]])


@pytest.fixture(scope="session")
def finalfusion():
    return pytest.importorskip("finalfusion", reason="finalfusion is not installed here")


@pytest.fixture(scope="session")
def decompressed():
    return pytest.importorskip("decompressed", reason="decompressed is not installed here")


@pytest.fixture(scope="session")
def gensim_vectors(data, warmed):
    """The dense file as gensim's KeyedVectors."""
    models = pytest.importorskip("gensim.models", reason="gensim is not installed here")
    warmed(data.gensim.with_name(data.gensim.name + ".vectors.npy"))
    return models.KeyedVectors.load(str(data.gensim), mmap="r")


@pytest.fixture(scope="session")
def fusion_dense(data, warmed, finalfusion):
    """The dense file as finalfusion's Embeddings."""
    return finalfusion.load_finalfusion(warmed(data.dense), mmap=True)


@pytest.fixture(scope="session")
def fusion_quantized(data, warmed, finalfusion):
    """The quantized file as finalfusion's Embeddings."""
    return finalfusion.load_finalfusion(warmed(data.quantized), mmap=True)
