"""Every finalfusion file of the conformance folder gives its known answers.

Both back ends, and words found with and without an index file. The values come from other
implementations, see MANIFEST.txt in the folder.
"""

import json
from itertools import islice

import numpy as np
import pytest

import embmap
from embmap.subwords import BucketIndexer, FastTextIndexer
from tests.reference import finalfusion as reference

FILES = ("finalfusion/*.fifu", "finalfusion/*quantized_storage.bin")


def answers(path):
    """The file with the known answers about a file."""
    return path.parent / "expected" / f"{path.name.removesuffix('.fifu')}.npz"


def has_words(path):
    if not answers(path).exists():
        return False
    with np.load(answers(path)) as arrays:
        return "words" in arrays


EVERY_FILE = pytest.mark.conformance_files(*FILES)
WITH_ANSWERS = pytest.mark.conformance_files(*FILES, where=lambda path: answers(path).exists())
WITH_WORDS = pytest.mark.conformance_files(*FILES, where=has_words)
QUANTIZED_TOLERANCE = 1e-6
UNKNOWN_TOLERANCE = 1e-6


@pytest.fixture
def expected(conformance_file):
    """The known answers about the file: arrays by name."""
    with np.load(answers(conformance_file)) as arrays:
        return dict(arrays)


def close_to_stored(found, expected, f):
    """Whether vectors are those expected: bit for bit unless they are decoded."""
    assert found.dtype == expected.dtype == np.float32
    if f.info()["storage"]["kind"] == "quantized":
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=QUANTIZED_TOLERANCE)
    else:
        np.testing.assert_array_equal(found, expected)


@WITH_WORDS
def test_words_come_in_the_order_of_the_file(opened, expected):
    words = expected["words"].tolist()
    assert list(opened.vocab) == words
    assert list(opened) == words
    assert opened.vocab[:] == words
    assert [opened.vocab[row] for row in range(len(words))] == words
    assert len(opened) == len(opened.vocab) == len(words)


@WITH_ANSWERS
def test_matrix_holds_the_stored_rows(opened, expected):
    matrix = expected["matrix"]
    assert opened.shape == opened.vectors.shape == matrix.shape
    assert opened.dim == matrix.shape[1]
    close_to_stored(np.asarray(opened.vectors), matrix, opened)
    close_to_stored(opened.vectors[1:-1], matrix[1:-1], opened)
    backwards = np.arange(len(matrix))[::-1]
    close_to_stored(opened.vectors.take(backwards), matrix[backwards], opened)
    for row in range(0, len(matrix), 7):
        close_to_stored(opened.vectors[row], matrix[row], opened)


@WITH_WORDS
def test_every_word_gives_its_vector(opened, expected):
    words, vectors = expected["words"].tolist(), expected["word_vectors"]
    for word, vector in zip(words, vectors, strict=True):
        close_to_stored(opened[word], vector, opened)
        close_to_stored(opened.get(word), vector, opened)
        assert word in opened
    close_to_stored(opened.batch(words), vectors, opened)
    close_to_stored(opened[words], vectors, opened)


@WITH_WORDS
def test_find_gives_the_row_of_every_word(opened, expected):
    words = expected["words"].tolist()
    assert opened.find(words).tolist() == list(range(len(words)))
    assert [int(opened.find([word])[0]) for word in words] == list(range(len(words)))
    assert opened.find(["no such word", *words[:9], "nor this"]).tolist() == [
        -1,
        *range(len(words[:9])),
        -1,
    ]


@WITH_ANSWERS
def test_norms_are_those_stored(opened, expected):
    if "has_norms" not in expected:  # a bare quantized array: these are the norms of its rows
        assert opened.norms is None
        np.testing.assert_array_equal(opened.vectors.norms, expected["norms"])
        return
    if not expected["has_norms"]:
        assert opened.norms is None
        return
    np.testing.assert_array_equal(opened.norms, expected["norms"])
    for row, word in enumerate(expected["words"].tolist()[:5]):
        vector, norm = opened.embedding_with_norm(word)
        assert norm == expected["norms"][row]
        close_to_stored(vector, expected["word_vectors"][row], opened)
        np.testing.assert_array_equal(opened.unnormalized(word), vector * np.float32(norm))


@WITH_ANSWERS
def test_metadata_are_those_stored(opened, expected):
    metadata = json.loads(str(expected.get("metadata_json", "null")))
    assert opened.metadata == (metadata or {})
    assert (opened.metadata_toml is None) == (metadata is None)


@WITH_WORDS
def test_unknown_words_have_the_subword_rows_expected(opened, expected):
    rows = iter(expected["oov_index_flat"].tolist())
    words, counts = expected["oov_words"].tolist(), expected["oov_index_len"].tolist()
    for word, count in zip(words, counts, strict=True):
        assert opened.subword_rows(word).tolist() == list(islice(rows, count))


@WITH_WORDS
def test_unknown_words_have_the_vectors_expected(opened, expected):
    words, vectors = expected["oov_words"].tolist(), expected["oov_vectors"]
    for word, vector in zip(words, vectors, strict=True):
        np.testing.assert_allclose(opened[word], vector, atol=UNKNOWN_TOLERANCE)
        assert word not in opened
        assert word not in opened.vocab
    np.testing.assert_allclose(opened.batch(words), vectors, atol=UNKNOWN_TOLERANCE)
    assert opened.find(words).tolist() == [-1] * len(words)


@WITH_ANSWERS
def test_the_reference_decoder_gives_the_same_answers(conformance_file, expected):
    decoded = reference.decode(conformance_file.read_bytes())
    np.testing.assert_allclose(decoded.matrix, expected["matrix"], rtol=1e-6, atol=1e-6)
    if "words" not in expected:
        return
    assert decoded.words == expected["words"].tolist()
    if expected["has_norms"]:
        np.testing.assert_array_equal(decoded.norms, expected["norms"])
    rows = iter(expected["oov_index_flat"].tolist())
    for i, word in enumerate(expected["oov_words"].tolist()):
        of_word = list(islice(rows, int(expected["oov_index_len"][i])))
        assert reference.subword_rows(decoded, word) == of_word
        vector = reference.unknown_vector(decoded, word)
        np.testing.assert_allclose(vector, expected["oov_vectors"][i], atol=UNKNOWN_TOLERANCE)


@EVERY_FILE
def test_sound_files_are_verified_without_a_problem(opened):
    report = opened.verify()
    assert report.ok, report.problems


@EVERY_FILE
def test_files_keep_their_layout(conformance_file, backend):
    layout = "bare" if conformance_file.suffix == ".bin" else "reference"
    with embmap.open(conformance_file, backend=backend) as f:
        assert (f.format, f.layout) == ("finalfusion", layout)


# What MANIFEST.txt says in words


@pytest.fixture
def known(conformance, backend):
    """Open a file of the folder by name."""
    opened = []

    def open_known(name):
        opened.append(embmap.open(conformance / "finalfusion" / name, backend=backend))
        return opened[-1]

    yield open_known
    for f in opened:
        f.close()


def nearest(f, vector, n, but=()):
    """Words and cosines of the rows nearest to a vector."""
    rows = np.asarray(f.vectors)[: len(f)]
    cosines = rows @ vector / (np.linalg.norm(rows, axis=1) * np.linalg.norm(vector))
    order = [row for row in np.argsort(-cosines).tolist() if f.vocab[row] not in but]
    return [f.vocab[row] for row in order[:n]], cosines[order[:n]].tolist()


def test_single_chunk_files_hold_what_the_whole_file_holds(known):
    whole = known("py-ff_buckets.fifu")
    words = known("gen-vocab_only.fifu")
    assert list(words.vocab) == list(whole.vocab) == ["one", "</s>"]
    assert words.vectors is None
    assert words.info()["vocabulary"] == whole.info()["vocabulary"]
    assert words.subword_rows("OOV").tolist() == whole.subword_rows("OOV").tolist()
    with pytest.raises(embmap.FormatError, match="no vectors"):
        words["one"]
    with pytest.raises(embmap.FormatError, match="no vectors"):
        words["OOV"]

    storage = known("gen-storage_only.fifu")
    assert storage.vocab is None
    assert len(storage) == 1026
    np.testing.assert_array_equal(storage.vectors, whole.vectors)
    np.testing.assert_array_equal(storage[1:3], whole[1:3])
    assert "one" not in storage

    norms = known("gen-norms_only.fifu")
    assert (norms.vocab, norms.vectors) == (None, None)
    np.testing.assert_array_equal(norms.norms, whole.norms)

    metadata = known("gen-metadata_only.fifu")
    assert (metadata.vocab, metadata.vectors, metadata.norms) == (None, None, None)
    assert metadata.metadata == whole.metadata


@pytest.mark.parametrize(
    "name", ["vocab_only", "storage_only", "norms_only", "metadata_only", "empty"]
)
def test_single_chunk_files_are_sound(known, name):
    report = known(f"gen-{name}.fifu").verify()
    assert report.ok
    assert report.problems == []


def test_words_for_a_file_of_vectors_come_from_the_caller(conformance, backend):
    path = conformance / "finalfusion" / "gen-storage_only.fifu"
    words = [f"word {row}" for row in range(1026)]
    with embmap.open(path, backend=backend, vocab=words) as f:
        np.testing.assert_array_equal(f["word 1025"], f.vectors[1025])
        assert f.find(["word 3", "one"]).tolist() == [3, -1]


def test_norms_that_the_header_does_not_list_are_found(known):
    f = known("py-embeddings.fifu")
    assert list(f.vocab) == ["one", "two", "three", "four", "five", "six", "seven"]
    assert [chunk.id for chunk in f.chunks] == [1, 2, 6]
    expected = [6.5574384, 8.8317604, 6.1644139, 9.1651516, 7.4833150, 7.2111025, 7.4833150]
    np.testing.assert_array_equal(f.norms, np.array(expected, np.float32))
    assert any("header lists" in problem.message for problem in f.verify().problems)


def test_unnormalized_rows_are_those_of_the_source(known, conformance):
    f = known("py-embeddings.fifu")
    lines = (conformance / "finalfusion" / "py-embeddings.txt").read_text("utf-8").splitlines()
    for line in lines:
        word, *values = line.split()
        np.testing.assert_allclose(f.unnormalized(word), np.array(values, np.float32), atol=1e-5)


def test_buckets_of_finalfusion_are_those_of_its_authors(known):
    f = known("py-ff_buckets.fifu")
    assert list(f.vocab) == ["one", "</s>"]
    np.testing.assert_allclose(f.norms, [0.11185, 0.24372], atol=1e-5)
    # fmt: off
    expected = [
        14, 69, 74, 124, 168, 181, 197, 246, 250, 276, 300, 308, 325, 416, 549, 590, 648, 651,
        707, 717, 761, 817, 820, 857, 860, 1007,
    ]
    # fmt: on
    assert sorted(f.subword_rows("tübingen").tolist()) == expected
    assert f.metadata["common_config"]["dims"] == 5
    assert f.metadata["vocab_config"]["type"] == "SubwordVocab"
    total = np.asarray(f.vectors)[f.subword_rows("OOV")].sum(axis=0)
    np.testing.assert_allclose(f["OOV"], total / np.linalg.norm(total), atol=1e-6)


def test_known_hashes_of_n_grams():
    rows, counts = BucketIndexer(3, 3, 21).buckets(["Dan"])
    assert (rows.tolist()[:2], counts.tolist()) == ([2026735, 214157], [3])
    rows, _ = BucketIndexer(5, 5, 21).buckets(["hallo"])
    assert rows[1] == 1006102
    rows, _ = FastTextIndexer(3, 3, 2_000_000).buckets(["en"])
    assert rows[1] == 619228


def test_explicit_n_grams_are_found_though_their_chunk_states_a_wrong_length(known):
    f = known("gen-ff_explicit.fifu")
    (chunk,) = (chunk for chunk in f.chunks if chunk.id == 8)
    assert chunk.nbytes == chunk.stated_nbytes + 128
    assert f.info()["vocabulary"]["n_ngrams"] == 16
    assert len(f.subwords.vocabulary) == 16


def test_floret_gives_the_vectors_that_floret_gives(known, conformance):
    f = known("gen-floret_square.fifu")
    lines = (conformance / "finalfusion" / "gen-floret_square_check.dims.txt").read_text("utf-8")
    for line in lines.splitlines()[1:]:
        word, *values = line.split()
        vector = np.array(values, np.float64)
        np.testing.assert_allclose(f[word], vector / np.linalg.norm(vector), atol=1e-4)


def test_quantized_vectors_are_near_those_before_quantization(known):
    quantized, exact = known("py-pq.fifu"), known("py-pq-check.fifu")
    assert list(quantized.vocab) == list(exact.vocab)
    np.testing.assert_allclose(quantized.vectors, exact.vectors, rtol=0.05, atol=0.05)
    assert quantized.vectors.codes.shape == (41, 50)
    assert quantized.vectors.codebooks.shape == (50, 32, 2)
    assert quantized.vectors.projection is None
    assert quantized.vectors.norms.shape == (41,)


def test_rows_that_are_not_unit_vectors_stay_as_they_are(known):
    f = known("rs-similarity.fifu")
    lengths = np.linalg.norm(f.vectors, axis=1)
    assert 13.7 < lengths.min() < lengths.max() < 19.9
    np.testing.assert_array_equal(f["Berlin"], f.vectors[f.find(["Berlin"])[0]])


@pytest.mark.parametrize(
    ("name", "word", "words", "cosines"),
    [
        (
            "py-similarity.fifu",
            "Berlin",
            ["Potsdam", "Hamburg", "Leipzig"],
            [0.88485, 0.87575, 0.85514],
        ),
        ("gen-fasttext.fifu", "über", ["auf", "vor", "durch"], [0.568513, 0.551551, 0.547349]),
        (
            "gen-fasttext.fifu",
            "unknown",
            ["einer", "und", "des"],
            [0.691177, 0.576449, 0.570398],
        ),
    ],
)
def test_nearest_words_are_those_of_the_reference(known, name, word, words, cosines):
    f = known(name)
    found, found_cosines = nearest(f, f[word], 3, but=[word])
    assert found == words
    np.testing.assert_allclose(found_cosines, cosines, atol=1e-5)


def test_analogies_are_those_of_the_reference(known):
    f = known("py-simple_vocab.fifu")
    assert f.vocab[0] == "Paris"
    asked = ["Paris", "Frankreich", "Berlin"]
    paris, france, berlin = f[asked]
    words, cosines = nearest(f, france - paris + berlin, 1, but=asked)
    assert words == ["Deutschland"]
    np.testing.assert_allclose(cosines, [0.76461], atol=1e-5)
