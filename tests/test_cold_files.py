"""Which pages of a file are read from a disk, and when embmap asks for them.

Pages are counted after another process has used the file: a map keeps its own pages in memory.
"""

import json
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
import json, os, sys
import embmap
advise, asked = os.posix_fadvise, set()
def note(descriptor, start, nbytes, advice):
    if os.path.samestat(os.fstat(descriptor), os.stat(sys.argv[1])):
        asked.update(range(start // 4096, -(-(start + nbytes) // 4096)))
    advise(descriptor, start, nbytes, advice)
os.posix_fadvise = note
file = embmap.open(sys.argv[1])
rows = json.loads(sys.argv[2])
exec(sys.argv[3])
print(json.dumps(sorted(asked)))
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


def after(path, code, *, rows=(0,)):
    """Return the pages in memory after a process ran code on a cold file, and what it asked for."""
    index = path.with_name(path.name + ".embx")
    every = [each for each in (path, index) if each.exists()]
    for each in every:
        forget(each)
    arguments = [str(path), json.dumps(np.asarray(rows).tolist()), code]
    done = subprocess.run(
        [sys.executable, "-c", USE, *arguments], check=True, capture_output=True, text=True
    )
    return [cached_pages(each) for each in every], set(json.loads(done.stdout))


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
    (data, _), asked = after(path, "file.vectors.take(rows)", rows=SOME)
    assert data[pages_of(path, SOME)].all()
    # A row takes up to two pages, and up to two between it and the next row are read as well.
    assert data.sum() <= 4 * SOME.size
    assert asked.issuperset(pages_of(path, SOME).tolist())
    (data,), asked = after(chunks, "file.vectors.take(rows)", rows=SOME)
    assert SOME.size / 2 < len(asked) <= data.sum()


def test_a_batch_of_words_asks_for_the_index_and_the_rows(dense):
    path, _ = dense
    code = "file.batch([f'word{row * 7919 % 20_000}' for row in rows])"
    (data, _), asked = after(path, code, rows=SOME)
    assert data[pages_of(path, SOME)].all()
    assert asked.issuperset(pages_of(path, SOME).tolist())


def test_the_first_word_reads_six_pages(dense):
    path, _ = dense
    opened, _ = after(path, "")
    found, _ = after(path, "file['word7'].sum()")
    assert sum(each.sum() for each in found) - sum(each.sum() for each in opened) <= 6


def flags_of_map(array):
    """Return what the system has been told about the map that an array lies in."""
    address, inside = array.__array_interface__["data"][0], False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first = line.split()[0]
            if not first.endswith(":"):
                start, stop = (int(end, 16) for end in first.split("-"))
                inside = start <= address < stop
            elif inside and first == "VmFlags:":
                return line.split()[1:]
    return pytest.skip("this system does not describe maps")


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs Linux")
def test_ranges_lie_in_a_map_that_is_read_ahead_and_rows_do_not(dense):
    path, _ = dense
    with embmap.open(path) as file:
        assert "rr" in flags_of_map(file.vectors[7])
        assert "rr" in flags_of_map(file["word7"])
        ranges = [np.asarray(file.vectors), file.vectors[100:200], next(file.vectors.blocks())[1]]
        for rows in ranges:
            assert "rr" not in flags_of_map(rows)
    with embmap.open(path, access="normal") as file:
        assert "rr" not in flags_of_map(file.vectors[7])


def test_verify_reads_everything(dense):
    path, _ = dense
    (data, index), _ = after(path, "assert file.verify().ok")
    assert data.all()
    assert index.all()


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
