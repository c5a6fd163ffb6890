"""word2vec's and fastText's binary files, arrays and pickles: truncated, damaged, hostile."""

import pickle
import struct
import zipfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from embmap.formats.fasttext.layout import has_first_header
from embmap.io.backends import open_mapped
from embmap.subwords import FastTextIndexer
from tests.conversion.sources import INPUTS, make
from tests.judges.inputs import DIM, RNG, WORDS, fasttext, npy, npz, tensors, word2vec


@pytest.mark.parametrize("version", [None, 11, 12])
def test_fasttext_words_are_means_with_their_ngrams(tmp_path, version):
    data, matrix = fasttext(version=version)
    (tmp_path / "a.bin").write_bytes(data)
    report = embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu", normalize=False)
    assert report.input_format == "fasttext"
    indexer = FastTextIndexer(2, 4, 7)
    with embmap.open(tmp_path / "a.fifu") as file:
        assert list(file) == WORDS
        assert file.metadata["model"] == "SkipGram"
        assert file.metadata["sampling_threshold"] == 1e-4
        for i, word in enumerate(WORDS):
            rows, _ = indexer.buckets([word])
            expected = matrix[[i, *(rows + len(WORDS))]].mean(axis=0)
            np.testing.assert_allclose(file[word], expected, atol=1e-6)
        np.testing.assert_array_equal(np.asarray(file.vectors)[len(WORDS) :], matrix[len(WORDS) :])


def test_a_fasttext_threshold_that_is_no_number_is_kept_as_text(tmp_path):
    data = bytearray(fasttext()[0])
    assert data[56:64] == struct.pack("<d", 1e-4)
    data[56:64] = struct.pack("<d", float("nan"))
    (tmp_path / "a.bin").write_bytes(data)
    embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu")
    with embmap.open(tmp_path / "a.fifu") as file:
        assert file.metadata["sampling_threshold"] == "nan"


@pytest.mark.parametrize(
    "name", ["lee_fasttext", "non_ascii_fasttext", "cp852_fasttext", "lee_fasttext_new"]
)
def test_fasttext_models_of_gensim_are_read_as_gensim_does(tmp_path, name):
    gensim = pytest.importorskip("gensim", reason="gensim is not installed")
    fasttext = pytest.importorskip("gensim.models.fasttext")
    path = Path(gensim.__file__).parent / "test" / "test_data" / f"{name}.bin"
    if not path.exists():
        pytest.skip("gensim is installed without its test data")
    theirs = fasttext.load_facebook_vectors(str(path), "cp852" if "cp852" in name else "utf-8")
    if "cp852" in name:  # embmap reads UTF-8 only, so that n-grams of other words differ
        with pytest.raises(embmap.FormatError, match="not UTF-8"):
            embmap.convert(path, tmp_path / "a.fifu")
        report = embmap.convert(path, tmp_path / "a.fifu", lossy=True)
        assert report.n_words + report.n_duplicates == len(theirs)
        return
    report = embmap.convert(path, tmp_path / "a.fifu", normalize=False)
    assert report.input_format == "fasttext"
    with embmap.open(tmp_path / "a.fifu") as file:
        assert list(file) == theirs.index_to_key
        np.testing.assert_allclose(
            np.asarray(file.vectors)[: len(file.vocab)], theirs.vectors, atol=1e-6
        )
        for word in ("unbekannt", "неизвестный"):
            expected = theirs[word] / np.linalg.norm(theirs[word])
            np.testing.assert_allclose(file[word], expected, atol=1e-6)


def test_fasttext_vectors_agree_with_the_peers(tmp_path):
    peer = pytest.importorskip("finalfusion")
    gensim = pytest.importorskip("gensim.models.fasttext")
    data, _ = fasttext()
    (tmp_path / "a.bin").write_bytes(data)
    embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu")
    theirs = peer.load_fasttext(str(tmp_path / "a.bin"))
    read = peer.load_finalfusion(str(tmp_path / "a.fifu"))
    loaded = gensim.load_facebook_vectors(str(tmp_path / "a.bin"))
    embmap.convert(tmp_path / "a.bin", tmp_path / "a.npy")
    vectors = np.load(tmp_path / "a.npy")
    with embmap.open(tmp_path / "a.fifu") as file:
        for i, word in enumerate(WORDS):
            np.testing.assert_allclose(file[word], theirs[word], atol=1e-6)
            np.testing.assert_allclose(read[word], theirs[word], atol=1e-6)
            np.testing.assert_allclose(vectors[i], loaded[word], atol=1e-6)
        for word in ("berliner", "日本"):
            np.testing.assert_allclose(file[word], theirs[word], atol=1e-6)
        np.testing.assert_allclose(file.norms, theirs.norms, rtol=1e-6)
    assert dict(theirs.metadata) == dict(read.metadata)


def test_labels_are_no_words(tmp_path):
    data, matrix = fasttext(labels=["__label__x", "__label__y"], model=3, lengths=(0, 0), buckets=0)
    (tmp_path / "a.bin").write_bytes(data)
    embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu", normalize=False)
    with embmap.open(tmp_path / "a.fifu") as file:
        assert list(file) == WORDS
        assert file.subwords is None
        np.testing.assert_array_equal(np.asarray(file.vectors), matrix)
    data, _ = fasttext(labels=["__label__x"], model=3)
    (tmp_path / "a.bin").write_bytes(data)
    embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu", words=["berlin"])
    with embmap.open(tmp_path / "a.fifu") as file:
        assert file.shape == (1 + 7, DIM)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantized": 1}, "quantized model"),
        ({"pruned": 3}, "pruned"),
        ({"version": 13}, "versions 11 and 12"),
    ],
)
def test_fasttext_models_that_are_not_read_say_so(tmp_path, options, message):
    (tmp_path / "a.bin").write_bytes(fasttext(**options)[0])
    with pytest.raises(embmap.UnsupportedError, match=message):
        embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu")


@pytest.mark.parametrize(("version", "first"), [(12, 4), (None, 76)])
def test_fasttext_cut_anywhere_is_truncated(tmp_path, version, first):
    data, matrix = fasttext(["a", "bc"], buckets=2, version=version)
    whole = data.index(matrix.tobytes()) + matrix.nbytes
    for end in range(first, whole):
        (tmp_path / "a.bin").write_bytes(data[:end])
        with pytest.raises(embmap.TruncatedError):
            embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu", input_format="fasttext")
    (tmp_path / "a.bin").write_bytes(data[:whole])  # the output layer is not needed
    assert embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu").n_words == 2


def test_a_first_header_that_is_cut_is_of_no_format(tmp_path):
    data, _ = fasttext(version=None)
    for end in range(1, 76):
        (tmp_path / "a.bin").write_bytes(data[:end])
        with pytest.raises(embmap.FormatError):
            embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu")


@pytest.mark.parametrize("name", INPUTS)
def test_no_other_format_has_the_first_header(tmp_path, name):
    path, _ = make(name, tmp_path)
    assert not has_first_header(open_mapped(path))


@pytest.mark.parametrize("value", [-1, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("field", range(17))
def test_a_first_header_out_of_bounds_is_refused_or_read(tmp_path, field, value):
    data = bytearray(fasttext(["a", "bc"], buckets=2, version=None)[0])
    numbers = list(struct.unpack_from("<12id3iq", data))
    numbers[field] = value
    struct.pack_into("<12id3iq", data, 0, *numbers)
    (tmp_path / "a.bin").write_bytes(data)
    with ExitStack() as stack:
        if field not in (3, 11, 12, 16) or (value < 0 and field not in (3, 11)):
            stack.enter_context(pytest.raises(embmap.FormatError))
        assert embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu").n_words == 2


@given(st.data(), st.sampled_from([None, 12]))
def test_fasttext_with_wrong_bytes_converts_or_says_why_not(tmp_path_factory, data, version):
    folder = tmp_path_factory.mktemp("fasttext")
    raw = bytearray(fasttext(["a", "bc"], buckets=2, version=version)[0])
    start = data.draw(st.integers(4, 130))
    raw[start : start + 4] = data.draw(st.binary(min_size=4, max_size=4))
    (folder / "a.bin").write_bytes(raw)
    try:
        embmap.convert(folder / "a.bin", folder / "a.fifu")
    except ValueError:
        assert not (folder / "a.fifu").exists()


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_word2vec_with_and_without_newlines(tmp_path, newline):
    data, vectors = word2vec(newline=newline)
    (tmp_path / "a.bin").write_bytes(data)
    report = embmap.convert(tmp_path / "a.bin", tmp_path / "a.npy")
    assert report.input_format == "word2vec"
    assert report.words_path.read_text("utf-8").split() == WORDS
    assert np.load(tmp_path / "a.npy").tobytes() == vectors.tobytes()


def test_word2vec_cut_anywhere_is_truncated(tmp_path):
    data, _ = word2vec()
    for end in range(4, len(data) - 1):
        (tmp_path / "a.bin").write_bytes(data[:end])
        with pytest.raises(embmap.TruncatedError):
            embmap.convert(tmp_path / "a.bin", tmp_path / "a.npy", input_format="word2vec")
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    (tmp_path / "a.bin").write_bytes(data + b"more")
    with pytest.raises(embmap.FormatError, match=r"[45] bytes follow"):
        embmap.convert(tmp_path / "a.bin", tmp_path / "a.npy")


@pytest.mark.parametrize("head", [b"999999999999999999 300\n", b"2 999999999\n", b"3 0\n", b"x\n"])
def test_sizes_are_not_believed(tmp_path, head):
    (tmp_path / "a.bin").write_bytes(head + b"a " + bytes(100))
    with pytest.raises(embmap.FormatError):
        embmap.convert(tmp_path / "a.bin", tmp_path / "a.npy", input_format="word2vec")


def test_words_of_word2vec_have_an_end(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"1 1\n" + b"a" * 100_000)
    with pytest.raises(embmap.FormatError, match="word 0"):
        embmap.convert(tmp_path / "a.bin", tmp_path / "a.npy", input_format="word2vec")


def test_word2vec_words_that_are_not_utf8(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"2 1\nab\xff \0\0\0\0\nc \0\0\0\0\n")
    with pytest.raises(embmap.FormatError, match="word 0: not UTF-8") as caught:
        embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu")
    assert caught.value.offset == 6
    embmap.convert(tmp_path / "a.bin", tmp_path / "a.fifu", lossy=True)
    with embmap.open(tmp_path / "a.fifu") as file:
        assert list(file) == ["ab\ufffd", "c"]


@pytest.mark.parametrize(
    "data",
    [
        npy(np.eye(3))[:-1],
        npy(np.eye(3))[:40],
        npy(np.eye(3)).replace(b"(3, 3)", b"(3, 9)"),
        npy(np.eye(3)).replace(b"(3, 3)", b"(-3,3)"),
        npy(np.zeros(3)),
        npy(np.array([["a", "b"]])),
        npy(np.array([[None]], object)),
        b"\x93NUMPY\x01\x00\x05\x00[[[[[",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        npy(np.eye(3)).replace(b"\x93NUMPY\x01", b"\x93NUMPY\x09"),
        npy(np.eye(3)).replace(b"(3, 3)", b"(3if)"),
        npy(np.eye(3)).replace(b"(3, 3)", b"(1e1)"),
        npy(np.eye(3)).replace(b"'<f8'", b"'f99'"),
        npy(np.eye(3)).replace(b"'<f8'", b"'\\d8'"),
        npy(np.eye(3)).replace(b"'<f8'", b"'|O8'"),
        npy(np.eye(3)).replace(b"'descr'", b"'shape'"),
        npz(np.eye(3)),
    ],
)
def test_bad_npy_files_are_refused(tmp_path, data):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(embmap.FormatError):
        embmap.convert(tmp_path / "a.npy", tmp_path / "b.npy", input_format="npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", data)
    with pytest.raises(ValueError, match=r"npy|npz|numbers in two"):
        embmap.convert(tmp_path / "a.npz", tmp_path / "b.npy", tensor="x")


def test_npy_files_of_python_2_are_read(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(np.eye(3)).replace(b"(3, 3), }  ", b"(3L, 3L), }"))
    embmap.convert(tmp_path / "a.npy", tmp_path / "b.npy")
    assert np.load(tmp_path / "b.npy").tolist() == np.eye(3).tolist()


def test_archives_with_offsets_before_their_start_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(3))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    end = data.rindex(b"PK\x05\x06")
    # Where the directory starts, moved on: zipfile takes it for the start of the archive.
    struct.pack_into("<I", data, end + 16, struct.unpack_from("<I", data, end + 16)[0] + 200)
    (tmp_path / "a.npz").write_bytes(data)
    for name in (None, "x"):
        with pytest.raises(embmap.FormatError, match="npz"):
            embmap.convert(tmp_path / "a.npz", tmp_path / "b.npy", tensor=name)
    assert not (tmp_path / "b.npy").exists()


def test_archives_with_names_that_are_not_utf8_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", ü=np.eye(3))
    data = (tmp_path / "a.npz").read_bytes()
    first = data.index("ü".encode())  # in the member's own head, and not in the directory
    (tmp_path / "a.npz").write_bytes(data[:first] + b"\xff" + data[first + 1 :])
    with pytest.raises(embmap.FormatError, match="npz"):
        embmap.convert(tmp_path / "a.npz", tmp_path / "b.npy")


def test_errors_quote_only_the_start_of_what_an_archive_holds(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, vectors=np.ones((3, 4)))
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 26, 500)  # the length of the name in front of the array
    path.write_bytes(data)
    with pytest.raises(embmap.FormatError, match="not an npz file") as caught:
        embmap.convert(path, tmp_path / "b.npy")
    assert len(str(caught.value)) < len(str(path)) + 300


def test_an_archive_is_unpacked_into_a_file_without_a_name(tmp_path):
    """So that nothing of it stays behind, however the conversion ends."""
    np.savez(tmp_path / "a.npz", vectors=np.ones((3, 4)))
    folders = []

    def progress(*_):
        folders.extend(path for path in tmp_path.iterdir() if path.is_dir())

    embmap.convert(tmp_path / "a.npz", tmp_path / "b.npy", progress=progress)
    assert not folders


def test_fortran_order_and_cut_archives(tmp_path):
    rows = np.arange(12, dtype="f4").reshape(4, 3)
    np.save(tmp_path / "a.npy", np.asfortranarray(rows))
    embmap.convert(tmp_path / "a.npy", tmp_path / "b.npy")
    assert np.load(tmp_path / "b.npy").tolist() == rows.tolist()
    np.savez_compressed(tmp_path / "a.npz", x=rows)
    data = (tmp_path / "a.npz").read_bytes()
    for end in range(4, len(data), 7):
        (tmp_path / "c.npz").write_bytes(data[:end])
        with pytest.raises(embmap.FormatError):
            embmap.convert(tmp_path / "c.npz", tmp_path / "b.npy")


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "data",
    [
        tensors({"x": GOOD}, bytes(15)),
        tensors({"x": {**GOOD, "shape": [2, 3]}}, bytes(16)),
        tensors({"x": {**GOOD, "shape": [-2, -2]}}, bytes(16)),
        tensors({"x": {**GOOD, "shape": [2.0, 2]}}, bytes(16)),
        tensors({"x": {**GOOD, "dtype": "F8_E4M3"}}, bytes(16)),
        tensors({"x": {**GOOD, "dtype": {"F32": []}}}, bytes(16)),
        tensors({"x": {**GOOD, "dtype": ["F32"]}}, bytes(16)),
        tensors({"x": {**GOOD, "data_offsets": [16, 0]}}, bytes(16)),
        tensors({"x": {**GOOD, "data_offsets": "ab"}}, bytes(16)),
        tensors({"x": []}),
        tensors(b"{"),
        tensors(b"{" * 100_000),
        tensors(b"\xff{"),
        struct.pack("<Q", 2**63) + b"{}",
    ],
)
def test_bad_safetensors_are_refused(tmp_path, data):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=r"."):
        embmap.convert(tmp_path / "a", tmp_path / "b.npy", input_format="safetensors", tensor="x")


@pytest.mark.parametrize("field", ["dtype", "data_offsets"])
def test_errors_quote_only_the_start_of_what_a_file_holds(tmp_path, field):
    (tmp_path / "a").write_bytes(tensors({"x": {**GOOD, field: ["long"] * 10_000}}, bytes(16)))
    with pytest.raises(embmap.FormatError, match="long") as caught:
        embmap.convert(tmp_path / "a", tmp_path / "b.npy", input_format="safetensors")
    assert len(str(caught.value)) < 1000
    assert caught.value.found == ["long"] * 10_000


def test_bfloat16_tensors_become_float32(tmp_path):
    bits = np.array([[0x3F80, 0xC000]], "<u2")
    header = {"x": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}}
    (tmp_path / "a").write_bytes(tensors(header, bits.tobytes()))
    embmap.convert(tmp_path / "a", tmp_path / "b.npy")
    assert np.load(tmp_path / "b.npy").tolist() == [[1, -2]]


class Harm:
    def __reduce__(self):
        return eval, ("open('harm', 'w')",)


def test_pickles_run_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.kv").write_bytes(pickle.dumps(("gensim", Harm())))
    with pytest.raises(embmap.UnsupportedError, match=r"builtins\.eval"):
        embmap.convert(tmp_path / "a.kv", tmp_path / "b.npy", input_format="gensim")
    assert not (tmp_path / "harm").exists()
    (tmp_path / "a.kv").write_bytes(pickle.dumps(["gensim"]))
    with pytest.raises(embmap.FormatError, match="object of gensim"):
        embmap.convert(tmp_path / "a.kv", tmp_path / "b.npy")


def test_gensim_arrays_that_stand_beside_are_mapped(tmp_path):
    models = pytest.importorskip("gensim.models")
    vectors = models.KeyedVectors(3)
    values = RNG.standard_normal((4, 3)).astype("f4")
    vectors.add_vectors(WORDS, values)
    vectors.save(str(tmp_path / "a.kv"), sep_limit=1)
    assert (tmp_path / "a.kv.vectors.npy").exists()
    report = embmap.convert(tmp_path / "a.kv", tmp_path / "b.npy")
    assert (report.input_format, report.n_words) == ("gensim", 4)
    assert np.load(tmp_path / "b.npy").tobytes() == values.tobytes()
    data = (tmp_path / "a.kv").read_bytes()
    for end in range(30, len(data), 11):
        (tmp_path / "c.kv").write_bytes(data[:end])
        with pytest.raises(embmap.FormatError):
            embmap.convert(tmp_path / "c.kv", tmp_path / "b.npy", input_format="gensim")
    model = models.Word2Vec([["a", "b", "a", "b"]], vector_size=3, min_count=1, workers=1)
    model.save(str(tmp_path / "m.model"))
    embmap.convert(tmp_path / "m.model", tmp_path / "m.npy")
    assert np.load(tmp_path / "m.npy").tobytes() == model.wv.vectors.tobytes()
