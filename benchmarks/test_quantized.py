"""Decoding product-quantized rows of known words."""

import numpy as np
import pytest

import embmap
from benchmarks import files
from benchmarks.test_lookup import BATCHES, N_WORDS, look_up_each


@pytest.fixture(scope="module")
def asked(data):
    return data.known(min(N_WORDS, data.n_words))


@pytest.fixture
def library(way, request, data, warmed):
    if way.startswith("finalfusion"):
        return request.getfixturevalue("fusion_quantized")
    return embmap.open(warmed(data.quantized), index="memory")


@pytest.fixture(scope="module")
def expected(data, asked):
    """The rows asked for, concatenated from their centroids in the simplest way."""
    _, rows = asked
    codes = np.concatenate(list(files.codes(data.n_words)))[rows]
    return files.codebooks()[np.arange(files.CODES), codes].reshape(rows.size, files.DIM)


@pytest.mark.parametrize("way", ["embmap", "finalfusion"])
def test_look_up(benchmark, record, library, asked, expected, way):
    words, _ = asked
    look_up_each(library, words)
    benchmark(look_up_each, library, words)
    record("quantized row", way, len(words))
    assert np.array_equal([library[word] for word in words], expected)


@pytest.mark.parametrize("way", ["embmap", "finalfusion", "finalfusion, by rows"])
def test_batch(benchmark, record, library, asked, expected, way):
    words, _ = asked
    batch = BATCHES[way]
    batch(library, words)
    found = benchmark(batch, library, words)
    record("quantized row, batch", way)
    assert np.array_equal(found, expected)
