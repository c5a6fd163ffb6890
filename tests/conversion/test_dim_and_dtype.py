"""Vectors that are cut to their first numbers, and numbers stored as bfloat16."""

import numpy as np
import pytest

import embmap
from embmap.codecs.bfloat import as_bfloat16, as_float32
from embmap.finalfusion import Quantized
from embmap.subwords import FastTextIndexer
from tests.conversion.sources import INPUTS, OUTPUTS, VECTORS, WORDS, make, rows

SPECIAL = np.array(
    [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, 1 + 2**-8, 1 + 3 * 2**-8, 3.3e38],
    np.float32,
)


def of_tensor(name, options):
    return options | ({"tensor": "emb"} if name == "safetensors" else {})


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_is_cut(tmp_path, name):
    path, options = make(name, tmp_path)
    options = of_tensor(name, options)
    _, whole = rows(path, **options)
    _, cut = rows(path, dim=4, **options)
    assert cut.tolist() == whole[:, :4].tolist()
    assert rows(path, dim=6, **options)[1].tolist() == whole.tolist()
    with pytest.raises(ValueError, match="dim must be at most 6, the length of the vectors, not 7"):
        rows(path, dim=7, **options)
    with pytest.raises(ValueError, match="dim must be at least 1, not 0"):
        rows(path, dim=0, **options)


@pytest.mark.parametrize("extension", OUTPUTS.values())
def test_every_output_of_the_same_format_is_cut(tmp_path, extension):
    whole, cut = tmp_path / f"a{extension}", tmp_path / f"b{extension}"
    source, _ = make("word2vec", tmp_path)
    embmap.convert(source, whole)
    report = embmap.convert(whole, cut, dim=4)
    assert report.dim == 4
    _, expected = rows(whole, normalize=False if extension == ".fifu" else None)
    _, got = rows(cut, normalize=False if extension == ".fifu" else None)
    np.testing.assert_allclose(got, expected[:, :4], rtol=1e-6 if extension != ".cvc" else 1e-3)


def test_finalfusion_files_keep_unit_length_and_norms(tmp_path):
    source, _ = make("word2vec", tmp_path)
    embmap.convert(source, tmp_path / "a.fifu")
    report = embmap.convert(tmp_path / "a.fifu", tmp_path / "b.fifu", dim=3)
    assert (report.lengths, report.left_out) == ("unit", ())
    with embmap.open(tmp_path / "b.fifu") as file:
        np.testing.assert_allclose(np.linalg.norm(file.vectors[:], axis=1), 1, rtol=1e-6)
        np.testing.assert_allclose(file.unnormalized("東京"), VECTORS[2, :3], rtol=1e-5)


def test_subwords_are_cut_and_quantized_rows_are_decoded(tmp_path):
    indexer = FastTextIndexer(3, 4, 7)
    stored = np.arange(12 * 6, dtype=np.float32).reshape(12, 6)
    path, out = tmp_path / "a.fifu", tmp_path / "b.fifu"
    embmap.finalfusion.write(path, WORDS, stored, subwords=indexer)
    embmap.convert(path, out, dim=2)
    with embmap.open(path) as whole, embmap.open(out) as cut:
        assert cut.vectors[:].tolist() == stored[:, :2].tolist()
        expected = whole["hamburg"][:2] / np.linalg.norm(whole["hamburg"][:2])
        np.testing.assert_allclose(cut["hamburg"], expected, rtol=1e-6)
    codes = np.zeros((5, 3), np.uint8)
    quantized = Quantized(codes, np.ones((3, 1, 2), np.float32))
    embmap.finalfusion.write(path, WORDS, None, quantized=quantized)
    assert embmap.convert(path, out, dim=2).left_out == ("quantization",)


def test_dwe_files_are_cut_without_rounding(tmp_path):
    source, options = make("dwe", tmp_path)
    del options["timestep"]
    out = tmp_path / "b.dwe"
    embmap.convert(source, out, dim=4, **options)
    with embmap.open(source) as whole, embmap.open(out) as cut:
        assert cut.vectors[:].tolist() == whole.vectors[:][:, :, :4].tolist()


def test_columns_and_metadata_state_the_new_length(tmp_path):
    columns = {"a": VECTORS}
    embmap.cvc.write_columns(tmp_path / "a.cvc", columns)
    embmap.convert(tmp_path / "a.cvc", tmp_path / "b.cvc", dim=2)
    with embmap.open(tmp_path / "b.cvc") as file:
        assert file.columns["a"][:].tolist() == VECTORS[:, :2].tolist()
        assert file.verify().ok
    path, _ = make("embd", tmp_path)
    embmap.convert(path, tmp_path / "b.weights", dim=2)
    with embmap.open(tmp_path / "b.weights") as file:
        assert file.metadata["embedding_dim"] == "2"
        assert not file.verify().problems


# bfloat16


@pytest.mark.parametrize("extension", [".weights", ".safetensors"])
def test_bfloat16_is_rounded_to_the_nearest_even(tmp_path, extension):
    np.save(tmp_path / "a.npy", SPECIAL[np.newaxis])
    out = tmp_path / f"b{extension}"
    report = embmap.convert(tmp_path / "a.npy", out, dtype="bfloat16")
    assert report.dtype == "bfloat16"
    _, values = rows(out)
    bits = values.view(np.uint32)[0] >> 16
    expected = [0, 0x8000, 0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0, 0x3F80, 0x3F82, 0x7F78]
    assert bits.tolist() == expected
    again = tmp_path / f"c{extension}"
    embmap.convert(out, again)
    assert again.read_bytes() == out.read_bytes()


def test_bfloat16_is_rounded_as_ml_dtypes_does():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(4).integers(0, 2**32, 100_000, np.uint32)
    values = bits.view(np.float32)
    values = values[np.abs(np.nan_to_num(values)) < 3.38e38].reshape(-1, 1)
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    got = as_float32(as_bfloat16(values).view(np.uint16))
    np.testing.assert_array_equal(got, expected)


def test_float64_is_rounded_once():
    step = 2.0**-8
    values = np.array([1 + step + 2.0**-40, 1 + step - 2.0**-40, -1 - step - 2.0**-40, 1 + step])
    assert as_float32(as_bfloat16(values).view(np.uint16)).tolist() == [
        1 + 2 * step,
        1,
        -1 - 2 * step,
        1,
    ]


def test_other_tensors_stay_when_one_becomes_bfloat16(tmp_path):
    tensors = {"embeddings.word_embeddings.weight": VECTORS, "other": VECTORS[0]}
    embmap.embd.write(tmp_path / "a.weights", tensors, vocab=WORDS)
    embmap.convert(tmp_path / "a.weights", tmp_path / "b.weights", dtype="bfloat16", dim=4)
    with embmap.open(tmp_path / "b.weights") as file:
        assert file.tensors.layout("embeddings.word_embeddings.weight").dtype == "bfloat16"
        assert file.tensors["other"].tolist() == VECTORS[0].tolist()
        np.testing.assert_allclose(file["東京"], VECTORS[2, :4], rtol=2**-8)
        assert not file.verify().problems


@pytest.mark.parametrize("extension", [".fifu", ".cvc", ".bin", ".vec", ".txt", ".npy"])
def test_other_outputs_refuse_bfloat16(tmp_path, extension):
    path, _ = make("word2vec", tmp_path)
    with pytest.raises(ValueError, match=r"dtype must be .*, not bfloat16"):
        embmap.convert(path, tmp_path / f"b{extension}", dtype="bfloat16")


def test_numbers_that_bfloat16_cannot_hold_are_errors(tmp_path):
    np.save(tmp_path / "a.npy", np.full((1, 1), 3.4e38, np.float32))
    with pytest.raises(ValueError, match="hold numbers that bfloat16 cannot"):
        embmap.convert(tmp_path / "a.npy", tmp_path / "b.weights", dtype="bfloat16")
