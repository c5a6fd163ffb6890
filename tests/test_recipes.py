"""The recipes of docs/recipes.md: each is run as it is printed, where its library is installed."""

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"
WORDS = ["apple", "pear", "plum", "[PAD]", "[UNK]", *(f"word{i}" for i in range(300))]
RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((len(WORDS), 16)).astype(np.float32)
_RECIPE = re.compile(r"^## (.+?)\n.*?```python\n(.*?)```", re.DOTALL | re.MULTILINE)
RECIPES = dict(_RECIPE.findall(PAGE.read_text("utf-8")))


def nearest(n):
    """The words whose vectors have the greatest dot products with the vector of "pear"."""
    return np.argsort(-(VECTORS @ VECTORS[1]))[:n].tolist()


def check_gensim(names):
    with embmap.open("glove.fifu") as f:
        expected = [neighbor.word for neighbor in f.most_similar("pear", 3)]
    assert [word for word, _ in names["kv"].most_similar("pear", topn=3)] == expected
    assert np.shares_memory(names["kv"].vectors, np.asarray(names["f"].vectors))


def check_search(names):
    assert names["rows"][0].tolist() == nearest(3)


def check_codes(names):
    decoded = np.asarray(names["m"])
    found = names["index"].reconstruct_n(0, len(decoded))
    np.testing.assert_array_equal(found, decoded)
    distances = ((decoded - decoded[1]) ** 2).sum(axis=1)
    np.testing.assert_allclose(names["distances"][0], np.sort(distances)[:3], atol=1e-4)


def check_sentence(names):
    np.testing.assert_allclose(names["sentence"], (VECTORS[0] + VECTORS[1]) / 2, atol=1e-6)


def check_jax(names):
    assert np.asarray(names["x"]).tolist() == VECTORS.tolist()


def check_datasets(names):
    assert names["dataset"][1]["vector"].tolist() == VECTORS[1].tolist()
    assert names["dataset"][1]["word"] == "pear"


def check_lance(names):
    assert names["dataset"].count_rows() == len(WORDS)
    assert names["found"]["word"][0].as_py() == "pear"


CHECKS = {
    "gensim": check_gensim,
    "faiss: search": check_search,
    "faiss: an index from stored codes": check_codes,
    "model2vec": check_sentence,
    "sentence-transformers": check_sentence,
    "jax": check_jax,
    "datasets": check_datasets,
    "Lance": check_lance,
}


def test_every_recipe_is_run():
    assert list(RECIPES) == list(CHECKS)


def libraries(title):
    """The packages that a recipe imports."""
    for node in ast.walk(ast.parse(RECIPES[title])):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def run(title):
    """Run a recipe in this folder, and check what it made."""
    embmap.finalfusion.write("glove.fifu", WORDS, VECTORS)
    codes = RNG.integers(0, 32, (len(WORDS), 4), np.uint8)
    codebooks = RNG.standard_normal((4, 32, 4)).astype(np.float32)
    embmap.finalfusion.write("quantized.fifu", WORDS, None, quantized=Quantized(codes, codebooks))
    names = {}
    exec('import embmap, numpy as np\nf = embmap.open("glove.fifu")', names)
    exec(RECIPES[title], names)
    CHECKS[title](names)


# In a process of its own, because some of these libraries forbid others to fork.
@pytest.mark.slow
@pytest.mark.parametrize("title", CHECKS)
def test_a_recipe_does_what_it_says(tmp_path, title):
    for name in libraries(title):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    script = "import sys; from tests.test_recipes import run; run(sys.argv[1])"
    environment = {"PYTHONPATH": str(PAGE.parents[1]), "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", script, title],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
