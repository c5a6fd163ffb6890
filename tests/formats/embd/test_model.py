"""verify() compares what the metadata of an EMBD file state with its tensors and tokens."""

import numpy as np
import pytest

import embmap
from embmap.formats.embd.fields import REQUIRED_METADATA

WORDS = "embeddings.word_embeddings.weight"
TOKENS = [f"t{i}" for i in range(10)]
MINILM = {  # as the published text lists them, without layers
    WORDS: (30522, 384),
    "embeddings.position_embeddings.weight": (512, 384),
    "embeddings.token_type_embeddings.weight": (2, 384),
    "embeddings.LayerNorm.weight": (384,),
    "embeddings.LayerNorm.bias": (384,),
}
LAYER = {
    "attention.self.query.weight": (384, 384),
    "attention.self.query.bias": (384,),
    "attention.self.key.weight": (384, 384),
    "attention.self.key.bias": (384,),
    "attention.self.value.weight": (384, 384),
    "attention.self.value.bias": (384,),
    "attention.output.dense.weight": (384, 384),
    "attention.output.dense.bias": (384,),
    "attention.output.LayerNorm.weight": (384,),
    "attention.output.LayerNorm.bias": (384,),
    "intermediate.dense.weight": (1536, 384),
    "intermediate.dense.bias": (1536,),
    "output.dense.weight": (384, 1536),
    "output.dense.bias": (384,),
    "output.LayerNorm.weight": (384,),
    "output.LayerNorm.bias": (384,),
}
STATED = {
    "model_name": "all-MiniLM-L6-v2",
    "embedding_dim": "384",
    "vocab_size": "30522",
    "num_layers": "6",
    "hidden_size": "384",
    "intermediate_size": "1536",
    "max_position_emb": "512",
}


def minilm():
    shapes = dict(MINILM)
    for number in range(6):
        shapes |= {f"encoder.layer.{number}.{name}": shape for name, shape in LAYER.items()}
    # int8, so that the file is small: the format allows any type
    return {name: np.zeros(shape, np.int8) for name, shape in shapes.items()}


def warnings(tmp_path, tensors, *, tokens=None, **stated):
    metadata = dict.fromkeys(REQUIRED_METADATA, "unknown") | stated
    path = embmap.embd.write(tmp_path / "a.weights", tensors, vocab=tokens, metadata=metadata)
    with embmap.open(path) as f:
        report = f.verify()
        assert report.ok
        assert {problem.severity for problem in report.problems} <= {"warning"}
        return [problem.message for problem in report.problems]


def test_a_model_that_is_claimed_and_not_there_is_named(tmp_path):
    tensors = {WORDS: np.zeros((10, 384), np.float32)}
    assert warnings(tmp_path, tensors, tokens=TOKENS, **STATED) == [
        "the metadata state vocab_size 30522, but the number of tokens is 10",
        (
            "the file lacks 100 of the 101 tensors of all-MiniLM-L6-v2: "
            "embeddings.position_embeddings.weight, embeddings.token_type_embeddings.weight, "
            "embeddings.LayerNorm.weight and 97 more"
        ),
        f"tensor {WORDS!r} of all-MiniLM-L6-v2 must have the shape (30522, 384), not (10, 384)",
    ]


def test_the_whole_model_has_no_warnings(tmp_path):
    tensors, tokens = minilm(), [f"t{i}" for i in range(30522)]
    assert warnings(tmp_path, tensors, tokens=tokens, **STATED) == []
    name = "sentence-transformers/all-MiniLM-L6-v2"
    del tensors["encoder.layer.5.output.dense.bias"]
    found = warnings(tmp_path, tensors, tokens=tokens, **STATED | {"model_name": name})
    (message,) = found
    assert message.endswith(
        "lacks 1 of the 101 tensors of all-MiniLM-L6-v2: encoder.layer.5.output.dense.bias"
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("vocab_size", "11", "the number of tokens is 10"),
        ("embedding_dim", "5", f"the length of a row of {WORDS!r} is 4"),
        (
            "hidden_size",
            "5",
            "in the shape of 'encoder.layer.0.attention.self.query.weight' it is 4",
        ),
        ("intermediate_size", "4", "'encoder.layer.0.intermediate.dense.weight' it is 3"),
        ("max_position_emb", "7", "'embeddings.position_embeddings.weight' it is 6"),
        ("num_layers", "1", "the number of layers is 2"),
    ],
)
def test_sizes_of_any_model_are_compared(tmp_path, key, value, message):
    tensors = {
        WORDS: np.zeros((10, 4), np.float32),
        "embeddings.position_embeddings.weight": np.zeros((6, 4), np.float32),
    }
    for number in range(2):
        layer = f"encoder.layer.{number}."
        tensors[f"{layer}attention.self.query.weight"] = np.zeros((4, 4), np.float32)
        tensors[f"{layer}intermediate.dense.weight"] = np.zeros((3, 4), np.float32)
    stated = {
        "vocab_size": "10",
        "embedding_dim": "4",
        "hidden_size": "4",
        "intermediate_size": "3",
        "max_position_emb": "6",
        "num_layers": "2",
    }
    assert warnings(tmp_path, tensors, tokens=TOKENS, **stated) == []
    assert warnings(tmp_path, tensors, tokens=TOKENS, **dict.fromkeys(stated, "unknown")) == []
    (found,) = warnings(tmp_path, tensors, tokens=TOKENS, **stated | {key: value})
    assert found.startswith(f"the metadata state {key} {value}, but ")
    assert found.endswith(message)


def test_without_tokens_the_rows_count(tmp_path):
    tensors = {WORDS: np.zeros((10, 4), np.float32)}
    assert warnings(tmp_path, tensors, vocab_size="10") == []
    (found,) = warnings(tmp_path, tensors, vocab_size="9")
    assert found == (f"the metadata state vocab_size 9, but the number of rows of {WORDS!r} is 10")
    assert warnings(tmp_path, {"x": np.zeros(2, np.int8)}, vocab_size="9") == []


@pytest.mark.parametrize("value", ["", "-1", "1e3", "٣", "9" * 400, "about 10"])
def test_a_size_that_is_no_number_is_not_compared(tmp_path, value):
    tensors = {WORDS: np.zeros((10, 4), np.float32)}
    assert warnings(tmp_path, tensors, tokens=TOKENS, vocab_size=value) == []
