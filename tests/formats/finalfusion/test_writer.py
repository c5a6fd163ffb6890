"""Writing finalfusion files: bytes, refusals, and what is left behind."""

import os
import struct
import sys
import tracemalloc

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized, write
from embmap.subwords import BucketIndexer, ExplicitIndexer, FastTextIndexer, FloretIndexer

EYE = np.eye(2, dtype="<f4")


def string(text):
    return struct.pack("<I", len(text.encode())) + text.encode()


def chunk(id, data):
    return struct.pack("<IQ", id, len(data)) + data


def test_the_bytes_are_those_of_the_reference_layout(tmp_path):
    path = write(tmp_path / "a", ["one", "zwö"], EYE, norms=[2, 3], metadata="a = 1\n")
    head = b"FiFu" + struct.pack("<IIIIII", 0, 4, 5, 1, 2, 6)
    data = (
        head + chunk(5, b"a = 1\n") + chunk(1, struct.pack("<Q", 2) + string("one") + string("zwö"))
    )
    position = len(data) + 12 + 16
    data += chunk(2, struct.pack("<QII", 2, 2, 10) + bytes(4 - position % 4) + EYE.tobytes())
    position = len(data) + 12 + 12
    data += chunk(6, struct.pack("<QI", 2, 10) + bytes(4 - position % 4) + struct.pack("<ff", 2, 3))
    assert path.read_bytes() == data


def test_the_bytes_of_a_quantized_file(tmp_path):
    codes = np.array([[0, 1]], np.uint8)
    codebooks = np.arange(4, dtype="<f4").reshape(2, 2, 1)
    path = write(
        tmp_path / "a",
        ["x"],
        None,
        quantized=Quantized(codes, codebooks, projection=EYE, norms=[5]),
    )
    data = b"FiFu" + struct.pack("<IIII", 0, 2, 1, 4) + chunk(1, struct.pack("<Q", 1) + string("x"))
    fields = struct.pack("<5IQII", 1, 1, 2, 2, 2, 1, 1, 10)
    padding = bytes(4 - (len(data) + 12 + len(fields)) % 4)
    body = EYE.tobytes() + codebooks.tobytes() + struct.pack("<f", 5) + bytes([0, 1])
    assert path.read_bytes() == data + chunk(4, fields + padding + body)


@pytest.mark.parametrize(
    ("indexer", "id", "fields"),
    [
        (BucketIndexer(3, 5, 1), 3, struct.pack("<QIII", 1, 3, 5, 1) + string("x")),
        (FastTextIndexer(3, 5, 2), 7, struct.pack("<QIII", 1, 3, 5, 2) + string("x")),
        (
            ExplicitIndexer.of(["<x", "x>", "é"], [1, 0, 1], min_n=1, max_n=2),
            8,
            struct.pack("<QQII", 1, 3, 1, 2)
            + string("x")
            + string("<x")
            + struct.pack("<Q", 1)
            + string("x>")
            + struct.pack("<Q", 0)
            + string("é")
            + struct.pack("<Q", 1),
        ),
    ],
)
def test_the_bytes_of_subword_vocabularies(tmp_path, indexer, id, fields):
    path = write(tmp_path / "a", ["x"], np.zeros((3, 2), "f4"), subwords=indexer)
    head = b"FiFu" + struct.pack("<IIII", 0, 2, id, 2)
    assert path.read_bytes().startswith(head + chunk(id, fields))
    with embmap.open(path) as file:
        again = write(tmp_path / "b", file, file.vectors, subwords=file.subwords)
    assert again.read_bytes() == path.read_bytes()


def test_the_bytes_of_a_floret_vocabulary(tmp_path):
    indexer = FloretIndexer(2, 3, 4, 2, 9, "[", "]")
    path = write(tmp_path / "a", None, np.zeros((4, 2), "f4"), subwords=indexer)
    fields = struct.pack("<IIQII", 2, 3, 4, 2, 9) + string("[") + string("]")
    assert path.read_bytes().startswith(
        b"FiFu" + struct.pack("<IIII", 0, 2, 9, 2) + chunk(9, fields)
    )


def test_a_quantized_file_copies_through_the_public_face(tmp_path):
    rng = np.random.default_rng(0)
    parts = Quantized(
        rng.integers(0, 4, (9, 3), np.uint8),
        rng.random((3, 4, 2), np.float32),
        rng.random((6, 6), np.float32),
        rng.random(9, np.float32),
    )
    words = [str(i) for i in range(9)]
    path = write(tmp_path / "a", words, None, quantized=parts)
    with embmap.open(path) as file:
        m = file.vectors
        copy = Quantized(m.codes, m.codebooks, m.projection, m.norms)
        again = write(tmp_path / "b", file.vocab, None, quantized=copy)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_every_type_of_number_comes_back(tmp_path, dtype, order):
    values = np.arange(6).reshape(3, 2).astype(order + dtype)
    path = write(tmp_path / "a", ["a", "b", "c"], values)
    with embmap.open(path) as file:
        assert file.dtype == np.dtype(dtype)
        assert np.array_equal(np.asarray(file.vectors), values)


def test_words_and_blocks_may_come_from_generators_in_bounded_memory(tmp_path):
    n, dim = 50_000, 100
    blocks = (np.full((1000, dim), i, np.float32) for i in range(n // 1000))
    tracemalloc.start()
    path = write(tmp_path / "a", (f"w{i}" for i in range(n)), blocks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 4 * n * dim
    assert peak < 4_000_000
    with embmap.open(path) as file:
        assert file["w49999"][0] == 49
        assert len(file) == n


def test_rows_matrices_and_strided_arrays_are_vectors_too(tmp_path):
    values = np.arange(12, dtype="f4").reshape(3, 4)
    words = ["a", "b", "c"]
    expected = write(tmp_path / "a", words, values).read_bytes()
    with embmap.open(tmp_path / "a") as file:
        for form in (
            list(values),
            values.tolist() and iter(values),
            np.asfortranarray(values),
            np.repeat(values, 2, axis=0)[::2],
            file.vectors,
            [values[:2], values[2:]],
            [values[:0], values],
        ):
            assert write(tmp_path / "b", words, form).read_bytes() == expected


def test_nested_lists_are_vectors(tmp_path):
    with embmap.open(write(tmp_path / "a", ["a", "b"], [[1.0, 2], [3, 4]])) as file:
        assert file.dtype == np.float64
        assert np.asarray(file.vectors).tolist() == [[1, 2], [3, 4]]


def test_no_words_at_all(tmp_path):
    path = write(tmp_path / "a", [], np.empty((0, 5), "f4"))
    with embmap.open(path) as file:
        assert (len(file), file.shape, list(file)) == (0, (0, 5), [])
        assert np.asarray(file.vectors).shape == (0, 5)
        assert file.verify().ok


def test_metadata_may_be_values(tmp_path):
    pytest.importorskip("tomli_w", reason="tomli-w is not installed")
    values = {"title": "ü", "n": 3, "nested": {"x": [1.5, True]}}
    with embmap.open(write(tmp_path / "a", ["a"], EYE[:1], metadata=values)) as file:
        assert file.metadata == values


def test_metadata_as_values_name_the_extra_they_need(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomli_w", None)
    with pytest.raises(ImportError, match=r"embmap\[toml\]"):
        write(tmp_path / "a", ["a"], EYE[:1], metadata={"a": 1})


CODES, BOOKS = np.zeros((2, 2), np.uint8), np.zeros((2, 3, 1), np.float32)
REFUSED = {
    "too few rows": (["a", "b", "c"], EYE, {}, "must have 3 rows for 3 words, not 2"),
    "too few rows for subwords": (
        ["a"],
        EYE,
        {"subwords": BucketIndexer(3, 6, 2)},
        "must have 5 rows for 1 words and 4 buckets, not 2",
    ),
    "a repeated word": (["a", "a"], EYE, {}, "word 1, 'a', repeats word 0"),
    "a surrogate": (["a", "\ud800"], EYE, {}, "has no UTF-8"),
    "words of another type": (["a", b"b"], EYE, {}, "must be str, not bytes"),
    "an indexer of another kind": (["a"], EYE, {"subwords": "bucket"}, "must be a SubwordIndexer"),
    "metadata of another kind": (["a", "b"], EYE, {"metadata": b"a"}, "str or a mapping"),
    "no columns": (["a", "b"], np.empty((2, 0), "f4"), {}, "at least one column"),
    "no words": (None, EYE, {}, "words must not be None"),
    "words with floret": (["a"], EYE, {"subwords": FloretIndexer(1, 2, 2)}, "has no words"),
    "no vectors": (["a"], None, {}, "either vectors or quantized"),
    "both": (["a"], EYE, {"quantized": Quantized(CODES, BOOKS)}, "either vectors or quantized"),
    "an empty iterable": ([], iter(()), {}, "vectors must have a block"),
    "three dimensions": (["a"], np.zeros((1, 1, 1)), {}, "two dimensions"),
    "blocks of three dimensions": (["a"], [np.zeros((1, 1, 1))], {}, "two dimensions"),
    "blocks of two widths": (["a", "b"], [EYE[:1], EYE[:1, :1]], {}, "must have 2 columns, not 1"),
    "blocks of two types": (
        ["a", "b"],
        [EYE[:1], EYE[:1].astype("f8")],
        {},
        "must be float32",
    ),
    "half precision": (["a", "b"], EYE.astype("f2"), {}, "not float16"),
    "complex numbers": (["a", "b"], EYE.astype("c8"), {}, "not complex64"),
    "too few norms": (["a", "b"], EYE, {"norms": [1]}, "norms must have the shape"),
    "metadata that are not TOML": (["a", "b"], EYE, {"metadata": "a ="}, "not TOML"),
    "codes of the wrong width": (
        ["a", "b"],
        None,
        {"quantized": Quantized(CODES[:, :1], BOOKS)},
        "codes must be",
    ),
    "a code without a centroid": (
        ["a", "b"],
        None,
        {"quantized": Quantized(CODES + 3, BOOKS)},
        "codes must be below 3",
    ),
    "too many centroids": (
        ["a", "b"],
        None,
        {"quantized": Quantized(CODES, np.zeros((2, 257, 1)))},
        "codebooks must have",
    ),
    "a projection of the wrong shape": (
        ["a", "b"],
        None,
        {"quantized": Quantized(CODES, BOOKS, projection=np.eye(3))},
        "projection must have",
    ),
    "row norms of the wrong length": (
        ["a", "b"],
        None,
        {"quantized": Quantized(CODES, BOOKS, norms=[1])},
        "norms must have",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_the_old_file_stays(tmp_path, case):
    words, vectors, options, message = REFUSED[case]
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises((ValueError, TypeError), match=message):
        write(path, words, vectors, **options)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["old"]


def test_an_error_in_the_callers_generator_leaves_nothing_behind(tmp_path):
    def blocks():
        yield EYE
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "new", ["a", "b"], blocks())
    assert os.listdir(tmp_path) == []


def test_words_whose_hashes_meet_are_not_repeats(tmp_path, monkeypatch):
    monkeypatch.setattr("embmap.formats.finalfusion.writer.xxh3_64_intdigest", len)
    path = write(tmp_path / "a", ["a", "b"], EYE)
    with embmap.open(path) as file:
        assert list(file) == ["a", "b"]
    with pytest.raises(ValueError, match="word 2, 'a', repeats word 0"):
        write(path, ["a", "b", "a"], EYE)


def test_a_file_that_is_open_may_be_replaced(tmp_path):
    path = write(tmp_path / "a", ["a"], EYE[:1])
    with embmap.open(path) as old:
        write(path, ["b"], EYE[1:])
        assert old["a"].tolist() == [1, 0]
    with embmap.open(path) as new:
        assert new["b"].tolist() == [0, 1]


def test_targets_that_cannot_be_written_are_os_errors(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write(tmp_path / "missing" / "b", ["a"], EYE[:1])
    assert caught.value.filename == str(tmp_path / "missing" / "b")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="not a regular file"):
            write(tmp_path / "pipe", ["a"], EYE[:1])
    with pytest.raises(IsADirectoryError):
        write(tmp_path, ["a"], EYE[:1])
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing" / "a", ["a"], EYE[:1])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes and links")
def test_modes_and_links_are_kept(tmp_path):
    path = tmp_path / "a"
    path.touch()
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    write(link, ["a"], EYE[:1])
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    old = os.umask(0o027)
    try:
        assert write(tmp_path / "b", ["a"], EYE[:1]).stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)
