"""Arrays of numpy, opened in place: what numpy reads, and what damaged files say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from tests.judges.inputs import npy

RNG = np.random.default_rng(5)
WORDS = ["berlin", "zürich", "東京", "a"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "i1", "<i8", ">u2"])
def test_rows_are_what_numpy_reads(tmp_path, backend, dtype, order):
    array = np.asarray(RNG.integers(0, 100, (4, 3)) / 4, order=order).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    expected = np.load(tmp_path / "a.npy")
    with embmap.open(tmp_path / "a.npy", vocab=WORDS, backend=backend) as file:
        assert (file.format, file.layout, file.shape) == ("npy", "1.0", (4, 3))
        assert file.dtype == np.dtype(dtype).newbyteorder("=")
        assert file.info()["order"] == order
        np.testing.assert_array_equal(np.asarray(file.vectors), expected)
        np.testing.assert_array_equal(file["zürich"], expected[1])
        np.testing.assert_array_equal(file[["a", "berlin"]], expected[[3, 0]])
        assert file.verify().ok
    with embmap.open(tmp_path / "a.npy", backend=backend) as file:
        assert file.vocab is None
        np.testing.assert_array_equal(file[2], expected[2])


def test_rows_of_a_mapped_file_are_views_of_it(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    with embmap.open(tmp_path / "a.npy") as file:
        assert file.vectors.zero_copy
        assert np.shares_memory(file[1], np.asarray(file.vectors))
        assert not file[1].flags.writeable


def test_every_version_is_opened(tmp_path):
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "a.npy").open("wb") as out:
            np.lib.format.write_array(out, np.eye(3), version)
        name = ".".join(map(str, version))
        with embmap.open(tmp_path / "a.npy", layout=name) as file:
            assert file.layout == name
            assert file[1].tolist() == [0, 1, 0]
    with pytest.raises(embmap.FormatError, match=r"version 3\.0, not 1\.0"):
        embmap.open(tmp_path / "a.npy", layout="1.0")


def test_words_come_from_the_file_that_a_conversion_wrote(tmp_path):
    (tmp_path / "a.vec").write_text("2 3\nb 1 2 3\na 4 5 6\n")
    report = embmap.convert(tmp_path / "a.vec", tmp_path / "a.npy")
    with embmap.open(tmp_path / "a.npy", vocab=report.words_path) as file:
        assert file["a"].tolist() == [4, 5, 6]
        assert file.most_similar("a", 1)[0].word == "b"
        file.build_index()
    with embmap.open(tmp_path / "a.npy", vocab=report.words_path, index="require") as file:
        assert file["b"].tolist() == [1, 2, 3]
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    with pytest.raises(embmap.ChecksumError):
        embmap.open(tmp_path / "a.npy", vocab=report.words_path)
    with pytest.raises(ValueError, match="3 words were given for 2 rows"):
        embmap.open(tmp_path / "a.npy", vocab=["a", "b", "c"])


def test_verify_warns_about_bytes_after_the_array_and_values_that_are_not_finite(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(np.array([[1, 2], [np.nan, 3]])) + b"more")
    with embmap.open(tmp_path / "a.npy") as file:
        problems = [problem.message for problem in file.verify().problems]
    assert problems == ["4 bytes follow the array", "row 1 has a value that is not finite"]


@pytest.mark.parametrize("shape", [(0, 3), (3,), (2, 2, 2), ()])
def test_other_shapes(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros(shape))
    if shape == (0, 3):
        assert embmap.open(tmp_path / "a.npy").shape == shape
    else:
        with pytest.raises(embmap.FormatError, match="two dimensions"):
            embmap.open(tmp_path / "a.npy")


def test_a_file_cut_anywhere_is_refused(tmp_path, backend):
    data = npy(np.eye(3))
    for end in range(6, len(data)):
        (tmp_path / "a.npy").write_bytes(data[:end])
        with pytest.raises(embmap.FormatError):
            embmap.open(tmp_path / "a.npy", backend=backend)


@given(st.data())
def test_wrong_bytes_are_answered_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    raw = bytearray(npy(np.asfortranarray(np.eye(3)) if data.draw(st.booleans()) else np.eye(3)))
    start = data.draw(st.integers(6, 127))
    raw[start : start + 2] = data.draw(st.binary(min_size=2, max_size=2))
    path.write_bytes(raw)
    try:
        with embmap.open(path, backend=data.draw(st.sampled_from(["mmap", "read"]))) as file:
            assert np.asarray(file.vectors).shape == file.shape
            file.verify()
    except embmap.EmbmapError:
        pass
