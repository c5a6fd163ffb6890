"""Tensors of a real model, and rows of its word embedding by token."""

import numpy as np
import pytest

import embmap
from benchmarks import files
from benchmarks.fresh import tensor_opener
from benchmarks.replay import clock, in_fresh_process, replay
from benchmarks.test_lookup import look_up_each

NAME = "embeddings.word_embeddings.weight"
WAYS = ["embmap", "safetensors"]


@pytest.fixture(scope="module")
def model():
    """The folder of the model."""
    folder = files.minilm()
    if folder is None:
        pytest.skip("the package with the MiniLM model is not installed here")
    return folder


@pytest.fixture(scope="module")
def paths(data, warmed, model):
    """The same tensors in the format of each library."""
    pytest.importorskip("safetensors", reason="safetensors is not installed here")
    sources = {"embmap": data.weights, "safetensors": model / "model.safetensors"}
    return {library: str(warmed(path)) for library, path in sources.items()}


@pytest.fixture(scope="module")
def expected(paths):
    """The word embedding."""
    return tensor_opener("safetensors")(paths["safetensors"], NAME)


@pytest.mark.parametrize("way", WAYS)
def test_tensor(benchmark, record, paths, expected, way):
    found = benchmark(tensor_opener(way), paths[way], NAME)
    record("tensor", way)
    assert np.array_equal(found, expected)


def test_a_tensor_is_a_view_of_the_file(paths):
    with embmap.open(paths["embmap"]) as file:
        tensor = file.tensors[NAME]
        assert np.shares_memory(tensor, file.tensors[NAME])
        assert not tensor.flags.writeable


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.benchmark(timer=clock)
def test_tensor_in_a_fresh_process(benchmark, record, rounds, paths, expected, way):
    rows = []

    def open_once():
        outcome = in_fresh_process("tensor", library=way, path=paths[way], name=NAME)
        rows.append(outcome["first_row"])
        replay(outcome["seconds"])

    benchmark.pedantic(open_once, rounds=rounds(7))
    record("tensor, fresh process", way)
    assert all(row == expected[0].tolist() for row in rows)


MANY = {
    "embmap, flat": ("embmap", "flat"),
    "embmap, spec": ("embmap", "spec"),
    "embmap, safetensors": ("embmap", "safetensors"),
    "safetensors": ("safetensors", "safetensors"),
}


@pytest.mark.parametrize("way", MANY)
@pytest.mark.parametrize("n", [40, 1000])
def test_one_of_many_tensors(benchmark, record, data, warmed, n, way):
    pytest.importorskip("safetensors", reason="safetensors is not installed here")
    library, layout = MANY[way]
    open_tensor = tensor_opener(library)
    path, name = str(warmed(data.tensors(n, layout))), files.tensor_name(n // 2)
    found = benchmark(open_tensor, path, name)
    record(f"one of {n} tensors", way)
    assert np.array_equal(found, tensor_opener("safetensors")(data.tensors(n, "safetensors"), name))


@pytest.fixture(scope="module")
def tokens(model):
    """Tokens in random order, and their numbers."""
    every = (model / "vocab.txt").read_text(encoding="utf-8").split("\n")
    numbers = np.random.default_rng(1).permutation(30_000)[:1000].tolist()
    return [every[i] for i in numbers], numbers


@pytest.mark.parametrize("way", WAYS)
def test_row(benchmark, record, paths, tokens, expected, way):
    asked, numbers = tokens
    if way == "embmap":
        rows = embmap.open(paths[way], index="memory")
    else:  # safetensors does not know tokens, only their numbers
        from safetensors import safe_open

        asked = numbers
        rows = safe_open(paths[way], framework="numpy").get_slice(NAME)
    look_up_each(rows, asked)
    benchmark(look_up_each, rows, asked)
    record("row of a tensor", way, len(asked))
    assert np.array_equal([rows[each] for each in asked], expected[numbers])
