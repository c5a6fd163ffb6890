"""Integers over time in npz files, as the programs for DWE files read and write them."""

import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest

import embmap
from tests.conversion.sources import RNG, WORDS
from tests.reference import dwe as reference

STEPS = RNG.integers(-300, 300, (6, 5, 4)).astype(np.int16)
SCALE = np.float32(0.01)
FILES = pytest.mark.conformance_files(
    "dwe/*.dwe", where=lambda path: path.name != "single_symbol_model_B.dwe"
)


def save(path, steps=STEPS, scale=SCALE, **others):
    if scale is not None:
        others["scale_factor"] = scale
    np.savez_compressed(path, uncompressed_quantized=steps, **others)
    return path


def member(array):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array))
    return out.getvalue()


@FILES
def test_dwe_files_become_npz_and_the_same_dwe_files(tmp_path, conformance_file):
    report = embmap.convert(conformance_file, tmp_path / "a.npz")
    assert (report.output_format, report.dtype, report.left_out) == ("npz", "int16", ())
    expected = np.load(conformance_file.with_suffix(".npz"))
    with np.load(tmp_path / "a.npz") as found:
        assert found.files == ["uncompressed_quantized", "scale_factor"]
        np.testing.assert_array_equal(
            found["uncompressed_quantized"], expected["quantized"], strict=True
        )
        assert found["scale_factor"].dtype == np.float32
        assert found["scale_factor"].shape == ()
        assert found["scale_factor"] == np.float32(expected["scale_factor"])
    with embmap.open(conformance_file) as f:
        layout, group = f.layout, f.info()["group"]
    report = embmap.convert(tmp_path / "a.npz", tmp_path / "b.dwe", output_layout=layout)
    assert report.left_out == ()
    with embmap.open(tmp_path / "b.dwe") as f:
        same_group = f.info()["group"] == group
    if same_group and conformance_file.name != "exotic_natural_order_B.dwe":
        assert (tmp_path / "b.dwe").read_bytes() == conformance_file.read_bytes()
    embmap.convert(tmp_path / "b.dwe", tmp_path / "c.npz")
    assert (tmp_path / "c.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()


@pytest.mark.parametrize("layout", ["blocks", "stream"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i2", ">i2", "i1", "u1"])
def test_the_reference_reads_what_is_made_from_npz(tmp_path, layout, order, dtype):
    steps = np.asarray(STEPS % 100, dtype, order=order)
    save(tmp_path / "a.npz", steps, other=np.arange(3))
    embmap.convert(tmp_path / "a.npz", tmp_path / "a.dwe", output_layout=layout)
    found = reference.decode((tmp_path / "a.dwe").read_bytes())
    np.testing.assert_array_equal(found.quantized, steps)
    assert found.scale == SCALE
    embmap.convert(tmp_path / "a.dwe", tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as arrays:
        np.testing.assert_array_equal(arrays["uncompressed_quantized"], steps)
        assert arrays["scale_factor"] == SCALE


def test_differences_beyond_16_bits_wrap_as_in_the_original(tmp_path):
    steps = np.zeros((3, 2, 2), np.int16)
    steps[[0, 2]], steps[1] = -32768, 32767
    save(tmp_path / "a.npz", steps)
    embmap.convert(tmp_path / "a.npz", tmp_path / "a.dwe")
    found = reference.decode((tmp_path / "a.dwe").read_bytes())
    np.testing.assert_array_equal(found.quantized, steps)


def test_words_go_along_and_may_be_chosen(tmp_path):
    save(tmp_path / "a.npz")
    report = embmap.convert(tmp_path / "a.npz", tmp_path / "a.dwe", vocab=WORDS)
    assert report.words_path.read_text("utf-8").split("\n")[:-1] == WORDS
    report = embmap.convert(tmp_path / "a.dwe", tmp_path / "b.npz", words=[WORDS[3], WORDS[1]])
    assert report.words_path.read_text("utf-8").split("\n")[:-1] == [WORDS[1], WORDS[3]]
    with np.load(tmp_path / "b.npz") as arrays:
        np.testing.assert_array_equal(arrays["uncompressed_quantized"], STEPS[:, [1, 3]])
    report = embmap.convert(tmp_path / "a.npz", tmp_path / "c.npz", vocab=[*"abcab"])
    assert (report.n_words, report.n_duplicates) == (5, 0)
    embmap.convert(tmp_path / "a.npz", tmp_path / "d.npz", limit=2)
    with np.load(tmp_path / "d.npz") as arrays:
        np.testing.assert_array_equal(arrays["uncompressed_quantized"], STEPS[:, :2])


def test_one_time_step_is_chosen_for_other_formats(tmp_path):
    save(tmp_path / "a.npz")
    report = embmap.convert(tmp_path / "a.npz", tmp_path / "a.npy", timestep=-2)
    assert report.left_out == ("other time steps",)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), STEPS[-2] * SCALE, strict=True)
    with pytest.raises(ValueError, match="6 time steps; choose one"):
        embmap.convert(tmp_path / "a.npz", tmp_path / "a.npy")
    with pytest.raises(ValueError, match="timestep must be at least -6 and below 6, not 6"):
        embmap.convert(tmp_path / "a.npz", tmp_path / "a.npy", timestep=6)
    listed = {"vocab": WORDS, "years": [1900 + t for t in range(6)]}
    (tmp_path / "words.json").write_text(json.dumps(listed), "utf-8")
    options = {"vocab": tmp_path / "words.json"}
    for year in (1901, "1901"):
        embmap.convert(tmp_path / "a.npz", tmp_path / "b.npy", timestep=year, **options)
        np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), STEPS[1] * SCALE)
    report = embmap.convert(tmp_path / "a.npz", tmp_path / "b.dwe", **options)
    assert report.left_out == ("labels of time steps",)


def test_npy_files_over_time_take_a_scale(tmp_path, command):
    np.save(tmp_path / "a.npy", STEPS)
    with pytest.raises(ValueError, match="no scale_factor; give scale"):
        embmap.convert(tmp_path / "a.npy", tmp_path / "a.dwe")
    status, _, err = command("convert", tmp_path / "a.npy", tmp_path / "a.dwe", "--scale", "0.01")
    assert (status, err) == (0, "")
    save(tmp_path / "b.npz")
    embmap.convert(tmp_path / "b.npz", tmp_path / "b.dwe")
    assert (tmp_path / "a.dwe").read_bytes() == (tmp_path / "b.dwe").read_bytes()
    for scale in (0.0, np.nan, np.inf, 1e300):
        with pytest.raises(ValueError, match="scale must be finite and not 0"):
            embmap.convert(tmp_path / "a.npy", tmp_path / "c.dwe", scale=scale)
    with pytest.raises(ValueError, match="scale_factor of its own; scale must be None"):
        embmap.convert(tmp_path / "b.npz", tmp_path / "c.dwe", scale=0.01)
    embmap.convert(tmp_path / "a.npy", tmp_path / "c.npz", scale=0.01, bits=4)
    with np.load(tmp_path / "c.npz") as arrays:
        assert np.abs(arrays["uncompressed_quantized"]).max() == 7


def test_numbers_over_time_are_rounded(tmp_path):
    vectors = RNG.standard_normal((3, 5, 4)).astype("f4")
    np.save(tmp_path / "a.npy", vectors)
    for name in ("a.dwe", "a.npz"):
        report = embmap.convert(tmp_path / "a.npy", tmp_path / name, bits=11)
        assert report.left_out == ()
    with np.load(tmp_path / "a.npz") as arrays:
        rounded = arrays["uncompressed_quantized"] * arrays["scale_factor"]
    np.testing.assert_allclose(rounded, vectors, atol=2e-3)
    with embmap.open(tmp_path / "a.dwe") as f:
        np.testing.assert_array_equal(np.moveaxis(f[:], 0, 1), rounded)
    inputs = []
    for t, step in enumerate(vectors):
        inputs.append(tmp_path / f"{t}.npy")
        np.save(inputs[-1], step)
    embmap.convert(inputs, tmp_path / "b.npz", bits=11)
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()
    with pytest.raises(ValueError, match="two time steps"):
        embmap.convert(inputs[0], tmp_path / "c.npz")
    with pytest.raises(ValueError, match="no time steps to choose from"):
        embmap.convert(inputs[0], tmp_path / "c.npy", timestep=0)
    with pytest.raises(ValueError, match="no time steps to choose from: scale"):
        embmap.convert(inputs[0], tmp_path / "c.npy", scale=2.0)
    with pytest.raises(embmap.FormatError, match="scale is for integers"):
        embmap.convert(tmp_path / "a.npy", tmp_path / "c.dwe", scale=2.0)


WRONG = {
    "no scale": ({"scale": None}, ValueError, "no scale_factor; give scale"),
    "floats": ({"steps": STEPS / 2}, embmap.FormatError, "scale is for integers"),
    "int32": ({"steps": STEPS.astype("i4")}, embmap.FormatError, "must be int16, not int32"),
    "uint16": ({"steps": STEPS.astype("u2")}, embmap.FormatError, "must be int16, not uint16"),
    "bool": ({"steps": STEPS > 0}, embmap.FormatError, "not the header of an npy file"),
    "one dimension": ({"steps": STEPS[0, 0]}, embmap.FormatError, "two or three dimensions"),
    "four dimensions": ({"steps": STEPS[None]}, embmap.FormatError, "two or three dimensions"),
    "no step": ({"steps": STEPS[:0]}, embmap.FormatError, "no time steps"),
    "one step": ({"steps": STEPS[:1]}, ValueError, "at least 2 time steps"),
    "no word": ({"steps": STEPS[:, :0]}, ValueError, "cannot store time steps of shape"),
    "no column": ({"steps": STEPS[:, :, :0]}, embmap.FormatError, "two or three dimensions"),
    "scale of integers": ({"scale": np.int16(1)}, embmap.FormatError, "scale_factor"),
    "scales": ({"scale": np.ones(6, "f4")}, embmap.FormatError, "scale_factor"),
    "scale 0": ({"scale": np.float32(0)}, embmap.FormatError, "scale_factor must be finite"),
    "scale nan": ({"scale": np.float32("nan")}, embmap.FormatError, "must be finite"),
    "scale beyond float32": ({"scale": np.float64(1e300)}, embmap.FormatError, "must be finite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_an_archive_is_said(tmp_path, case):
    options, error, message = WRONG[case]
    save(tmp_path / "a.npz", **options)
    with pytest.raises(error, match=message):
        embmap.convert(tmp_path / "a.npz", tmp_path / "o.dwe")
    assert [each.name for each in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("n", [0, 40, 128, 129, 130])
def test_cut_members_are_truncated(tmp_path, n):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("uncompressed_quantized.npy", member(STEPS))
        archive.writestr("scale_factor.npy", member(SCALE)[:n])
    with pytest.raises(embmap.FormatError, match=r"scale_factor|npy"):
        embmap.convert(tmp_path / "a.npz", tmp_path / "o.dwe")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("uncompressed_quantized.npy", member(STEPS)[:n])
        archive.writestr("scale_factor.npy", member(SCALE))
    with pytest.raises(embmap.FormatError, match=r"npy|needs"):
        embmap.convert(tmp_path / "a.npz", tmp_path / "o.dwe")


def test_archives_with_any_byte_flipped_are_refused_or_read(tmp_path):
    data = save(tmp_path / "a.npz", STEPS[:2, :2]).read_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            embmap.convert(tmp_path / "b.npz", tmp_path / "o.dwe", input_format="npz")
        except (embmap.EmbmapError, ValueError):
            continue
        with embmap.open(tmp_path / "o.dwe") as f:
            assert f.shape == (2, 2, 4)
            np.testing.assert_array_equal(f.at(0).vectors.quantized[:], STEPS[0, :2])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_archive(tmp_path):
    steps = np.zeros((16, 20_000, 100), np.int16)  # 64 MB
    steps[:, ::7] = 3
    save(tmp_path / "a.npz", steps)
    embmap.convert(tmp_path / "a.npz", tmp_path / "b.npz", limit=1)  # imports
    tracemalloc.start()
    embmap.convert(tmp_path / "a.npz", tmp_path / "b.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < steps.nbytes / 2
    with np.load(tmp_path / "b.npz") as arrays:
        np.testing.assert_array_equal(arrays["uncompressed_quantized"], steps)
