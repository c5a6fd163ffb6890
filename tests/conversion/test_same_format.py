"""A file that is converted to its own format loses nothing; other outputs name what they lack."""

import numpy as np
import pytest

import embmap
from tests.conversion.sources import RNG, write_words

EMBD_FILES = pytest.mark.conformance_files("embd/*.weights")
WORDS = "embeddings.word_embeddings.weight"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "kitten", "Ärger", "東京"]
TENSORS = {
    "position_ids": np.arange(6, dtype=np.int32).reshape(1, 6),
    WORDS: RNG.standard_normal((8, 4)).astype(np.float16),
    "head.bias": RNG.standard_normal(8).astype(np.float32),
    "a.weight": RNG.standard_normal((2, 3, 2)).astype(np.float32),
    "bytes": np.arange(5, dtype=np.uint8),
}
METADATA = {
    "model_name": "x",
    "model_version": "2",
    "embedding_dim": "4",
    "vocab_size": "8",
    "num_layers": "1",
    "num_attention_heads": "1",
    "hidden_size": "4",
    "intermediate_size": "2",
    "max_position_emb": "6",
    "created_at": "yesterday",
    "extra": "ja",
}


def fields(path, *, layout=None):
    """All that an EMBD file holds, in order: what a copy must hold too."""
    with embmap.open(path, layout=layout) as f:
        info = f.info()
        return {
            "layout": f.layout,
            "tokens": None if f.vocab is None else list(f.vocab),
            "special tokens": f.special_tokens,
            "metadata": list(f.metadata.items()),
            "flags": (info["checksums"], info["aligned"]),
            "tensors": [
                (part["name"], part["dtype"], part["shape"], f.tensors[part["name"]].tobytes())
                for part in info["chunks"]
            ],
        }


def model(tmp_path, **options):
    options = {"vocab": TOKENS, "metadata": METADATA} | options
    return embmap.embd.write(tmp_path / "a.weights", TENSORS, **options)


@EMBD_FILES
def test_every_embd_file_is_kept_whole(tmp_path, conformance_file):
    report = embmap.convert(conformance_file, tmp_path / "o.weights")
    assert fields(tmp_path / "o.weights") == fields(conformance_file)
    assert report.left_out == ()
    assert report.n_duplicates == 0
    if conformance_file.stem != "polyglot_is_spec":  # which has bytes that belong to nothing
        assert (tmp_path / "o.weights").read_bytes() == conformance_file.read_bytes()


@EMBD_FILES
@pytest.mark.parametrize("layout", ["spec", "flat"])
def test_the_other_layout_of_embd_holds_what_it_can(tmp_path, conformance_file, layout):
    report = embmap.convert(conformance_file, tmp_path / "o.weights", output_layout=layout)
    before, after = fields(conformance_file), fields(tmp_path / "o.weights", layout=layout)
    assert after["layout"] == layout
    assert after["tokens"] == before["tokens"]
    if layout == before["layout"]:
        assert after == before
        return
    if layout == "spec":
        assert after["tensors"] == before["tensors"]
        assert report.left_out == ()
        return
    floats = {"float32", "f4", "f2", "float16", "bfloat16"}
    kept = [part[0] for part in before["tensors"] if part[1] in floats]
    assert [part[0] for part in after["tensors"]] == kept
    lost = {
        "metadata": bool(before["metadata"]),
        "other tensors": len(kept) < len(before["tensors"]),
        "special tokens": bool(before["special tokens"]),
    }
    assert set(report.left_out) == {part for part, is_lost in lost.items() if is_lost}
    with (
        embmap.open(conformance_file) as old,
        embmap.open(tmp_path / "o.weights", layout=layout) as new,
    ):
        for name in kept:
            found, expected = new.tensor(name), old.tensor(name, "float32")
            np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("align", [1, 8, 64, 4096])
@pytest.mark.parametrize("checksums", [True, False])
def test_an_embd_file_keeps_alignment_and_checksums(tmp_path, align, checksums):
    path = model(tmp_path, align=align, checksums=checksums)
    embmap.convert(path, tmp_path / "b.weights")
    assert (tmp_path / "b.weights").read_bytes() == path.read_bytes()


def test_an_embd_file_keeps_bfloat16_and_repeated_tokens(tmp_path):
    bits = RNG.integers(0, 0x7000, (6, 3), np.uint16)
    raw = embmap.embd.write(tmp_path / "u.weights", {WORDS: bits}, vocab=[*"abcab", "c"])
    data = bytearray(raw.read_bytes())
    data[data.index(WORDS.encode()) - 28] = 2  # the descriptor now says bfloat16
    raw.write_bytes(data)
    embmap.convert(raw, tmp_path / "o.weights")
    assert fields(tmp_path / "o.weights")["tensors"] == fields(raw)["tensors"]
    assert fields(tmp_path / "o.weights")["tokens"] == [*"abcab", "c"]
    embmap.convert(raw, tmp_path / "s.weights", limit=2)
    ((name, dtype, shape, content),) = fields(tmp_path / "s.weights")["tensors"]
    assert (name, dtype, shape, content) == (WORDS, "bfloat16", [2, 3], bits[:2].tobytes())


def test_chosen_tokens_keep_the_tensors_that_have_no_row_for_each_token(tmp_path):
    path = model(tmp_path)
    chosen = ["kitten", *TOKENS[:5]]
    report = embmap.convert(path, tmp_path / "b.weights", words=chosen)
    assert report.left_out == ("other tensors",)
    with embmap.open(tmp_path / "b.weights") as f:
        assert list(f) == [*TOKENS[:5], "kitten"]
        assert list(f.tensors) == ["position_ids", WORDS, "a.weight", "bytes"]
        assert f.tensors[WORDS].tobytes() == TENSORS[WORDS][:6].tobytes()
        assert f.tensors["a.weight"].tobytes() == TENSORS["a.weight"].tobytes()
        assert f.special_tokens == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
        assert f.metadata == METADATA | {"vocab_size": "6"}
    report = embmap.convert(path, tmp_path / "c.weights", words=["kitten", "[PAD]"])
    assert report.left_out == ("other tensors", "special tokens")
    with embmap.open(tmp_path / "c.weights") as f:
        assert f.special_tokens == {}
        np.testing.assert_array_equal(f["kitten"], TENSORS[WORDS][5])


def test_rows_of_an_embd_file_change_and_the_rest_stays(tmp_path):
    path = model(tmp_path)
    embmap.convert(path, tmp_path / "b.weights", dtype="float32", metadata={"model_name": "y"})
    with embmap.open(tmp_path / "b.weights") as f:
        assert f.metadata["model_name"] == "y"
        assert f.special_tokens["mask"] == 4
        assert list(f.tensors) == list(TENSORS)
        for name, array in TENSORS.items():
            expected = array.astype(np.float32) if name == WORDS else array
            np.testing.assert_array_equal(f.tensors[name], expected, strict=True)
    embmap.convert(path, tmp_path / "c.weights", normalize=True)
    with embmap.open(tmp_path / "c.weights") as f:
        lengths = np.linalg.norm(f.tensors[WORDS].astype("f4"), axis=1)
        np.testing.assert_allclose(lengths, 1, atol=1e-2)
        assert f.tensors["head.bias"].tobytes() == TENSORS["head.bias"].tobytes()


def test_a_chosen_tensor_becomes_the_word_embedding_and_the_others_are_named(tmp_path):
    other = RNG.standard_normal((8, 2)).astype(np.float32)
    path = embmap.embd.write(tmp_path / "a.weights", {**TENSORS, "x": other}, vocab=TOKENS)
    report = embmap.convert(path, tmp_path / "b.weights", tensor="x")
    assert report.left_out == ("other tensors",)
    with embmap.open(tmp_path / "b.weights") as f:
        assert list(f.tensors) == [WORDS]
        np.testing.assert_array_equal(np.asarray(f.vectors), other)
        assert f.special_tokens["mask"] == 4


def test_other_outputs_name_what_they_lack_of_an_embd_file(tmp_path, command):
    path = model(tmp_path)
    for name in ("b.npy", "b.vec", "b.cvc", "b.safetensors"):
        report = embmap.convert(path, tmp_path / name)
        assert {"other tensors", "special tokens"} <= set(report.left_out)
    status, _, err = command("convert", path, tmp_path / "b.npy")
    assert status == 0
    assert err == (
        f"embmap: {tmp_path / 'b.npy'} does not hold the input's metadata, other tensors, "
        "special tokens\n"
    )
    write_words(tmp_path / "w.txt", ["kitten"])
    status, _, err = command("select", path, tmp_path / "c.weights", "--words", tmp_path / "w.txt")
    assert err.endswith("does not hold the input's other tensors, special tokens\n")
