"""Which pages of a file are read from a disk, and when embmap asks for them.

Pages are counted after another process has used the file: a map keeps its own pages in memory.
"""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import embmap
from embmap.bench.probes import cached_pages, drop_from_cache
from tests.forked import forked

N_ROWS, DIM = 20_000, 300
WORDS = [f"word{i * 7919 % N_ROWS}" for i in range(N_ROWS)]
PAGE = 4096
RANDOM = np.random.default_rng(0)
SOME = RANDOM.permutation(N_ROWS)[:400]

USE = """
import sys, resource
import numpy as np
import embmap
options = {"access": sys.argv[2]} if sys.argv[2] else {}
file = embmap.open(sys.argv[1], **options)
rows = list(map(int, sys.argv[3].split(",")))
before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
exec(sys.argv[4])
print(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before)
"""


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cold")
    vectors = RANDOM.standard_normal((N_ROWS, DIM), np.float32)
    path = embmap.finalfusion.write(folder / "dense.fifu", WORDS, vectors)
    with embmap.open(path) as file:
        file.build_index()
    status = path.stat()  # an index of a file that has just changed is compared with all its words
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 10**10))
    with embmap.open(path, index="memory") as file:
        file.build_index()
    chunks = embmap.cvc.write(folder / "chunks.cvc", vectors, chunk_rows=5000, compression="fp16")
    return path, chunks


def forget(path):
    """Drop a file from memory, or skip the test."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    drop_from_cache(path)
    pages = cached_pages(path)
    if pages is None or pages.any():
        pytest.skip("this system does not drop the pages of a file, or does not say so")


def after(path, code, *, rows=(0,), access=""):
    """Return the pages in memory after a process has run code on a cold file, and its faults."""
    index = path.with_name(path.name + ".embx")
    every = [each for each in (path, index) if each.exists()]
    for each in every:
        forget(each)
    arguments = [str(path), access, ",".join(map(str, rows)), code]
    done = subprocess.run(
        [sys.executable, "-c", USE, *arguments], check=True, capture_output=True, text=True
    )
    return [cached_pages(each) for each in every], int(done.stdout)


def pages_of(path, rows):
    """Return the numbers of the pages of rows of a file that ends with its float32 vectors."""
    start = path.stat().st_size - N_ROWS * DIM * 4
    offsets = start + np.asarray(rows) * DIM * 4
    return np.unique(np.concatenate((offsets // PAGE, (offsets + DIM * 4 - 1) // PAGE)))


def test_single_rows_read_their_own_pages(dense):
    path, chunks = dense
    rows = SOME[:20].tolist()
    (opened, _), _ = after(path, "")
    (data, index), _ = after(path, "for row in rows: file.vectors[row].sum()", rows=rows)
    assert data[pages_of(path, rows)].all()
    assert data.sum() <= opened.sum() + 2 * len(rows)
    assert not index.any()
    (opened,), _ = after(chunks, "")
    (data,), _ = after(chunks, "for row in rows: file.vectors[row]", rows=rows)
    assert opened.sum() < data.sum() <= opened.sum() + 2 * len(rows)


def test_a_batch_reads_little_more_than_its_rows(dense):
    path, chunks = dense
    (data, _), faults = after(path, "file.vectors.take(rows)", rows=SOME)
    assert data[pages_of(path, SOME)].all()
    # A row takes up to two pages, and up to two between it and the next row are read as well.
    assert data.sum() <= 4 * SOME.size
    # Without asking for all rows first, each of them would be a fault that waits for the disk.
    assert faults < SOME.size / 4
    _, faults = after(chunks, "file.vectors.take(rows)", rows=SOME)
    assert faults < SOME.size / 4


def test_a_batch_of_words_asks_for_the_index_and_the_rows(dense):
    path, _ = dense
    code = "file.batch([f'word{row * 7919 % 20_000}' for row in rows])"
    (data, _), faults = after(path, code, rows=SOME)
    assert data[pages_of(path, SOME)].all()
    assert faults < SOME.size / 2


def test_the_first_word_reads_six_pages(dense):
    path, _ = dense
    opened, _ = after(path, "")
    found, _ = after(path, "file['word7'].sum()")
    assert sum(each.sum() for each in found) - sum(each.sum() for each in opened) <= 6


@pytest.mark.parametrize(
    "code",
    [
        "for _, block in file.vectors.blocks(): block.sum()",
        "np.asarray(file.vectors).sum()",
        "for i in range(0, len(file), 100): file.vectors[i : i + 100].sum()",
        "list(file)",
        "file.verify()",
    ],
)
def test_what_is_read_in_order_is_read_ahead(dense, code):
    path, _ = dense
    _, plain = after(path, code, access="normal")
    (data, _), faults = after(path, code)
    # Up to the first window, and the pages of headers.
    assert faults <= 2 * plain + 20
    assert faults < data.sum() / 4


def test_a_slice_reads_its_own_pages(dense):
    path, _ = dense
    (opened, _), _ = after(path, "")
    (data, _), _ = after(path, "file.vectors[5000:5010].sum(); file.vectors[300:400].sum()")
    asked = pages_of(path, np.arange(300, 400)).size + pages_of(path, np.arange(5000, 5010)).size
    assert data.sum() - opened.sum() <= asked


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_and_a_pickled_file_use_both_maps(dense):
    path, _ = dense
    with embmap.open(path) as file:
        whole, some = np.asarray(file.vectors), file.vectors.take(SOME)
        expected = [whole[5000:6000].sum().item(), some.sum().item()]

        def use(opened):
            again = opened.vectors[5000:6000].sum().item(), opened.vectors.take(SOME).sum().item()
            return list(again)

        assert forked(lambda: use(file)) == expected
        with pickle.loads(pickle.dumps(file)) as copied:
            assert use(copied) == expected


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_only_what_is_not_in_memory_is_asked_for(dense, monkeypatch, backend):
    path, _ = dense
    asked = []
    advise = getattr(os, "posix_fadvise", None)
    forget(path)
    monkeypatch.setattr(os, "posix_fadvise", lambda *some: asked.append(some) or advise(*some))
    with embmap.open(path, backend=backend) as file:
        cold = file.vectors.take(SOME)
        assert asked
        asked.clear()
        assert np.array_equal(file.vectors.take(SOME), cold)
        assert not asked
    forget(path)
    with embmap.open(path, backend=backend, access="normal") as file:
        asked.clear()
        assert np.array_equal(file.vectors.take(SOME), cold)
        assert not asked
