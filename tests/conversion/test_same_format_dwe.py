"""A DWE file that is converted to DWE keeps all time steps, as the original would encode them."""

import numpy as np
import pytest

import embmap
from tests.conversion.sources import RNG, WORDS
from tests.reference import dwe as reference

LAYOUTS = ("blocks", "stream")
STEPS = RNG.integers(-300, 300, (6, 5, 4)).astype(np.int16)
SCALE = float(np.float32(0.01))
NOT_CANONICAL = "exotic_natural_order_B.dwe"  # its time steps come in another order
FILES = pytest.mark.conformance_files(
    "dwe/*.dwe", where=lambda path: path.name != "single_symbol_model_B.dwe"
)


def make(tmp_path, *, words=True, **options):
    path = embmap.dwe.write(tmp_path / "a.dwe", STEPS, scale=SCALE, **options)
    if words:
        path.with_name("a.dwe.words.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    return path


def integers(path):
    with embmap.open(path) as f:
        steps = [np.asarray(f.at(t).vectors.quantized) for t in range(f.num_timesteps)]
        return np.stack(steps), f.scale


def words_beside(path):
    return path.with_name(f"{path.name}.words.txt").read_text("utf-8").split("\n")[:-1]


@FILES
def test_every_dwe_file_is_kept_whole(tmp_path, conformance_file):
    report = embmap.convert(conformance_file, tmp_path / "o.dwe")
    assert (report.left_out, report.dtype) == ((), "int16")
    found, expected = integers(tmp_path / "o.dwe"), integers(conformance_file)
    np.testing.assert_array_equal(found[0], expected[0], strict=True)
    assert found[1] == expected[1]
    if conformance_file.name != NOT_CANONICAL:
        assert (tmp_path / "o.dwe").read_bytes() == conformance_file.read_bytes()


@FILES
def test_the_other_layout_is_written_as_the_original_would_write_it(tmp_path, conformance_file):
    with embmap.open(conformance_file) as f:
        layout, group = f.layout, f.info()["group"]
        other = {"blocks": "stream", "stream": "blocks"}[layout]
        fits = other == "stream" or len(f) % group == 0
    embmap.convert(conformance_file, tmp_path / "b.dwe", output_layout=other)
    values, scale = integers(conformance_file)
    with embmap.open(tmp_path / "b.dwe") as f:
        assert f.layout == other
        if fits:
            assert f.info()["group"] == group
        group = f.info()["group"]
    if values.size < 20_000:  # the reference encoder is slow
        encoded = reference.encode(values, scale, group, other, wrap=True)
        assert (tmp_path / "b.dwe").read_bytes() == encoded
    np.testing.assert_array_equal(integers(tmp_path / "b.dwe")[0], values, strict=True)
    embmap.convert(tmp_path / "b.dwe", tmp_path / "c.dwe", output_layout=layout)
    np.testing.assert_array_equal(integers(tmp_path / "c.dwe")[0], values, strict=True)
    if fits and conformance_file.name != NOT_CANONICAL:
        assert (tmp_path / "c.dwe").read_bytes() == conformance_file.read_bytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("output_layout", LAYOUTS)
def test_words_go_along_and_may_be_chosen(tmp_path, layout, output_layout):
    path = make(tmp_path, layout=layout, group=5)
    report = embmap.convert(path, tmp_path / "b.dwe", output_layout=output_layout)
    assert words_beside(tmp_path / "b.dwe") == WORDS
    assert (report.n_words, report.dim, report.left_out) == (5, 4, ())
    encoded = reference.encode(STEPS, SCALE, 5, output_layout)
    assert (tmp_path / "b.dwe").read_bytes() == encoded
    chosen = [WORDS[3], WORDS[1]]
    for options in ({"words": chosen}, {"words": chosen, "output_layout": output_layout}):
        embmap.convert(path, tmp_path / "c.dwe", **options)
        assert words_beside(tmp_path / "c.dwe") == [WORDS[1], WORDS[3]]
        found, scale = integers(tmp_path / "c.dwe")
        np.testing.assert_array_equal(found, STEPS[:, [1, 3]], strict=True)
        assert scale == SCALE
    embmap.convert(path, tmp_path / "d.dwe", limit=3)
    np.testing.assert_array_equal(integers(tmp_path / "d.dwe")[0], STEPS[:, :3], strict=True)


def test_a_dwe_file_without_words_and_with_repeated_words_is_kept(tmp_path):
    path = make(tmp_path, words=False)
    report = embmap.convert(path, tmp_path / "b.dwe")
    assert report.words_path is None
    assert (tmp_path / "b.dwe").read_bytes() == path.read_bytes()
    embmap.convert(path, tmp_path / "c.dwe", limit=2)
    np.testing.assert_array_equal(integers(tmp_path / "c.dwe")[0], STEPS[:, :2], strict=True)
    with pytest.raises(ValueError, match="name them with vocab"):
        embmap.convert(path, tmp_path / "d.dwe", words=["a"])
    report = embmap.convert(path, tmp_path / "d.dwe", vocab=[*"abcab"])
    assert (report.n_words, report.n_duplicates) == (5, 0)
    assert words_beside(tmp_path / "d.dwe") == [*"abcab"]


def test_numbers_are_rounded_again_only_on_request(tmp_path):
    path = make(tmp_path)
    embmap.convert(path, tmp_path / "b.dwe", bits=4)
    found, scale = integers(tmp_path / "b.dwe")
    assert np.abs(found).max() == 7
    np.testing.assert_allclose(found * scale, STEPS * SCALE, atol=scale / 2 * 1.001)
    embmap.convert(path, tmp_path / "c.dwe", normalize=True, bits=11, words=WORDS[2:])
    found, scale = integers(tmp_path / "c.dwe")
    expected = STEPS[:, 2:] / np.linalg.norm(STEPS[:, 2:], axis=2, keepdims=True)
    np.testing.assert_allclose(found * scale, expected, atol=scale)


def test_other_outputs_name_the_time_steps_that_they_lack(tmp_path, command):
    path = make(tmp_path)
    for name in ("b.npy", "b.fifu", "b.weights", "b.cvc", "b.vec"):
        report = embmap.convert(path, tmp_path / name, timestep=0)
        assert "other time steps" in report.left_out
    status, _, err = command("convert", path, tmp_path / "b.npy", "--time", "0")
    assert status == 0
    assert err == f"embmap: {tmp_path / 'b.npy'} does not hold the input's other time steps\n"
    with pytest.raises(ValueError, match="6 time steps; choose one"):
        embmap.convert(path, tmp_path / "b.npy")


@pytest.mark.conformance_files("dwe/malformed/B_scale_*.dwe")
def test_a_scale_that_is_no_factor_is_damage(tmp_path, conformance_file):
    with embmap.open(conformance_file) as f:
        is_factor = np.isfinite(f.scale) and f.scale != 0
    if is_factor:
        embmap.convert(conformance_file, tmp_path / "o.dwe")
        assert integers(tmp_path / "o.dwe")[1] < 0
        return
    with pytest.raises(embmap.FormatError, match="scale factor"):
        embmap.convert(conformance_file, tmp_path / "o.dwe")
    assert not list(tmp_path.iterdir())
