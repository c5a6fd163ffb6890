"""Warm look-ups of known words, one at a time and many at once."""

import numpy as np
import pytest

import embmap
from benchmarks import files

N_WORDS = 10_000


@pytest.fixture(scope="module")
def asked(data):
    """Words in random order, and their rows."""
    return data.known(min(N_WORDS, data.n_words))


@pytest.fixture
def library(way, request, data, warmed):
    """An open file of a library, whose items are vectors."""
    if way == "gensim":
        return request.getfixturevalue("gensim_vectors")
    if way.startswith("finalfusion"):
        return request.getfixturevalue("fusion_dense")
    index = "require" if way == "embmap, index file" else "memory"
    return embmap.open(warmed(data.indexed), index=index)


def look_up_each(library, words):
    for word in words:
        library[word]


def test_look_up_in_a_database(benchmark, record, data, warmed, asked):
    """LMDB's bytes of a row, in place, as an array."""
    lmdb = pytest.importorskip("lmdb", reason="lmdb is not installed here")
    words, rows = asked

    def look_up(words):
        for word in words:
            from_buffer(get(word.encode()), np.float32)

    path = str(warmed(data.lmdb))
    with (
        lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False) as database,
        database.begin(buffers=True) as transaction,
    ):
        get, from_buffer = transaction.get, np.frombuffer
        look_up(words)
        benchmark(look_up, words)
        record("look-up", "LMDB", len(words))
        found = np.array([from_buffer(get(word.encode()), np.float32) for word in words])
    assert np.array_equal(found, files.rows(rows))


@pytest.mark.parametrize("way", ["embmap, index file", "embmap", "finalfusion", "gensim"])
def test_look_up(benchmark, record, library, asked, way):
    words, rows = asked
    look_up_each(library, words)
    benchmark(look_up_each, library, words)
    record("look-up", way, len(words))
    found = np.array([library[word] for word in words])
    assert np.array_equal(found, files.rows(rows))


BATCHES = {
    "embmap, index file": lambda library, words: library.batch(words),
    "embmap": lambda library, words: library.batch(words),
    "finalfusion": lambda library, words: np.stack([library[word] for word in words]),
    "finalfusion, by rows": lambda library, words: library.storage[
        [library.vocab[word] for word in words]
    ],
    "gensim": lambda library, words: library[words],
}


@pytest.mark.parametrize("way", list(BATCHES))
def test_batch(benchmark, record, library, asked, way):
    words, rows = asked
    batch = BATCHES[way]
    batch(library, words)
    found = benchmark(batch, library, words)
    record("batch", way)
    assert np.array_equal(found, files.rows(rows))
