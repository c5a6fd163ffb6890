"""fastText's and gensim's models converted to themselves, and what other outputs lack of them."""

import struct

import numpy as np
import pytest

import embmap
from tests.judges.inputs import WORDS, fasttext
from tests.reference.other_tools import decode_fasttext

LABELS = ["__label__x", "__label__y"]
LOST = ("word counts", "labels", "output matrix")
VERSIONS = [None, 11, 12]


def model(folder, **options):
    path = folder / "a.bin"
    path.write_bytes(fasttext(**{"labels": LABELS, **options})[0])
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "options", [{}, {"model": 3}, {"buckets": 0, "lengths": (0, 0)}, {"labels": ()}]
)
def test_a_fasttext_model_is_the_same_again(tmp_path, version, options):
    words = [*WORDS, WORDS[1]]
    path, out = model(tmp_path, words=words, version=version, **options), tmp_path / "b.bin"
    report = embmap.convert(path, out, output_format="fasttext")
    assert out.read_bytes() == path.read_bytes()
    assert (report.n_words, report.n_duplicates, report.left_out) == (5, 0, ())
    with embmap.open(path) as file, embmap.open(out) as copy:
        assert copy.verify().problems == file.verify().problems


def test_copying_a_model_reports_progress(tmp_path):
    calls = []
    path = model(tmp_path)
    embmap.convert(
        path,
        tmp_path / "b.bin",
        output_format="fasttext",
        progress=lambda *call: calls.append(call),
    )
    size = path.stat().st_size
    assert calls[-1] == ("copying bytes", size, size)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "options", [{"limit": 2}, {"words": WORDS[:2]}, {"dtype": "float32"}, {"normalize": True}]
)
def test_a_fasttext_model_of_other_rows_is_made_anew(tmp_path, version, options):
    path, out = model(tmp_path, version=version), tmp_path / "b.bin"
    report = embmap.convert(path, out, output_format="fasttext", **options)
    assert report.left_out == LOST
    words, matrix = decode_fasttext(out.read_bytes())
    n = report.n_words
    assert words == [word.encode() for word in WORDS[:n]]
    buckets = decode_fasttext(path.read_bytes())[1][len(WORDS) :]
    np.testing.assert_array_equal(matrix[n:], buckets)


def test_metadata_subwords_and_lengths_of_a_fasttext_model_can_be_changed(tmp_path):
    path, out = model(tmp_path, labels=()), tmp_path / "b.bin"
    options = {"output_format": "fasttext"}
    lost = ("word counts", "output matrix")
    assert embmap.convert(path, out, metadata={"epoch": 9}, **options).left_out == lost
    with embmap.open(out) as file:
        assert file.metadata["epoch"] == 9
    assert embmap.convert(path, out, subwords="none", **options).left_out == ("subwords", *lost)
    with embmap.open(out) as file:
        assert file.subwords is None
    assert embmap.convert(path, out, dim=2, **options).left_out == lost
    with embmap.open(out) as file:
        assert file.shape == (len(WORDS), 2)


def test_words_that_are_not_utf8_are_replaced_in_a_fasttext_model(tmp_path):
    path, out = model(tmp_path), tmp_path / "b.bin"
    path.write_bytes(path.read_bytes().replace("zürich".encode(), b"z\xfc\xfcrich"))
    with pytest.raises(embmap.FormatError, match="not UTF-8"):
        embmap.convert(path, out, output_format="fasttext")
    report = embmap.convert(path, out, output_format="fasttext", lossy=True)
    assert report.left_out == LOST
    assert decode_fasttext(out.read_bytes())[0][2] == "z\ufffd\ufffdrich".encode()


@pytest.mark.parametrize("version", VERSIONS)
def test_other_outputs_name_what_they_lack_of_a_fasttext_model(tmp_path, version, command):
    path = model(tmp_path, version=version)
    assert embmap.convert(path, tmp_path / "b.fifu").left_out == LOST
    assert set(embmap.convert(path, tmp_path / "b.kv").left_out) == {"metadata", *LOST}
    status, _, err = command("convert", path, tmp_path / "b.fifu")
    assert status == 0
    assert f"does not hold the input's {', '.join(LOST)}\n" in err
    embmap.convert(tmp_path / "b.fifu", tmp_path / "c.bin", output_format="fasttext")
    report = embmap.convert(tmp_path / "c.bin", tmp_path / "c.fifu")
    assert report.left_out == ("word counts",)  # descending numbers


def test_an_output_matrix_without_rows_is_not_missed(tmp_path):
    path = model(tmp_path, labels=())
    data = path.read_bytes()
    start = data.rindex(struct.pack("<2q", len(WORDS), 3))
    path.write_bytes(data[:start] + struct.pack("<2q", 0, 3))
    assert embmap.convert(path, tmp_path / "b.npy").left_out == (
        "subwords",
        "metadata",
        "word counts",
    )
