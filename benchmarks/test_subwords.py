"""Composing the vectors of unknown words from their subwords."""

import numpy as np
import pytest

from benchmarks import files
from benchmarks.replay import clock, in_fresh_process, replay

pytestmark = pytest.mark.benchmark(timer=clock)

WAYS = {
    "embmap": ("embmap", None),  # with the loops that it loads by itself
    "embmap, numpy": ("embmap", "numpy"),
    "finalfusion": ("finalfusion", None),
}


@pytest.fixture(scope="module")
def words(asked_words):
    return files.unknown(100 if asked_words is None else 1000)


@pytest.fixture(scope="module")
def answers(data, finalfusion, words):
    """A function that returns the vectors that finalfusion composes, by storage."""
    found = {}

    def compose(storage):
        if storage not in found:
            embeddings = finalfusion.load_finalfusion(path_of(data, storage), mmap=True)
            found[storage] = np.stack([embeddings[word] for word in words])
        return found[storage]

    return compose


def path_of(data, storage):
    return data.bucket if storage == "dense" else data.bucket_quantized


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("storage", ["dense", "quantized"])
@pytest.mark.parametrize("way", list(WAYS))
def test_unknown_word(
    benchmark, record, rounds, data, warmed, words, request, tmp_path, way, storage, batch
):
    library, kernels = WAYS[way]
    pytest.importorskip(library, reason=f"{library} is not installed here")
    n = rounds(20)
    outcome = in_fresh_process(
        "compose",
        kernels=kernels,
        library=library,
        path=str(warmed(path_of(data, storage))),
        words=words,
        rounds=n,
        batch=batch,
        out=str(tmp_path / "composed.npy"),
    )
    measured = iter(outcome["seconds"])
    benchmark.pedantic(lambda: replay(next(measured)), rounds=n)
    work = "unknown word" if storage == "dense" else "unknown word, quantized"
    record(f"{work}, batch" if batch else work, way, len(words))
    composed = np.load(tmp_path / "composed.npy")
    assert data.bucket_indexer.buckets(words)[1].tolist() == [46] * len(words)
    assert composed.shape == (len(words), files.DIM)
    answers = request.getfixturevalue("answers")(storage)
    np.testing.assert_allclose(composed, answers, rtol=0, atol=1e-6)
