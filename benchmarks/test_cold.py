"""Work on a file that is not in memory: how long it takes, and how much is read from the disk."""

import gc
import os
import time

import numpy as np
import pytest

import embmap
from benchmarks import files
from embmap.bench.probes import cached_pages, drop_from_cache

N_SINGLE, N_BATCH = 20, 5000
PAGE = 4096
PATIENCE = 10  # seconds in which a thread that loads a compiled loop lets go of the file
NORMAL, SEQUENTIAL = 'access="normal"', 'access="sequential"'
OPTIONS = {
    "embmap": {},
    NORMAL: {"access": "normal"},
    SEQUENTIAL: {"access": "sequential"},
}


def device_nbytes():
    """Return what was read from devices for this process; None if the system does not say."""
    try:
        with open("/proc/self/io") as counters:
            return int(dict(line.split(":") for line in counters)["read_bytes"])
    except OSError:
        return None


def is_dropped(path):
    """Drop the pages of a file, and return whether they are gone."""
    drop_from_cache(path)
    pages = cached_pages(path)
    return pages is not None and pages.mean() <= 0.05


@pytest.fixture
def cold(benchmark, rounds, data, way):
    """A function that measures work on the file, which is opened and not in memory."""
    path = data.indexed
    every = [path, path.with_name(path.name + ".embx")]

    def forget():
        gc.collect()
        for each in every:
            with open(each, "rb") as file:
                os.fsync(file.fileno())
            end = time.monotonic() + PATIENCE
            while not is_dropped(each):
                if time.monotonic() > end:
                    pytest.skip("this system does not drop the pages of a file, or does not say so")
                time.sleep(0.1)

    def measure(work):
        read, found = [], []

        def setup():
            forget()
            return (embmap.open(path, **OPTIONS[way]),), {}

        def counted(file):
            before = device_nbytes()
            found[:] = [work(file)]
            after = device_nbytes()
            read.append(None if after is None or before is None else after - before)
            file.close()

        benchmark.pedantic(counted, setup=setup, rounds=rounds(5))
        return found[0], [each for each in read if each is not None]

    return measure


@pytest.fixture(scope="module")
def asked(data):
    """Words in random order, and their rows."""
    return data.known(min(N_BATCH, data.n_words), seed=3)


@pytest.mark.parametrize("way", ["embmap", NORMAL])
def test_single_rows(record, cold, asked, way):
    rows = asked[1][:N_SINGLE]
    found, read = cold(lambda file: np.array([file.vectors[row] for row in rows.tolist()]))
    record("cold, one row", way, rows.size, row_nbytes=[each / rows.size for each in read])
    assert np.array_equal(found, files.rows(rows))


@pytest.mark.parametrize("way", ["embmap", NORMAL])
def test_rows(record, cold, asked, way):
    rows = asked[1]
    found, read = cold(lambda file: file.vectors.take(rows))
    record("cold, rows", way, ratio_read=[each / found.nbytes for each in read])
    assert np.array_equal(found, files.rows(rows))


@pytest.mark.parametrize("way", ["embmap", NORMAL])
def test_words(record, cold, asked, way):
    words, rows = asked
    found, read = cold(lambda file: file.batch(words))
    record("cold, words", way, ratio_read=[each / found.nbytes for each in read])
    assert np.array_equal(found, files.rows(rows))


@pytest.mark.parametrize("way", ["embmap", NORMAL])
def test_first_look_up(record, cold, asked, way):
    words = iter(asked[0] * 5)
    found, read = cold(lambda file: file[next(words)].sum())
    record("cold, first look-up", way, pages=[each / PAGE for each in read])
    assert np.isfinite(found)


@pytest.mark.parametrize("way", ["embmap", NORMAL, SEQUENTIAL])
def test_pass(record, cold, way):
    found, _ = cold(lambda file: sum(float(block.sum()) for _, block in file.vectors.blocks()))
    record("cold, pass", way)
    assert np.isfinite(found)
