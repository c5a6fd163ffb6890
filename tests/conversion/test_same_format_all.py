"""Files of every format that is read and written lose nothing when they are converted to it."""

from pathlib import Path

import numpy as np
import pytest

import embmap
from embmap.formats.registry import get_written_formats
from tests.conversion.sources import VECTORS, WORDS, make, write_text, write_word2vec, write_words
from tests.reference.other_tools import decode_word2vec

# Arguments that choose a part of a file, which is then not kept as a whole.
_CHOICES = ("timestep", "tensor")


def extension(name):
    return next(iter(get_written_formats()[name].extensions), ".bin")


def read_arrays(path, name):
    """All arrays of a file, as the library of its format reads them; None without a library."""
    if name == "npy":
        return {"": np.load(path)}
    if name == "npz":
        with np.load(path) as archive:
            return {key: archive[key] for key in archive.files}
    if name == "parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(path)
        return {key: np.array(table[key].to_pylist()) for key in table.column_names}
    if name == "safetensors":
        return pytest.importorskip("safetensors.numpy").load_file(path)
    if name == "gensim":
        loaded = pytest.importorskip("gensim.models").KeyedVectors.load(str(path))
        words = np.array(loaded.index_to_key)
        return {"words": words, "vectors": loaded.vectors, **loaded.expandos}
    if name == "word2vec":
        words, vectors = decode_word2vec(path.read_bytes())
        return {"words": np.array(words), "vectors": vectors}
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", get_written_formats())
def test_a_file_of_every_format_is_kept(tmp_path, name):
    given, options = make(name, tmp_path)
    options = {key: value for key, value in options.items() if key not in _CHOICES}
    path = given.rename(tmp_path / f"a{extension(name)}")
    out, again = tmp_path / f"b{extension(name)}", tmp_path / f"c{extension(name)}"
    for source, target in ((path, out), (out, again)):
        report = embmap.convert(source, target, input_format=name, output_format=name, **options)
        assert (report.input_format, report.output_format) == (name, name)
        assert (report.left_out, report.n_duplicates, report.n_dropped) == ((), 0, 0)
        options = {}  # the words are beside the output
    assert again.read_bytes() == out.read_bytes()
    expected = read_arrays(path, name)
    if expected is not None:
        found = read_arrays(out, name)
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            np.testing.assert_array_equal(found[key], values, strict=True)
    elif name != "gensim":
        assert out.read_bytes() == path.read_bytes()
    if get_written_formats()[name].is_opened:
        with embmap.open(path) as file, embmap.open(out) as copy:
            assert copy.verify().problems == file.verify().problems == []
            np.testing.assert_array_equal(copy.vectors, file.vectors, strict=True)


@pytest.mark.parametrize("newline", [b"\n", b""])
def test_word2vec_files_keep_their_dialect(tmp_path, newline):
    write_word2vec(tmp_path / "a.bin", newline=newline)
    embmap.convert(tmp_path / "a.bin", tmp_path / "b.bin")
    assert (tmp_path / "b.bin").read_bytes() == (tmp_path / "a.bin").read_bytes()


@pytest.mark.parametrize("suffix", [".vec", ".txt"])
def test_text_keeps_the_digits_of_float64(tmp_path, suffix):
    vectors = VECTORS.astype(np.float64) / 3
    write_text(tmp_path / f"a{suffix}", vectors=vectors, head=suffix == ".vec")
    embmap.convert(tmp_path / f"a{suffix}", tmp_path / f"b{suffix}")
    assert (tmp_path / f"b{suffix}").read_bytes() == (tmp_path / f"a{suffix}").read_bytes()
    report = embmap.convert(tmp_path / f"a{suffix}", tmp_path / f"b{suffix}", dtype="float32")
    assert report.dtype == "float32"
    assert embmap.convert(tmp_path / f"a{suffix}", tmp_path / "b.npy").dtype == "float32"


def test_an_archive_is_copied_unless_something_is_chosen(tmp_path):
    path, out = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(path, vectors=VECTORS, lengths=np.arange(5))
    write_words(tmp_path / "words.txt")
    report = embmap.convert(path, out, vocab=tmp_path / "words.txt")
    assert out.read_bytes() == path.read_bytes()
    assert (report.dtype, report.left_out) == ("float32", ())
    assert Path(report.words_path).read_text("utf-8").split("\n")[:-1] == WORDS
    for options in ({"limit": 2}, {"bits": 8}, {"tensor": "vectors"}, {"normalize": True}):
        with pytest.raises(ValueError, match="two time steps"):
            embmap.convert(path, out, **options)
    assert embmap.convert(path, tmp_path / "b.npy").left_out == ("other arrays",)
