"""Building the index over the words of a file."""

import struct
import sys

import numpy as np
import pytest

import embmap


@pytest.fixture
def vocabulary_chunk(data, warmed):
    """The vocabulary chunk's data, as bytes."""
    with embmap.open(warmed(data.dense)) as file:
        chunk = next(chunk for chunk in file.chunks if "vocab" in chunk.name)
        with open(file.path, "rb") as handle:
            handle.seek(chunk.data_offset)
            return handle.read(chunk.nbytes)


def words_to_rows(chunk):
    """Put the words into a dict, in the simplest way."""
    (n,) = struct.unpack_from("<Q", chunk)
    rows = {}
    position = 8
    for row in range(n):
        start = position + 4
        position = start + int.from_bytes(chunk[position:start], "little")
        rows[chunk[start:position].decode()] = row
    return rows


def test_build(benchmark, record, rounds, data, warmed):
    file = embmap.open(warmed(data.dense), index="memory")
    index = benchmark.pedantic(
        file.vocab.finder.build, rounds=rounds(9), warmup_rounds=rounds(2) - 1
    )
    record("index build", "embmap", nbytes_per_word=index.nbytes / data.n_words)
    words, rows = data.known(1000)
    assert np.array_equal(index.find_many(words), rows[: len(words)])


def test_build_dict(benchmark, record, rounds, data, vocabulary_chunk):
    found = benchmark.pedantic(words_to_rows, (vocabulary_chunk,), rounds=rounds(5))
    record("index build", "dict", nbytes_per_word=dict_nbytes(found) / data.n_words)
    words, rows = data.known(1000)
    assert [found[word] for word in words] == rows.tolist()


def test_build_finalfusion(benchmark, record, rounds, data, warmed, finalfusion):
    path = warmed(data.dense)
    found = benchmark.pedantic(finalfusion.load_vocab, (path,), rounds=rounds(5))
    nbytes = dict_nbytes(found.word_index) + sys.getsizeof(found.words)
    record("index build", "finalfusion", nbytes_per_word=nbytes / data.n_words)
    words, rows = data.known(1000)
    assert [found[word] for word in words] == rows.tolist()


def dict_nbytes(rows):
    """Return the memory of a dict of words, with its words and numbers."""
    words = sum(map(sys.getsizeof, rows))
    return sys.getsizeof(rows) + words + sum(map(sys.getsizeof, rows.values()))
