"""Searching all words for the most similar ones, on rows and on codes."""

import numpy as np
import pytest

import embmap
from benchmarks import files

N_QUERIES, N_FOUND = 5, 10
WARM = 15  # searches after which compiled loops are loaded


@pytest.fixture(scope="module")
def asked(data):
    return data.known(min(N_QUERIES, data.n_words), seed=3)[0]


def cosines(words, found, rows):
    """Return the cosines of words with the words found for them, from the original numbers."""
    queries, others = rows(words), np.array([rows(names) for names in found])
    lengths = np.linalg.norm(others, axis=2) * np.linalg.norm(queries, axis=1)[:, np.newaxis]
    return np.einsum("qd,qnd->qn", queries, others) / lengths


@pytest.fixture
def opened(data, warmed, way):
    """The dense file, with or without a sketch, in a process that has searched for a while."""
    if way == "embmap, sketch":
        pytest.importorskip("numba", reason="numba is not installed here")
    file = embmap.open(warmed(data.sketched if way == "embmap, sketch" else data.dense))
    for row in range(WARM):
        file.most_similar(files.word(row % data.n_words))
    return file


@pytest.mark.parametrize("way", ["embmap", "embmap, sketch", "finalfusion", "gensim"])
def test_most_similar(benchmark, record, request, data, asked, way):
    n = min(N_FOUND, data.n_words - 1)
    if way.startswith("embmap"):
        file = request.getfixturevalue("opened")

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


def test_one_product(benchmark, record, data, warmed, asked):
    """The product of the matrix with each query: no lengths, no ranking."""
    with embmap.open(warmed(data.dense)) as file:
        matrix, queries = np.asarray(file.vectors), file.batch(asked)
    benchmark(lambda: [matrix @ query for query in queries])
    record("most similar", "one product", len(asked))


@pytest.mark.parametrize("way", ["embmap", "embmap, sketch", "all words"])
def test_most_similar_of_some(benchmark, record, data, opened, asked, way):
    n = min(N_FOUND, data.n_words // 20)
    among = np.random.default_rng(5).permutation(data.n_words)[: data.n_words // 20]
    some = None if way == "all words" else np.sort(among)
    found = benchmark(lambda: [opened.most_similar(word, n, among=some) for word in asked])
    record("most similar, some", way, len(asked))
    assert some is None or np.isin([each.row for each in found[0]], some).all()


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
