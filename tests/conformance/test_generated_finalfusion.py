"""What the conformance folder shows about finalfusion files, with files made here.

Files come from the reference encoder and are compared, through the public face, with what the
reference decoder says; files that embmap writes go the other way round.
"""

import struct

import numpy as np
import pytest

import embmap
from tests.reference import finalfusion as reference

try:
    import tomli_w
except ImportError:  # fewer kinds of metadata then
    tomli_w = None

from tests.conformance.generated_finalfusion import (
    DIALECTS,
    DTYPES,
    KINDS,
    STORAGES,
    UNICODE_WORDS,
    UNKNOWN,
    WHOLE,
    WORDS,
    content,
    same_answers,
)

pytestmark = pytest.mark.slow


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
    # Apart from padding, a simple vocabulary has the same bytes in v0 files and reference files.
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


@pytest.mark.parametrize(
    ("kind", "layout"),
    [("simple", "reference"), ("bucket", "v0"), ("floret", "reference")],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_that_numpy_holds_is_read(open_bytes, dtype, kind, layout):
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
