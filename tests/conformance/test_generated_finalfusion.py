"""What the conformance folder shows about finalfusion files, with files made here.

Files come from the reference encoder and are compared, through the public face, with what the
reference decoder says; files that embmap writes go the other way round.
"""

import functools
import itertools
import struct
import tomllib
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from embmap.subwords import BucketIndexer, ExplicitIndexer, FastTextIndexer, FloretIndexer
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
    """Assert that an open file says what the reference decoder says."""
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


@pytest.fixture(params=["no index", "index file"])
def open_bytes(request, tmp_path, backend):
    """Write bytes to a file and open it with or without an index file beside it."""
    opened = []

    def write_and_open(data, **options):
        path = tmp_path / "file.fifu"
        path.write_bytes(data)
        index = "auto"
        if request.param == "index file":
            with embmap.open(path, **options) as f:
                if f.vocab:
                    f.build_index()
                    index = "require"
        opened.append(embmap.open(path, backend=backend, index=index, **options))
        if index == "require":
            assert opened[-1].info()["index"] == "file"
        return opened[-1]

    yield write_and_open
    for f in opened:
        f.close()


WHOLE = list(itertools.product(KINDS, STORAGES, [True, False], [True, False]))


@pytest.mark.parametrize(("kind", "storage", "norms", "metadata"), WHOLE)
def test_reference_files_give_what_the_reference_decodes(
    open_bytes, kind, storage, norms, metadata
):
    data = reference.encode(content(kind, storage, norms, metadata))
    f = open_bytes(data)
    assert f.layout == "reference"
    same_answers(f, reference.decode(data))
    report = f.verify()
    assert report.problems == []


@pytest.mark.parametrize(
    ("layout", "kind", "storage", "norms", "metadata"),
    [
        (layout, *parts)
        for layout, kind in DIALECTS
        for parts in WHOLE
        if layout != "reference" and parts[0] == kind
    ],
)
def test_files_by_the_published_texts_give_what_the_reference_decodes(
    open_bytes, layout, kind, storage, norms, metadata
):
    data = reference.encode(content(kind, storage, norms, metadata, layout=layout), layout)
    f = open_bytes(data)
    # Apart from padding, a simple vocabulary stands in v0 files as it does in reference files.
    assert f.layout == ("reference" if (layout, kind) == ("v0", "simple") else layout)
    same_answers(f, reference.decode(data))
    assert f.verify().problems == []


@pytest.mark.parametrize("layout", ["v0", "draft"])
@pytest.mark.parametrize("kind", ["simple", "bucket"])
def test_layout_that_is_asked_for_is_the_one_read(open_bytes, layout, kind):
    data = reference.encode(content(kind, layout=layout), layout)
    f = open_bytes(data, layout=layout)
    assert f.layout == layout
    decoded = reference.decode(data)
    decoded.layout = layout
    same_answers(f, decoded)


BARE = [
    *(pytest.param(content(kind, None, norms=False, metadata=False), id=kind) for kind in KINDS),
    *(pytest.param(content(None, kind, norms=False, metadata=False), id=kind) for kind in STORAGES),
    pytest.param(content(None, None, norms=True, metadata=False), id="norms"),
    pytest.param(content(None, None, norms=False, metadata=True), id="metadata"),
]


@pytest.mark.parametrize("made", BARE)
def test_single_chunks_without_a_header_give_what_the_reference_decodes(open_bytes, made):
    data = reference.encode(made, bare=True)
    f = open_bytes(data)
    assert f.layout == "bare"
    same_answers(f, reference.decode(data))
    assert f.verify().problems == []


@pytest.mark.parametrize("made", BARE)
def test_single_chunks_with_a_header_give_what_the_reference_decodes(open_bytes, made):
    data = reference.encode(made)
    f = open_bytes(data)
    assert f.layout == "reference"
    same_answers(f, reference.decode(data))
    assert f.verify().problems == []


@pytest.mark.parametrize("layout", ["reference", "v0"])
@pytest.mark.parametrize("kind", ["simple", "bucket", "floret"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_that_numpy_holds_is_read(open_bytes, dtype, kind, layout):
    if (kind, layout) == ("floret", "v0"):
        layout = "reference"
    data = reference.encode(content(kind, dtype=dtype), layout)
    f = open_bytes(data)
    assert f.dtype == np.dtype(dtype)
    assert f.dtype.byteorder in "<=|"
    same_answers(f, reference.decode(data))


@pytest.mark.parametrize(("number", "name"), [(8, "i128"), (9, "u128")])
def test_types_that_numpy_does_not_hold_are_refused_by_name(tmp_path, number, name):
    path = tmp_path / "wide.fifu"
    head = struct.pack("<4sIII", b"FiFu", 0, 1, 2)
    path.write_bytes(head + struct.pack("<IQQII", 2, 16 + 4 + 32, 1, 2, number) + bytes(36))
    with pytest.raises(embmap.UnsupportedError, match=name):
        embmap.open(path)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_norms_that_the_header_does_not_list_are_found(open_bytes, kind, dtype):
    made = content(kind)
    made.norms = made.norms.astype(dtype)
    data = reference.encode(made, list_norms=False)
    f = open_bytes(data)
    assert f.chunks[-1].name == "norms"
    same_answers(f, reference.decode(data))
    report = f.verify()
    assert report.ok
    assert [problem.severity for problem in report.problems] == ["warning"]


@pytest.mark.parametrize("storage", ["ndarray", "pq", None])
@pytest.mark.parametrize("norms", [True, False])
def test_explicit_vocabularies_are_read_though_their_length_is_wrong(open_bytes, storage, norms):
    data = reference.encode(content("explicit", storage, norms=norms), explicit_len_bug=True)
    f = open_bytes(data)
    (chunk,) = (chunk for chunk in f.chunks if chunk.id == 8)
    assert chunk.nbytes - chunk.stated_nbytes == 8 * f.info()["vocabulary"]["n_ngrams"]
    same_answers(f, reference.decode(data))
    assert f.verify().ok


@pytest.mark.parametrize(("layout", "kind"), [pair for pair in DIALECTS if pair[1] != "floret"])
def test_words_of_any_unicode_are_found_as_they_are(open_bytes, kind, layout):
    data = reference.encode(content(kind, words=UNICODE_WORDS, layout=layout), layout)
    f = open_bytes(data)
    unknown = [*UNKNOWN, "xx", "x" * 301, "x" * 299, "naïve "[:-1] + "\0", "\0\0", "nul\0", "<>"]
    same_answers(f, reference.decode(data), unknown)
    assert f.verify().problems == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_lone_surrogate_is_no_word(open_bytes, kind):
    f = open_bytes(reference.encode(content(kind)))
    assert "\ud800" not in f
    assert f.find(["\ud800", *WORDS]).tolist()[0] == -1
    assert f.find(["\ud800"]).tolist() == [-1]
    if kind in ("simple", "explicit"):
        assert f.get("\ud800") is None


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("n", [0, 1])
def test_files_of_one_word_or_none_are_read(open_bytes, n, storage):
    made = content("simple", storage, words=WORDS[:n])
    if storage.startswith("pq") and n == 0:
        made.codes = np.empty((0, 3), np.uint8)
    data = reference.encode(made)
    same_answers(open_bytes(data), reference.decode(data))


def test_chunks_of_unknown_kinds_are_skipped_and_reported(open_bytes):
    made = content("bucket")
    data = reference.encode(made) + struct.pack("<IQ", 4242, 7) + b"unknown"
    f = open_bytes(data)
    same_answers(f, reference.decode(data))
    assert f.info()["chunks"][-1] == {
        "id": 4242,
        "name": "unknown",
        "offset": len(data) - 19,
        "nbytes": 7,
    }
    report = f.verify()
    assert report.ok
    assert any("4242" in problem.message for problem in report.problems)


def test_the_first_of_repeated_words_is_found_and_the_others_are_reported(open_bytes):
    data = reference.encode(content("simple", words=["a", "b", "a", "c", "b", "b"]))
    f = open_bytes(data)
    assert f.find(["a", "b", "c", "a", "b"]).tolist() == [0, 1, 3, 0, 1]
    assert f.find(["b"]).tolist() == [1]
    np.testing.assert_array_equal(f["b"], f.vectors[1])
    report = f.verify()
    assert not report.ok
    assert len(report.problems) == 3


def test_the_sizes_of_the_published_quantized_array_are_refused_with_the_reason(tmp_path):
    q, d, k, rows = 2, 4, 16, 8
    fixed = struct.pack("<5IQII", 0, 0, q, d, k, rows, 1, 10)
    data = fixed + bytes(q * (d // q)) + bytes(4 * rows * q)  # no centroids, codes of four bytes
    path = tmp_path / "text.fifu"
    path.write_bytes(struct.pack("<4sIIIIQ", b"FiFu", 0, 1, 4, 4, len(data)) + data)
    with pytest.raises(embmap.UnsupportedError, match="published text"):
        embmap.open(path)


@pytest.mark.parametrize("padding", range(5))
def test_any_padding_that_the_sizes_allow_is_read(open_bytes, padding):
    matrix = np.arange(6, dtype="<f4").reshape(2, 3)
    words = struct.pack("<Q", 2) + struct.pack("<I1sI1s", 1, b"a", 1, b"b")
    storage = struct.pack("<QII", 2, 3, 10) + b"\xff" * padding + matrix.tobytes()
    data = struct.pack("<4sIIII", b"FiFu", 0, 2, 1, 2)
    data += struct.pack("<IQ", 1, len(words)) + words
    data += struct.pack("<IQ", 2, len(storage)) + storage
    f = open_bytes(data)
    np.testing.assert_array_equal(f.vectors, matrix)
    np.testing.assert_array_equal(f["b"], matrix[1])
    np.testing.assert_array_equal(f[["b", "a"]], matrix[::-1])


# Vectors of unknown words


def test_a_sum_of_zeros_stays_zeros(open_bytes):
    made = content("bucket")
    made.matrix = np.zeros_like(made.matrix)
    f = open_bytes(reference.encode(made))
    np.testing.assert_array_equal(f["unknown"], np.zeros(6, np.float32))
    np.testing.assert_array_equal(f.batch(["unknown", "berlin"]), np.zeros((2, 6), np.float32))


@pytest.mark.parametrize("size", [1e-30, 1e-22, 1e-10, 1e10, 1e18, 1e30])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_sums_of_any_size_are_scaled_to_unit_length(open_bytes, dtype, size):
    made = content("bucket")
    made.matrix = (made.matrix * size).astype(dtype)
    data = reference.encode(made)
    expected = reference.unknown_vector(reference.decode(data), "unknown")
    assert np.linalg.norm(expected) == pytest.approx(1)
    np.testing.assert_allclose(open_bytes(data)["unknown"], expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("storage", STORAGES)
def test_norms_go_with_known_words_and_lengths_with_composed_ones(open_bytes, kind, storage):
    data = reference.encode(content(kind, storage))
    decoded = reference.decode(data)
    f = open_bytes(data)
    for row, word in enumerate(decoded.words):
        vector, norm = f.embedding_with_norm(word)
        np.testing.assert_array_equal(vector, f[word])
        assert norm == decoded.norms[row]
        np.testing.assert_array_equal(f.unnormalized(word), vector * decoded.norms[row])
    rows = reference.subword_rows(decoded, "Berlin")
    total = decoded.matrix[rows].astype(np.float64).sum(axis=0)
    vector, norm = f.embedding_with_norm("Berlin")
    np.testing.assert_allclose(vector, total / np.linalg.norm(total), atol=2e-6)
    np.testing.assert_allclose(norm, np.linalg.norm(total), rtol=1e-5)
    np.testing.assert_allclose(f.unnormalized("Berlin"), total, rtol=1e-4, atol=1e-5)


def test_words_without_a_known_n_gram_have_no_vector(open_bytes):
    f = open_bytes(reference.encode(content("explicit")))
    with pytest.raises(embmap.UnknownWordError, match="zzz"):
        f["zzz"]
    with pytest.raises(embmap.UnknownWordError, match="zzz"):
        f.batch(["berlin", "Berlin", "zzz"])
    zero = f.batch(["berlin", "zzz", "Berlin"], missing="zero")
    assert zero[1].tolist() == [0] * 6
    nan = f.batch(["berlin", "zzz", "Berlin"], missing="nan")
    assert np.isnan(nan[1]).all()
    np.testing.assert_array_equal(nan[[0, 2]], [f["berlin"], f["Berlin"]])
    np.testing.assert_array_equal(nan[[0, 2]], zero[[0, 2]])
    out = np.empty((3, 6), np.float32)
    assert f.batch(["berlin", "zzz", "Berlin"], missing="zero", out=out) is out
    np.testing.assert_array_equal(out, zero)


@pytest.mark.parametrize("n_hashes", [1, 2, 3, 4])
def test_floret_takes_as_many_lanes_as_the_file_says(open_bytes, n_hashes):
    made = content("floret")
    made.n_hashes = n_hashes
    data = reference.encode(made)
    decoded = reference.decode(data)
    f = open_bytes(data)
    words = ["a", "", "Tübingen", "日本語", "a word of more than sixteen bytes"]
    for word in words:
        rows = reference.subword_rows(decoded, word)
        assert f.subword_rows(word).tolist() == rows
        assert len(rows) % n_hashes == 0
        np.testing.assert_allclose(f[word], reference.unknown_vector(decoded, word), atol=2e-6)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize(("min_n", "max_n"), [(1, 1), (1, 3), (3, 3), (5, 40), (12, 12)])
def test_n_grams_run_from_the_shortest_to_the_longest_stated(open_bytes, kind, min_n, max_n):
    made = content(kind)
    made.min_n, made.max_n = min_n, max_n
    data = reference.encode(made)
    same_answers(open_bytes(data), reference.decode(data))


# What embmap writes


def indexer(made):
    """The indexer of embmap that says what the content says."""
    if made.vocab_kind == "bucket":
        return BucketIndexer(made.min_n, made.max_n, made.exponent)
    if made.vocab_kind == "fasttext":
        return FastTextIndexer(made.min_n, made.max_n, made.n_buckets)
    if made.vocab_kind == "floret":
        brackets = {"bow": made.bow, "eow": made.eow}
        sizes = (made.min_n, made.max_n, made.n_buckets, made.n_hashes, made.seed)
        return FloretIndexer(*sizes, **brackets)
    if made.vocab_kind == "explicit":
        texts = [text for text, _ in made.ngrams]
        rows = [row for _, row in made.ngrams]
        return ExplicitIndexer.of(texts, rows, min_n=made.min_n, max_n=made.max_n)
    return None


def quantized(made):
    if made.storage_kind != "quantized":
        return None
    return embmap.finalfusion.Quantized(made.codes, made.codebooks, made.projection, made.pq_norms)


def written(path, made, words=None, vectors=None):
    """Let embmap write the content and return the bytes."""
    result = embmap.finalfusion.write(
        path,
        (None if made.vocab_kind == "floret" else made.words) if words is None else words,
        made.matrix if vectors is None else vectors,
        norms=made.norms,
        metadata=made.metadata,
        subwords=indexer(made),
        quantized=quantized(made),
    )
    assert result == path
    return path.read_bytes()


@pytest.mark.parametrize(("kind", "storage", "norms", "metadata"), WHOLE)
def test_written_bytes_are_those_of_the_reference(tmp_path, kind, storage, norms, metadata):
    made = content(kind, storage, norms, metadata, words=UNICODE_WORDS)
    assert written(tmp_path / "file.fifu", made) == reference.encode(made)


@pytest.mark.parametrize("dtype", DTYPES)
def test_written_bytes_of_every_type_are_those_of_the_reference(tmp_path, dtype):
    made = content("bucket", dtype=dtype)
    assert written(tmp_path / "file.fifu", made) == reference.encode(made)
    made.matrix = made.matrix.astype(made.matrix.dtype.newbyteorder(">"))
    assert written(tmp_path / "big-endian.fifu", made) == reference.encode(made)


def test_words_and_vectors_may_come_bit_by_bit(tmp_path):
    made = content("fasttext")
    words = (word for word in made.words)
    blocks = (made.matrix[start : start + 3] for start in range(0, len(made.matrix), 3))
    assert written(tmp_path / "file.fifu", made, words, blocks) == reference.encode(made)
    rows = made.matrix.tolist()
    rows = [np.array(row, np.float32) for row in rows]
    assert written(tmp_path / "rows.fifu", made, iter(made.words), rows) == reference.encode(made)


@pytest.mark.parametrize(("layout", "kind"), DIALECTS)
@pytest.mark.parametrize("storage", STORAGES)
def test_an_open_file_is_rewritten_byte_for_byte(tmp_path, backend, kind, storage, layout):
    made = content(kind, storage, words=UNICODE_WORDS, layout=layout)
    path = tmp_path / "file.fifu"
    path.write_bytes(reference.encode(made, layout))
    with embmap.open(path, backend=backend) as f:
        vectors = f.vectors
        codes = None
        if made.storage_kind == "quantized":
            codes = embmap.finalfusion.Quantized(
                vectors.codes, vectors.codebooks, vectors.projection, vectors.norms
            )
            vectors = None
        embmap.finalfusion.write(
            tmp_path / "again.fifu",
            f.vocab,
            vectors,
            norms=f.norms,
            metadata=f.metadata_toml,
            subwords=f.subwords,
            quantized=codes,
        )
    assert (tmp_path / "again.fifu").read_bytes() == reference.encode(made)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TOML = st.dictionaries(
    TEXT,
    st.recursive(
        TEXT
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


@st.composite
def contents(draw):
    """Anything that a finalfusion file can hold."""
    kind = draw(st.sampled_from(KINDS))
    words = [] if kind == "floret" else draw(st.lists(TEXT, unique=True, max_size=8))
    made = reference.Decoded(vocab_kind=kind, words=words)
    if kind != "simple":
        made.min_n = draw(st.integers(1, 5))
        made.max_n = made.min_n + draw(st.integers(0, 4))
        made.bow, made.eow = "<", ">"
    if kind == "bucket":
        made.exponent = draw(st.integers(0, 4))
        made.n_buckets = 2**made.exponent
    elif kind == "fasttext":
        made.n_buckets = draw(st.integers(1, 12))
    elif kind == "floret":
        made.n_buckets = draw(st.integers(1, 12))
        made.n_hashes = draw(st.integers(1, 4))
        made.seed = draw(st.integers(0, 2**32 - 1))
        made.bow, made.eow = draw(TEXT), draw(TEXT)
    elif kind == "explicit":
        texts = draw(st.lists(TEXT, unique=True, max_size=8))
        rows = [draw(st.integers(0, 7)) for _ in texts]
        number = {row: i for i, row in enumerate(sorted(set(rows)))}
        made.ngrams = [(text, number[row]) for text, row in zip(texts, rows, strict=True)]
        made.n_buckets = len(number)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def any_bits(dtype, *shape):
        n = int(np.prod(shape))
        return np.frombuffer(rng.bytes(n * np.dtype(dtype).itemsize), dtype).reshape(shape)

    rows = len(words) + (made.n_buckets or 0)
    made.storage_kind = draw(st.sampled_from(["ndarray", "quantized"]))
    if made.storage_kind == "ndarray":
        columns = draw(st.integers(1, 5))
        made.matrix = any_bits(draw(st.sampled_from(DTYPES)), rows, columns)
    else:
        q, width, k = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 256))
        made.codes = rng.integers(0, k, (rows, q), dtype=np.uint8)
        made.codebooks = rng.normal(size=(q, k, width)).astype("<f4")
        if draw(st.booleans()):
            made.projection = rng.normal(size=(q * width, q * width)).astype("<f4")
        if draw(st.booleans()):
            made.pq_norms = rng.uniform(0, 2, rows).astype("<f4")
    if draw(st.booleans()):
        made.norms = any_bits("<f4", len(words))
    texts = st.sampled_from(['title = "ü"\n', "[nested]\nx = [1.5, true]\n", "# nothing\n"])
    made.metadata = draw(st.none() | (TOML.map(tomli_w.dumps) if tomli_w else texts))
    return made


FIELDS = ["words", "vocab_kind", "min_n", "max_n", "exponent", "n_buckets", "n_hashes", "seed"]
FIELDS += ["bow", "eow", "ngrams", "storage_kind", "metadata"]
ARRAYS = ["codes", "codebooks", "projection", "pq_norms", "norms"]


@settings(deadline=None, max_examples=400)
@given(made=contents())
def test_what_is_written_is_what_the_reference_reads(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("written") / "file.fifu"
    data = written(path, made)
    assert data == reference.encode(made)

    decoded = reference.decode(data)
    assert decoded.layout == "reference"
    for name in FIELDS:
        assert getattr(decoded, name) == getattr(made, name), name
    stored = ARRAYS if made.storage_kind == "quantized" else [*ARRAYS, "matrix"]
    for name in stored:
        found, expected = getattr(decoded, name), getattr(made, name)
        assert (found is None) == (expected is None), name
        if expected is not None:
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
            assert found.tobytes() == expected.tobytes(), name

    with embmap.open(path) as f:
        same_words(f, decoded)
        same_vectors(f, decoded)
        assert f.metadata_toml == made.metadata
        for word in [*UNKNOWN, *made.words]:
            assert f.subword_rows(word).tolist() == reference.subword_rows(decoded, word)


@pytest.mark.skipif(tomli_w is None, reason="tomli-w is not installed")
@settings(deadline=None, max_examples=30)
@given(metadata=TOML)
def test_metadata_given_as_values_are_read_as_values(tmp_path_factory, metadata):
    path = tmp_path_factory.mktemp("written") / "file.fifu"
    embmap.finalfusion.write(path, ["a"], np.zeros((1, 2), np.float32), metadata=metadata)
    assert tomllib.loads(reference.decode(path.read_bytes()).metadata) == metadata
    with embmap.open(path) as f:
        assert f.metadata == metadata
