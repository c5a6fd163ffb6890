"""What tests of made finalfusion files share: content, and the comparison with the reference."""

import functools
import tomllib
import unicodedata

import numpy as np
import pytest

import embmap
from tests.reference import finalfusion as reference

try:
    import tomli_w
except ImportError:  # fewer kinds of metadata then
    tomli_w = None

WORDS = ["berlin", "Dan", "tübingen", "日本語", "🙂"]
UNICODE_WORDS = [
    "",
    " ",
    "a b",
    unicodedata.normalize("NFC", "naïve"),
    unicodedata.normalize("NFD", "naïve"),
    "日本語",
    "🙂",
    "👩‍👩‍👧",
    "x" * 300,
    "é" * 200,
    "tab\there",
    "line\nbreak",
    "\0",
    "nul\0inside",
    "nul at the end\0",
    "nul",
    "<bracketed>",
    "\ufeffmark",
    "\U0010ffff",
]
UNKNOWN = ["Berlin", "berlinx", "Dante", "日本", "🙂🙂🙂", "z", "with space", "Übingen", "naive"]
METADATA = 'title = "✓"\nn = 3\n\n[sub]\nvalues = [1, 2.5, "x"]\n'
KINDS = ["simple", "bucket", "fasttext", "explicit", "floret"]
STORAGES = ["ndarray", "pq", "pq-projection", "pq-norms", "pq-projection-norms"]
DTYPES = ["i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"]
# Which vocabularies each layout has.
DIALECTS = [("reference", kind) for kind in KINDS]
DIALECTS += [("v0", kind) for kind in KINDS[:4]]
DIALECTS += [("draft", kind) for kind in KINDS[:2]]

# Norms and metadata take turns: each vocabulary and each storage comes with and without them.
WHOLE = [
    (kind, storage, (i + j) % 2 == 0, (i + j) // 2 % 2 == 0)
    for i, kind in enumerate(KINDS)
    for j, storage in enumerate(STORAGES)
]


def content(
    kind="simple",
    storage="ndarray",
    norms=True,
    metadata=True,
    words=WORDS,
    dtype="<f4",
    layout="reference",
):
    """Make what a file is to say; None for a kind or storage leaves that part out."""
    made = reference.Decoded(vocab_kind=kind)
    if kind is not None:
        words = [] if kind == "floret" else list(words)
        made.words = words
        add_subwords(made, layout)
    else:
        words = list(words)
    rng = np.random.default_rng(7)
    rows = len(words) + (made.n_buckets or 0)
    if storage == "ndarray":
        made.storage_kind = "ndarray"
        made.matrix = (rng.normal(size=(rows, 6)) * 40).astype(dtype)
    elif storage is not None:
        made.storage_kind = "quantized"
        made.codes = rng.integers(0, 5, (rows, 3), dtype=np.uint8)
        made.codebooks = rng.normal(size=(3, 5, 2)).astype("<f4")
        if "projection" in storage:
            made.projection = rng.normal(size=(6, 6)).astype("<f4")
        if "norms" in storage:
            made.pq_norms = rng.uniform(0.5, 1.5, rows).astype("<f4")
    if norms:
        made.norms = rng.uniform(0.5, 9, len(words)).astype("<f4")
    if metadata:
        made.metadata = METADATA
    return made


def add_subwords(made, layout):
    kind = made.vocab_kind
    if kind == "simple":
        return
    made.min_n, made.max_n = (2, 4) if kind == "floret" else (3, 6)
    if kind == "bucket":
        made.exponent, made.n_buckets = 4, 16
    elif kind == "fasttext":
        made.n_buckets = 11
    elif kind == "explicit":
        texts = dict.fromkeys(
            reference.ngrams("<Berlin>", 3, 6) + reference.ngrams("<日本語>", 3, 5)
        )
        share = 1 if layout == "v0" else 2  # in the reference layout n-grams may share a row
        made.ngrams = [(text, i // share) for i, text in enumerate(texts)]
        if layout == "reference":
            made.ngrams.reverse()  # an index is not a position
        made.n_buckets = len({row for _, row in made.ngrams})
    else:
        made.n_buckets, made.n_hashes, made.seed = 13, 3, 2166136261
        made.bow, made.eow = "[", "»"


def same_answers(f, decoded, unknown=UNKNOWN):
    """Assert that an open file agrees with the reference decoder."""
    assert f.layout == decoded.layout
    assert [chunk.id for chunk in f.chunks] == decoded.chunk_ids
    same_words(f, decoded)
    same_vectors(f, decoded)
    if decoded.words is not None:
        same_unknown(f, decoded, [word for word in unknown if word not in decoded.words])
    assert f.metadata_toml == decoded.metadata
    assert f.metadata == tomllib.loads(decoded.metadata or "")
    assert (f.norms is None) == (decoded.norms is None)
    if decoded.norms is not None:
        assert f.norms.dtype == decoded.norms.dtype
        assert f.norms.tobytes() == decoded.norms.tobytes()


def same_words(f, decoded):
    words = decoded.words
    if words is None:
        assert f.vocab is None
        assert len(f) == (0 if decoded.matrix is None else len(decoded.matrix))
        return
    rows = list(range(len(words)))
    assert len(f) == len(words)
    assert list(f) == list(f.vocab) == f.vocab[:] == words
    assert [f.vocab[row] for row in rows] == words
    assert f.find(words).tolist() == rows
    assert [f.vocab.index(word) for word in words] == rows
    assert all(word in f for word in words)


def same_vectors(f, decoded):
    matrix = decoded.matrix
    if matrix is None:
        assert f.vectors is None
        assert f.shape == (0, 0)
        return

    def same(found, expected):
        assert found.dtype == expected.dtype
        if decoded.storage_kind == "quantized":
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        else:
            assert found.tobytes() == expected.tobytes()

    assert f.shape == f.vectors.shape == matrix.shape
    same(np.asarray(f.vectors), matrix)
    same(f.vectors[1:3], matrix[1:3])
    order = np.arange(len(matrix))[::-2]
    same(f.vectors.take(order), matrix[order])
    for start, block in f.vectors.blocks(rows_per_block=4):
        same(block, matrix[start : start + 4])
    words = decoded.words or []
    for row, word in enumerate(words):
        same(f[word], matrix[row])
    if words:
        same(f.batch(words[::-1]), matrix[: len(words)][::-1])
        same(f[words], matrix[: len(words)])


@functools.lru_cache(maxsize=2000)
def composed(data, word):
    """The reference's rows and vector of a word; slow, and asked for again in each mode."""
    decoded = reference.decode(data)
    vector = None if decoded.matrix is None else reference.unknown_vector(decoded, word)
    return reference.subword_rows(decoded, word), vector


def same_unknown(f, decoded, unknown):
    data = f.path.read_bytes()
    for word in unknown:
        assert word not in f
        rows, vector = composed(data, word)
        assert f.subword_rows(word).tolist() == rows
        if decoded.matrix is None:
            unknown_to_simple = decoded.vocab_kind == "simple"
            error = embmap.UnknownWordError if unknown_to_simple else embmap.FormatError
            with pytest.raises(error):
                f[word]
            continue
        if vector is None:
            assert f.get(word, "none") == "none"
            with pytest.raises(embmap.UnknownWordError):
                f[word]
        else:
            np.testing.assert_allclose(f[word], vector, atol=2e-6)
            np.testing.assert_allclose(f.get(word), vector, atol=2e-6)
    assert f.find(unknown).tolist() == [-1] * len(unknown)
    if decoded.matrix is not None:
        zero = np.zeros(decoded.matrix.shape[1])
        vectors = [composed(data, word)[1] for word in unknown]
        expected = [zero if vector is None else vector for vector in vectors]
        np.testing.assert_allclose(f.batch(unknown, missing="zero"), expected, atol=2e-6)
