"""Decoding vectors out of chunks: all of them, one row, a thousand rows."""

from functools import partial

import numpy as np
import pytest

import embmap
from benchmarks import files

pytestmark = pytest.mark.parametrize("compression", ["fp16", "int8"])

KERNELS = ["embmap, numpy", "embmap, numba"]
ON_CPU = {"device": "cpu", "framework": "numpy"}  # decompressed then runs its C++ code


@pytest.fixture
def path(compression, data, warmed):
    return warmed(data.chunks(compression))


@pytest.fixture
def used(data):
    """An array for all rows, in memory that was used before."""
    return np.ones((data.n_chunk_rows, files.CHUNK_DIM), np.float32)


@pytest.fixture(scope="module")
def asked(data):
    """Rows in random order."""
    return np.random.default_rng(1).permutation(data.n_chunk_rows)[:1000]


@pytest.fixture(scope="module")
def made(asked):
    """The original numbers of these rows."""
    return files.rows(asked, files.CHUNK_DIM)


def check(found, made, compression):
    """Compare rows with the original numbers."""
    if compression == "fp16":
        assert np.array_equal(found, made.astype(np.float16))
    else:  # half a step of bytes that cover at most twelve standard deviations
        np.testing.assert_allclose(found, made, rtol=0, atol=0.5 * 12 / 255)


@pytest.fixture
def load(way, request):
    """A function that makes an array of a file."""
    if way == "decompressed":
        return partial(request.getfixturevalue("decompressed").load_cvc, **ON_CPU)
    return open_and_decode


def open_and_decode(path):
    with embmap.open(path) as file:
        return np.asarray(file.vectors)


def warm_up(way, work):
    """Do some work until compiled loops are loaded by themselves."""
    for _ in range(12 if way == "embmap" else 1):
        work()


@pytest.mark.parametrize("way", ["embmap, numpy", "embmap", "decompressed"])
@pytest.mark.usefixtures("chosen_kernels")
def test_all_rows(benchmark, record, path, load, asked, made, compression, way):
    warm_up(way, lambda: load(path))
    found = benchmark(load, path)
    record(f"{compression}, all rows", way)
    check(found[asked], made, compression)


def test_all_rows_copied(benchmark, record, used, compression):
    found = benchmark(used.copy)
    record(f"{compression}, all rows", "ndarray.copy")
    assert np.array_equal(found, used)


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.usefixtures("chosen_kernels")
def test_used_array(benchmark, record, path, used, asked, made, compression, way):
    def decode():
        start = 0
        for chunk in file.chunks:
            chunk.decode(out=used[start : start + chunk.rows])
            start += chunk.rows

    with embmap.open(path) as file:
        decode()
        benchmark(decode)
    record(f"{compression}, all rows, used array", way)
    check(used[asked], made, compression)


def test_used_array_copied(benchmark, record, used, compression):
    source = np.full_like(used, 2)
    benchmark(np.copyto, used, source)
    record(f"{compression}, all rows, used array", "np.copyto")
    assert np.array_equal(used, source)


@pytest.fixture
def look_up(way, path, data, request):
    """A function that returns one row by its number."""
    if way == "embmap":
        with embmap.open(path) as file:
            yield file.__getitem__
        return
    library = request.getfixturevalue("decompressed")
    size = data.n_chunk_rows // files.N_CHUNKS
    if way == "decompressed":
        load = partial(library.load_cvc_range, path, **ON_CPU)
        yield lambda i: load(chunk_indices=[i // size])[i % size]
    else:
        with library.MMapCVCLoader(str(path)) as loader:
            yield lambda i: loader.load_chunk(i // size)[i % size]


@pytest.mark.parametrize("way", ["embmap", "decompressed", "decompressed, mapped"])
def test_one_row(benchmark, record, look_up, asked, made, compression, way):
    n = asked.size if way == "embmap" else 5  # decompressed decodes whole chunks
    numbers = asked[:n].tolist()
    look_up_each(look_up, numbers)
    benchmark(look_up_each, look_up, numbers)
    record(f"{compression}, one row", way, n)
    check(np.array([look_up(i) for i in numbers]), made[:n], compression)


def look_up_each(look_up, numbers):
    for i in numbers:
        look_up(i)


@pytest.mark.parametrize("way", [*KERNELS, "decompressed"])
@pytest.mark.usefixtures("chosen_kernels")
def test_1000_rows(benchmark, record, path, load, asked, made, compression, way):
    if way == "decompressed":  # every chunk holds some of them
        found = benchmark(lambda: load(path)[asked])
    else:
        with embmap.open(path) as file:
            file[asked]
            found = benchmark(file.__getitem__, asked)
    record(f"{compression}, 1000 rows", way)
    check(found, made, compression)
