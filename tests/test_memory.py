"""What look-ups allocate: their output and little more, whatever the size of the file."""

import tracemalloc

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized

N, DIM, BATCH = 60_000, 64, 10_000
WORDS = [f"word{i}" for i in range(N)]
SLACK = 2_000_000


def dense(path):
    return embmap.finalfusion.write(path, WORDS, np.zeros((N, DIM), np.float32)), {}


def quantized(path):
    codes = np.zeros((N, 8), np.uint8)
    codebooks = np.zeros((8, 256, DIM // 8), np.float32)
    return embmap.finalfusion.write(path, WORDS, None, quantized=Quantized(codes, codebooks)), {}


def tensors(path):
    return embmap.embd.write(path, {"wte.weight": np.zeros((N, DIM), np.float32)}, vocab=WORDS), {}


def chunks(path):
    return embmap.cvc.write(path, np.zeros((N, DIM)), chunk_rows=7000), {"vocab": WORDS}


@pytest.mark.parametrize("make", [dense, quantized, tensors, chunks])
def test_a_batch_allocates_its_output_and_little_more(tmp_path, make, backend):
    path, options = make(tmp_path / "a")
    asked = WORDS[:: N // BATCH]
    with embmap.open(path, backend=backend, **options) as file:
        file.batch(asked)  # builds the index
        tracemalloc.start()
        vectors = file.batch(asked)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert vectors.shape == (BATCH, DIM)
    # The read back end holds a block of rows, and what is decoded once more, beside the output.
    assert vectors.nbytes <= peak < 2 * vectors.nbytes + SLACK
    if backend == "mmap" and make in (dense, tensors):
        assert peak < vectors.nbytes + SLACK


def test_going_through_a_file_takes_a_block_at_a_time(tmp_path):
    path, _ = dense(tmp_path / "a")
    with embmap.open(path, backend="read") as file:
        tracemalloc.start()
        n = sum(len(block) for _, block in file.vectors.blocks())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert n == N
    assert peak < 4_000_000 < N * DIM * 4
