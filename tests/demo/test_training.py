"""The demonstration's corpus and training: small texts, and slow loops as the oracle."""

import math
import sys
import sysconfig
from collections import Counter, defaultdict
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embmap.demo import corpus, training


def two_topics(seed=0, n_documents=300):
    """Documents that speak either of animals or of numbers, with a few words in common."""
    rng = np.random.default_rng(seed)
    topics = [["cat", "dog", "horse", "sheep", "cow"], ["one", "two", "three", "four", "five"]]
    return [
        [str(word) for word in rng.choice([*topics[number % 2], "the", "and"], 12)]
        for number in range(n_documents)
    ]


def slow_cooccurrences(documents, n_words, window):
    counts = np.zeros((n_words, 2 * n_words))
    for document in documents:
        for i, word in enumerate(document):
            for j, other in enumerate(document):
                distance = abs(i - j)
                if 1 <= distance <= window:
                    column = other if j > i else n_words + other
                    counts[word, column] += window + 1 - distance
    return counts


def slow_ppmi(counts):
    ppmi = np.zeros(counts.shape)
    smoothed = [sum(column) ** 0.75 for column in counts.T]
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            if count:
                expected = sum(row) * smoothed[j] / sum(smoothed)
                ppmi[i, j] = max(0.0, math.log(count / expected))
    return ppmi


def dense(matrix):
    array = np.zeros(matrix.shape)
    array[matrix.rows, matrix.columns] = matrix.values
    return array


def letter_rows(word):
    return [ord(letter) - ord("a") for letter in word]


# --- tokenize ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("Read THE File.", ["read", "the", "file"]),
        ("3 items, 2nd of 0x1F or 1e5", ["items", "of", "or"]),
        ("utf-8 bytes-like ipv4 x86_64", ["utf-8", "bytes-like", "ipv4", "x86_64"]),
        ("__init__ sys_version _private", ["init", "sys_version", "private"]),
        ("don't use the file's 'name' or users' names", "don't use the file name or users names"),
        ("it\u2019s typographic, isn\u2019t it", "it typographic isn't it"),
        ("os.path -- and --option; a/b", ["os", "path", "and", "option", "a", "b"]),
        ("d\u00e9j\u00e0 \u00dcber", ["d\u00e9j\u00e0", "\u00fcber"]),
        ("before\n\n    >>> f(1)\n    value\n\nafter", ["before", "after"]),
        (">>> only = 1\n>>> examples", []),
    ],
)
def test_tokenize_cases(text, words):
    assert corpus.tokenize(text) == (words.split() if isinstance(words, str) else words)


@given(st.text())
def test_every_word_of_any_text_starts_with_a_letter_and_holds_no_space(text):
    for word in corpus.tokenize(text):
        assert word[0].isalpha()
        assert word.split() == [word]


# --- docstrings ---


@pytest.fixture
def library(tmp_path, monkeypatch):
    """An empty folder in the place of the standard library."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: {"stdlib": str(tmp_path)}[name])
    return tmp_path


def test_source_docstrings_come_in_the_order_of_paths_and_lines_each_once(library):
    (library / "b.py").write_text('"""Last."""\ndef f():\n    """Function."""\n')
    (library / "a").mkdir()
    (library / "a" / "__init__.py").write_text(
        '"""First.\n\n    Indented.\n"""\n'
        "raise RuntimeError('imported')\n"
        'class C:\n    """Class."""\n    async def m(self):\n        """Method."""\n'
        'if True:\n    def f():\n        """Function."""\n'
        '"""Not a docstring."""\n'
    )
    texts = list(islice(corpus.docstrings(), 5))
    assert texts == ["First.\n\nIndented.", "Class.", "Method.", "Function.", "Last."]


def test_tests_installed_packages_and_broken_files_are_left_out(library):
    for folder in ("test", "site-packages", "idlelib", "__pycache__"):
        (library / folder).mkdir()
        (library / folder / "m.py").write_text('"""Unwanted."""')
    (library / "broken.py").write_text('"""Unwanted."""\n)')
    (library / "null.py").write_bytes(b'"""Unwanted."""\n\0')
    (library / "encoded.py").write_bytes(b'"""Unwanted \xff"""')
    (library / "escape.py").write_text("'''An invalid \\escape.'''")
    texts = list(corpus.docstrings())
    assert texts[0] == "An invalid \\escape."
    assert not any("Unwanted" in text for text in texts)


def test_builtins_and_compiled_modules_are_read(library):
    (library / "m.py").write_text("")
    texts = set(corpus.docstrings())
    assert len.__doc__ in texts
    assert str.join.__doc__ in texts
    assert sys.intern.__doc__ in texts
    assert all(text.strip() for text in texts)


@pytest.mark.parametrize("broken", [False, True])
def test_a_library_without_source_is_an_error_that_names_the_folder(library, broken):
    if broken:
        (library / "m.py").write_text(")")
    with pytest.raises(RuntimeError, match="no standard library source") as error:
        list(corpus.documents())
    assert str(library) in str(error.value)


def test_the_standard_library_gives_the_same_documents_each_time():
    once = list(islice(corpus.documents(), 100))
    assert once == list(islice(corpus.documents(), 100))
    assert len(once) == 100
    assert all(once)


# --- sparse matrices ---


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(-9, 9)), max_size=30))
def test_a_sparse_matrix_equals_the_dense_one_over_chunk_borders(entries):
    expected = np.zeros((4, 5))
    for row, column, weight in entries:
        expected[row, column] += weight
    keys = np.array([row * 5 + column for row, column, _ in entries], np.int64)
    weights = np.array([weight for *_, weight in entries], np.float64)
    right = np.arange(10.0).reshape(5, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_CHUNK_NNZ", 3)
        matrix = training.SparseMatrix.summed(keys, weights, (4, 5))
        assert np.array_equal(dense(matrix), expected)
        assert np.array_equal(dense(matrix.transposed()), expected.T)
        assert np.array_equal(matrix.times(right), expected @ right)
        assert np.array_equal(matrix.transposed().times(expected), expected.T @ expected)


# --- co-occurrences ---


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=8), max_size=5),
    st.integers(min_value=1, max_value=9),
)
def test_cooccurrences_equal_the_obvious_loop(documents, window):
    counts = training.cooccurrences(documents, 5, window)
    assert np.array_equal(dense(counts), slow_cooccurrences(documents, 5, window))


def test_cooccurrences_keep_the_sides_apart():
    counts = dense(training.cooccurrences([[0, 1]], 2, 1))
    assert counts.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


# --- train ---


def test_an_embedding_has_the_promised_order_shapes_dtypes_and_lengths():
    documents = [*two_topics(), ["rare"] * 4]
    embedding = training.train(iter(documents), dim=6)
    counts = Counter(word for document in documents for word in document)
    assert sorted(embedding.words) == sorted(set(counts) - {"rare"})
    keys = [(-counts[word], word) for word in embedding.words]
    assert keys == sorted(keys)
    assert embedding.vectors.shape == (12, 6)
    assert embedding.norms.shape == (12,)
    assert embedding.vectors.dtype == embedding.norms.dtype == np.float32
    assert np.linalg.norm(embedding.vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert (embedding.norms > 0).all()


def test_words_as_frequent_are_in_alphabetical_order():
    words = training.train([["c", "b", "a", "d", "d"]], dim=1, min_count=1).words
    assert words == ["d", "a", "b", "c"]


def test_vectors_are_the_leading_singular_vectors_of_the_slow_ppmi():
    documents = two_topics(n_documents=40)
    embedding = training.train(documents, dim=4, window=2)
    index = {word: row for row, word in enumerate(embedding.words)}
    encoded = [[index[word] for word in document] for document in documents]
    u, s, _ = np.linalg.svd(slow_ppmi(slow_cooccurrences(encoded, len(index), 2)))
    expected = u[:, :4] * s[:4]
    found = embedding.vectors * embedding.norms[:, None]
    assert found @ found.T == pytest.approx(expected @ expected.T, abs=1e-4)


def test_two_topics_separate():
    embedding = training.train(two_topics(), dim=3)
    index = {word: row for row, word in enumerate(embedding.words)}
    animals = embedding.vectors[[index[word] for word in ("cat", "dog", "horse", "sheep", "cow")]]
    numbers = embedding.vectors[[index[word] for word in ("one", "two", "three", "four", "five")]]
    across = (animals @ numbers.T).max()
    assert (animals @ animals.T).min() > across + 0.3
    assert (numbers @ numbers.T).min() > across + 0.3


def test_the_same_seed_gives_the_same_vectors_and_another_one_nearly():
    documents = two_topics()
    first = training.train(documents, dim=4, seed=1)
    again = training.train(documents, dim=4, seed=1)
    other = training.train(documents, dim=4, seed=2)
    assert first.words == again.words
    assert np.array_equal(first.vectors, again.vectors)
    assert np.array_equal(first.norms, again.norms)
    assert first.vectors @ first.vectors.T == pytest.approx(
        other.vectors @ other.vectors.T, abs=1e-3
    )


def test_a_word_without_neighbours_has_a_zero_vector():
    embedding = training.train([*two_topics(), *[["lonely"]] * 5], dim=4)
    row = embedding.words.index("lonely")
    assert not embedding.vectors[row].any()
    assert embedding.norms[row] == 0


def test_a_corpus_without_any_neighbours_gives_zeros():
    embedding = training.train([["a"], ["b"]], dim=1, min_count=1)
    assert not embedding.vectors.any()
    assert not embedding.norms.any()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dim": 0}, "dim must be at least 1"),
        ({"min_count": 0}, "min_count must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"dim": 13}, "dim is 13, but only 12 words"),
        ({"min_count": 10**6}, "only 0 words"),
    ],
)
def test_impossible_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        training.train(two_topics(), **{"dim": 2, **parameters})


# --- subword_rows ---


def test_rows_of_a_word_sum_near_its_vector_and_unused_rows_are_zero():
    rng = np.random.default_rng(0)
    words = ["abcdefg", "hijklmn", "opqrstu", "abopqhi"]
    vectors = rng.standard_normal((4, 5)).astype(np.float32)
    rows = training.subword_rows(words, vectors, letter_rows, 26)
    assert rows.shape == (26, 5)
    assert rows.dtype == np.float32
    assert not rows[21:].any()
    for word, vector in zip(words, vectors, strict=True):
        composed = rows[letter_rows(word)].sum(axis=0)
        cosine = composed @ vector / np.linalg.norm(composed) / np.linalg.norm(vector)
        assert cosine > 0.8, word


def test_rows_solve_the_ridge_regression_and_repeated_rows_count_as_often():
    words = ["aab", "bc", "cad", ""]
    vectors = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    holds = np.zeros((4, 4))
    for i, word in enumerate(words):
        for row in letter_rows(word):
            holds[i, row] += 1
    normal = holds.T @ holds + training._RIDGE * np.eye(4)
    expected = np.linalg.solve(normal, holds.T @ vectors)
    assert training.subword_rows(words, vectors, letter_rows, 4) == pytest.approx(
        expected, abs=1e-5
    )


def test_an_unknown_word_is_composed_near_the_words_it_is_built_like():
    topics = {"ab": [1.0, 0.0], "cd": [0.0, 1.0]}
    by_word = defaultdict(list)
    for letters, vector in topics.items():
        for suffix in "uvwxyz":
            by_word[letters + suffix] = vector
    vectors = np.array(list(by_word.values()), np.float32)
    rows = training.subword_rows(list(by_word), vectors, letter_rows, 26)
    composed = rows[letter_rows("abq")].sum(axis=0)
    assert composed[0] > 3 * abs(composed[1])


def test_words_without_rows_give_zeros():
    rows = training.subword_rows(["a", "b"], np.ones((2, 3), np.float32), lambda word: [], 4)
    assert rows.shape == (4, 3)
    assert not rows.any()


def test_subword_rows_checks_its_input():
    with pytest.raises(ValueError, match="1 words, but 2 vectors"):
        training.subword_rows(["a"], np.ones((2, 3), np.float32), letter_rows, 26)
    for word in ("z", "A"):
        with pytest.raises(ValueError, match="rows from"):
            training.subword_rows([word], np.ones((1, 3), np.float32), letter_rows, 25)
