"""Safetensors files, opened in place: what the library reads, and what damaged files say."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from tests.judges.inputs import safetensors, tensors

RNG = np.random.default_rng(6)
ROWS = RNG.standard_normal((4, 3)).astype(np.float32)
WORDS = ["berlin", "zürich", "東京", "a"]


def saved(path, arrays, metadata=None):
    path.write_bytes(safetensors(arrays, metadata))
    return path


def test_every_tensor_is_what_the_library_reads(tmp_path, backend):
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    kinds = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8")
    arrays = {kind: RNG.integers(0, 2, (3, 2, 1)).astype(kind) for kind in kinds}
    arrays["scalar"] = np.array(7, np.float32)
    arrays["nothing"] = np.empty((0, 2, 2), np.float32)
    library.save_file(arrays, tmp_path / "a.safetensors", {"format": "np"})
    with embmap.open(tmp_path / "a.safetensors", backend=backend) as file:
        assert (file.format, file.layout, file.vectors) == ("safetensors", "safetensors", None)
        assert sorted(file.tensors) == sorted(arrays)
        for name, array in library.load_file(tmp_path / "a.safetensors").items():
            np.testing.assert_array_equal(file.tensors[name], array, strict=True)
            np.testing.assert_array_equal(file.tensor(name), array, strict=True)
            np.testing.assert_array_equal(file.tensor(name, "c16"), array.astype("c16"))
        assert file.metadata == {"format": "np"}
        listed = {chunk["name"]: chunk for chunk in file.info()["chunks"]}
        assert listed["f2"]["dtype"] == "f2"
        assert listed["f2"]["nbytes"] == 12
        assert file.verify().ok
        with pytest.raises(KeyError, match="absent"):
            file.tensor("absent")


DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}


@pytest.mark.parametrize("kind", DTYPES)
def test_types_that_numpy_lacks(tmp_path, kind, monkeypatch):
    """Of ml_dtypes, or the bits without it."""
    width = 2 if kind == "BF16" else 1
    header = {"x": {"dtype": kind, "shape": [3], "data_offsets": [0, 3 * width]}}
    bits = np.array([0x3F80, 0xC000, 0] if width == 2 else [0x38, 0x40, 0], f"<u{width}")
    path = tmp_path / "a.safetensors"
    path.write_bytes(tensors(header, bits.tobytes()))
    with embmap.open(path) as file:
        own = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
        array = file.tensors["x"]
        assert array.dtype == getattr(own, DTYPES[kind])
        assert array.view(bits.dtype).tolist() == bits.tolist()
        assert file.tensor("x", "f4").tolist() == array.astype("f4").tolist()
        monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
        assert file.tensors["x"].dtype == bits.dtype
        if kind == "BF16":
            assert file.tensor("x", "f4").tolist() == [1, -2, 0]
        else:
            with pytest.raises(ImportError, match=r"embmap\[bf16\]"):
                file.tensor("x", "f4")


def test_packed_numbers_are_listed_and_not_read(tmp_path):
    header = {
        "small": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]},
        "words": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 8]},
    }
    (tmp_path / "a").write_bytes(tensors(header, bytes(8)))
    with embmap.open(tmp_path / "a") as file:
        assert list(file.tensors) == ["small", "words"]
        assert file.info()["chunks"][0]["nbytes"] == 4
        assert file.tensors["words"].tolist() == [[0]]
        with pytest.raises(embmap.UnsupportedError, match="4 bits"):
            file.tensor("small")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["any"], "any"),
        (["a", "b"], None),
        (["a", "model.embed_tokens.weight"], "model.embed_tokens.weight"),
        (["wte.weight", "word_embeddings.weight"], "word_embeddings.weight"),
        ([], None),
    ],
)
def test_which_tensor_holds_the_vectors(tmp_path, names, chosen):
    arrays = {name: ROWS + i for i, name in enumerate(names)} | {"bias": ROWS[0]}
    path = saved(tmp_path / "a.safetensors", arrays)
    if chosen is None:
        with embmap.open(path) as file:
            assert file.vectors is None
            with pytest.raises(embmap.FormatError, match="no vectors"):
                file[0]
        with pytest.raises(ValueError, match=r"choose one with tensor|no tensor of numbers"):
            embmap.convert(path, tmp_path / "b.npy")
        return
    with embmap.open(path, vocab=WORDS) as file:
        np.testing.assert_array_equal(file["zürich"], arrays[chosen][1])
        assert np.shares_memory(file.vectors[:], file.tensors[chosen])
    embmap.convert(path, tmp_path / "b.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), arrays[chosen])


def test_bfloat16_rows_are_float32(tmp_path, backend):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    rows = ROWS.astype(ml_dtypes.bfloat16)
    path = saved(tmp_path / "a.safetensors", {"x": rows})
    with embmap.open(path, vocab=WORDS, backend=backend) as file:
        assert file.dtype == np.float32
        np.testing.assert_array_equal(file["a"], rows[3].astype(np.float32))
        assert file.most_similar("a", 1)[0].word in WORDS


def test_a_tensor_of_numbers_that_cannot_be_vectors_is_named(tmp_path):
    header = {"x": {"dtype": "BOOL", "shape": [2, 2], "data_offsets": [0, 4]}}
    (tmp_path / "a").write_bytes(tensors(header, bytes(4)))
    assert embmap.open(tmp_path / "a").tensor("x").dtype == bool
    with pytest.raises(embmap.UnsupportedError, match="cannot be vectors"):
        embmap.convert(tmp_path / "a", tmp_path / "b.npy")
    with pytest.raises(ValueError, match="no tensor 'y', but x"):
        embmap.convert(tmp_path / "a", tmp_path / "b.npy", tensor="y")


def test_a_file_cut_anywhere_is_refused(tmp_path, backend):
    data = safetensors({"x": ROWS, "y": ROWS[0]}, {"k": "v"})
    for end in range(9, len(data)):
        (tmp_path / "a").write_bytes(data[:end])
        with pytest.raises(embmap.FormatError):
            embmap.open(tmp_path / "a", backend=backend, format="safetensors")


HEADER = safetensors({"embed_tokens.weight": ROWS, "y": ROWS[0]}, {"k": "v"})


@given(st.integers(0, len(HEADER) - 1), st.binary(min_size=1, max_size=3))
def test_wrong_bytes_are_answered_or_refused(tmp_path_factory, start, wrong):
    path = tmp_path_factory.mktemp("safetensors") / "a"
    path.write_bytes((HEADER[:start] + wrong + HEADER[start + len(wrong) :])[: len(HEADER)])
    try:
        with embmap.open(path, format="safetensors") as file:
            for name in file.tensors:
                file.tensor(name)
            json.dumps(file.info())
            file.verify()
    except embmap.EmbmapError:
        pass
