"""What look-ups allocate: their output and little more, whatever the size of the file.

And what conversions take: a bound that does not depend on how many numbers there are.
"""

import json
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import embmap
from embmap.cvc import write_columns
from embmap.finalfusion import Quantized

pytestmark = pytest.mark.slow

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


CONVERTING = """
import json, sys, threading
import embmap, embmap.conversion.converting

def private():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

before = peak = private()
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, private())

watcher = threading.Thread(target=watch)
watcher.start()
try:
    src, dst, options = json.loads(sys.argv[1])
    embmap.convert(src, dst, **options)
finally:
    done.set()
    watcher.join()
print(peak - before)
"""
ROWS, WIDE = 50_000, 500
FILLED = 32_000
BOUND = 60_000_000
WORKING = 150_000_000  # for what keeps more than a few blocks: several steps, 190 MB in all
TEXT_BOUND = 4_000_000  # of 6 MB of numbers: more of them would take too long
TARGETS = {
    "finalfusion": ("a.fifu", {"normalize": True}, BOUND),
    "finalfusion, quantized": ("a.fifu", {"quantize": 20, "limit": FILLED // 2}, WORKING // 2),
    "embd": ("a.embd", {}, BOUND),
    "embd, flat": ("a.embd", {"output_layout": "flat"}, BOUND),
    "cvc, fp16": ("a.cvc", {"compression": "fp16"}, BOUND),
    "cvc, int8": ("a.cvc", {"compression": "int8"}, BOUND),
    "cvc, lossless": ("a.cvc", {"compression": "lossless"}, BOUND),
    "dwe, blocks": ("a.dwe", {"limit": FILLED}, WORKING),
    "dwe, stream": ("a.dwe", {"output_layout": "stream", "limit": FILLED}, WORKING),
    "word2vec": ("a.bin", {"output_format": "word2vec"}, BOUND),
    "word2vec-text": ("a.txt", {"output_format": "word2vec-text", "limit": 3000}, TEXT_BOUND),
    "glove": ("a.txt", {"output_format": "glove", "limit": 3000}, TEXT_BOUND),
    "npy": ("b.npy", {"dtype": "float16"}, BOUND),
    "parquet": ("a.parquet", {}, WORKING * 2 // 3),
    "safetensors": ("a.safetensors", {}, BOUND),
}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Vectors of 100 MB in a file of numpy's, with words beside it."""
    if not Path("/proc/self/status").exists():
        pytest.skip("only /proc says how much private memory a process has")
    path = tmp_path_factory.mktemp("numbers") / "a.npy"
    array = np.lib.format.open_memmap(path, "w+", np.float32, (ROWS, WIDE))
    block = np.random.default_rng(0).standard_normal((50, WIDE), np.float32)
    array[:FILLED] = np.tile(block, (FILLED // len(block), 1))
    array[-1] = 7  # the rows between read as zeros and take no room
    array.flush()
    path.with_name("a.npy.words.txt").write_text("".join(f"w{i}\n" for i in range(ROWS)))
    return path


@pytest.mark.parametrize("target", TARGETS)
def test_converting_takes_bounded_memory_however_many_numbers_there_are(tmp_path, numbers, target):
    if target == "parquet":
        pytest.importorskip("pyarrow")
    name, options, bound = TARGETS[target]
    steps = [str(numbers)] * (3 if name.endswith("dwe") else 1)
    assert private_memory(steps, str(tmp_path / name), **options) < bound


COPIES = {
    "finalfusion": ("fifu", {}, {}),
    "finalfusion, quantized": ("fifu", {"quantize": 20, "limit": 16_000}, {}),
    "embd": ("embd", {}, {}),
    "embd, the other layout": ("embd", {}, {"output_layout": "flat"}),
    "dwe": ("dwe", {"limit": FILLED}, {}),
    "dwe, the other layout": ("dwe", {"limit": FILLED}, {"output_layout": "stream"}),
    "npy": ("npy", {}, {}),
    "parquet": ("parquet", {}, {}),
    "parquet, other numbers": ("parquet", {}, {"dtype": "float16"}),
    "safetensors": ("safetensors", {}, {}),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_file_is_copied_to_its_own_format_in_bounded_memory(tmp_path, numbers, name):
    extension, made, options = COPIES[name]
    if extension == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"a.{extension}"
    embmap.convert([numbers, numbers] if extension == "dwe" else numbers, path, **made)
    used = private_memory(str(path), str(tmp_path / f"b.{extension}"), **options)
    assert used < (WORKING if extension in ("dwe", "parquet") else BOUND)


@pytest.mark.parametrize("extension", ["weights", "safetensors"])
def test_all_tensors_of_a_file_are_copied_in_bounded_memory(tmp_path, numbers, extension):
    path = tmp_path / f"a.{extension}"
    rows = np.load(numbers, mmap_mode="r")
    if extension == "weights":
        tensors = {"embeddings.word_embeddings.weight": rows, "a": rows, "b.weight": rows}
        embmap.embd.write(path, tensors, vocab=[f"w{i}" for i in range(ROWS)])
    else:
        entry = {"dtype": "F32", "shape": list(rows.shape)}
        ends = [i * rows.nbytes for i in range(4)]
        header = json.dumps(
            {f"t{i}": {**entry, "data_offsets": ends[i : i + 2]} for i in range(3)},
            separators=(",", ":"),
        ).encode()
        with path.open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            out.truncate(8 + len(header) + ends[-1])  # zeros, which take no room
        shutil.copy(f"{numbers}.words.txt", f"{path}.words.txt")
    assert private_memory(str(path), str(tmp_path / f"b.{extension}")) < BOUND
    assert (tmp_path / f"b.{extension}").stat().st_size >= path.stat().st_size


def test_files_of_several_steps_become_steps_in_bounded_memory(tmp_path, numbers):
    path = tmp_path / "a.dwe"
    embmap.convert([numbers, numbers], path, limit=FILLED // 2)
    steps = [str(tmp_path / f"{i}.dwe") for i in range(4)]
    for step in steps:
        shutil.copy(path, step)
        shutil.copy(f"{path}.words.txt", f"{step}.words.txt")
    assert private_memory(steps, str(tmp_path / "b.dwe"), timestep=0) < WORKING


def private_memory(*conversion, **options):
    """Return the most private memory that a process takes for a conversion, in bytes."""
    return int(
        subprocess.run(
            [sys.executable, "-c", CONVERTING, json.dumps([*conversion, options])],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )


BLOCK = np.random.default_rng(0).standard_normal((1000, 500), np.float32)
TIMES = 30


def blocks():
    """60 MB of numbers."""
    return (BLOCK * factor for factor in range(1, TIMES + 1))


WRITERS = {
    **{
        compression: lambda path, compression=compression: embmap.cvc.write(
            path, blocks(), compression=compression, layout="1.0", chunk_rows=10**6
        )
        for compression in ("fp16", "int8", "lossless")
    },
    "columns": lambda path: write_columns(
        path, {"a": blocks(), "b": blocks()}, compression={"b": "int8"}, chunk_rows=10**6
    ),
    "finalfusion": lambda path: embmap.finalfusion.write(
        path, map(str, range(TIMES * len(BLOCK))), blocks()
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_writers_of_blocks_take_bounded_memory_whatever_the_rows_of_a_chunk(tmp_path, writer):
    tracemalloc.start()
    path = WRITERS[writer](tmp_path / "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000 < TIMES * BLOCK.nbytes
    with embmap.open(path) as file:
        vectors = file.vectors if writer != "columns" else file.columns["a"]
        assert np.allclose(vectors[-1], BLOCK[-1] * TIMES, atol=1)
