"""Searching all words for the most similar ones, on rows and on codes."""

import numpy as np
import pytest

import embmap
from benchmarks import files

N_QUERIES, N_FOUND = 5, 10


@pytest.fixture(scope="module")
def asked(data):
    return data.known(min(N_QUERIES, data.n_words), seed=3)[0]


def cosines(words, found, rows):
    """Return the cosines of words with the words found for them, from the original numbers."""
    queries, others = rows(words), np.array([rows(names) for names in found])
    lengths = np.linalg.norm(others, axis=2) * np.linalg.norm(queries, axis=1)[:, np.newaxis]
    return np.einsum("qd,qnd->qn", queries, others) / lengths


@pytest.mark.parametrize("way", ["embmap", "finalfusion", "gensim"])
def test_most_similar(benchmark, record, request, data, warmed, asked, way):
    n = min(N_FOUND, data.n_words - 1)
    if way == "embmap":
        file = embmap.open(warmed(data.dense), index="memory")

        def search(word):
            return [each.word for each in file.most_similar(word, n)]
    elif way == "finalfusion":
        library = request.getfixturevalue("fusion_dense")

        def search(word):
            return [each.word for each in library.word_similarity(word, n)]
    else:
        library = request.getfixturevalue("gensim_vectors")

        def search(word):
            return [word for word, _ in library.most_similar(word, topn=n)]

    search(asked[0])
    found = benchmark(lambda: [search(word) for word in asked])
    record("most similar", way, len(asked))
    assert [len(names) for names in found] == [n] * len(asked)
    if way != "finalfusion":  # it assumes unit vectors, which these are not
        number = {files.word(i): i for i in range(data.n_words)}

        def rows(names):
            return files.rows(np.array([number[name] for name in names]))

        scores = cosines(asked, found, rows)
        assert (np.diff(scores, axis=1) <= 1e-6).all()
        assert (scores < 1).all()


@pytest.mark.parametrize("way", ["embmap, numpy", "embmap, numba"])
@pytest.mark.usefixtures("chosen_kernels")
def test_most_similar_quantized(benchmark, record, data, warmed, asked, way):
    n = min(N_FOUND, data.n_words - 1)
    with embmap.open(warmed(data.quantized), index="memory") as file:
        file.most_similar(asked[0], n)
        found = benchmark(lambda: [file.most_similar(word, n) for word in asked])
        record("most similar, quantized", way, len(asked))
        for word, neighbors in zip(asked, found, strict=True):
            vector = file[word] / np.linalg.norm(file[word])
            for row, _, score in neighbors:
                other = file.vectors[row]
                assert score == pytest.approx(vector @ other / np.linalg.norm(other), abs=1e-5)
