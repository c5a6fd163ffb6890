"""What a DWE file keeps decoded and what it reads of its bytes; how it is decoded."""

import gc
import os
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from embmap.codecs import kernels
from embmap.formats.dwe import groups as groups_module
from embmap.io import positional_reads
from tests.conformance.generated_dwe import (
    each_layout,
    queries_are,
    same,
    scaled,
    shared_chunk,
    steps,
    written,
)
from tests.kernels import needs_numba
from tests.reference import dwe as reference

pytestmark = pytest.mark.slow


@each_layout
@pytest.mark.parametrize("cache_nbytes", [0, 1, 47, 48, 200, 1000, 1 << 20])
def test_a_cache_of_any_size_gives_the_same_answers(path, backend, layout, cache_nbytes):
    values = steps(5, 12, 4)
    written(path, values, 0.5, 3, layout)
    numbers = scaled(values, 0.5)
    rng = np.random.default_rng(cache_nbytes)
    with embmap.open(path, backend=backend) as f:
        assert f.cache_nbytes > 0
        f.cache_nbytes = cache_nbytes
        assert f.cache_nbytes == cache_nbytes
        for _ in range(40):
            t, row = int(rng.integers(5)), int(rng.integers(12))
            same(f[row], numbers[:, row])
            same(f.at(t).vectors.quantized[row], values[t, row])
            same(f.at(t).vectors[row // 2 : row], numbers[t, row // 2 : row])
            assert f.at(t).vectors.groups._cached_nbytes <= cache_nbytes
        queries_are(f, values, 0.5)


def kept_by(f, use):
    """How many bytes more are in use after some calls than before them."""
    gc.collect()
    tracemalloc.start()
    try:
        use(f)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


GROUP, DIM, MOST_KEPT = 25, 8, 160
BUDGET = MOST_KEPT * GROUP * DIM * 2


@pytest.fixture
def many_groups(path, best_kernel):
    """A file of 100 groups and 16 time steps, which keeps 160 of the 1600 pairs of them."""
    path.write_bytes(shared_chunk(steps(1, GROUP, DIM)[0], (16, 100 * GROUP, DIM), GROUP))
    with embmap.open(path) as f:
        f.cache_nbytes = BUDGET
        for t in (0, 15, 7):
            _ = f.at(t).vectors[0]
        _ = f[0]
        yield f


def over_all_groups(f):
    for group in range(100):
        _ = f[group * GROUP]


def with_one_step_of_the_latest(f):
    for group in range(100):
        _ = f[group * GROUP]
        if group % 3 == 0:  # what was used last is kept, and not what it was decoded with
            for earlier in range(max(group - 60, 0), group):
                _ = f.at(0).vectors[earlier * GROUP]


@pytest.mark.parametrize("use", [over_all_groups, with_one_step_of_the_latest])
def test_no_more_is_kept_than_the_budget(many_groups, use):
    kept = kept_by(many_groups, use)
    assert kept < BUDGET + 700 * MOST_KEPT  # the integers, and some bytes to find them again


def test_what_is_kept_is_not_decoded_again(many_groups, monkeypatch):
    f = many_groups
    expected = f[17 * GROUP], f.at(3).vectors[17 * GROUP + 5]
    monkeypatch.setattr(groups_module, "decode", None)
    same(f[17 * GROUP], expected[0])
    same(f.at(3).vectors[17 * GROUP + 5], expected[1])


def test_a_budget_that_is_lowered_is_kept_at_once(many_groups):
    def use(f):
        over_all_groups(f)
        f.cache_nbytes = 0
        _ = f[5 * GROUP]

    assert kept_by(many_groups, use) < BUDGET * 3 // 4
    many_groups.cache_nbytes = BUDGET
    same(many_groups[5 * GROUP], many_groups[0])


def test_a_step_read_by_blocks_takes_the_memory_of_blocks(path, best_kernel):
    n, rows_per_block = 1000 * GROUP, 20 * GROUP
    path.write_bytes(shared_chunk(steps(1, GROUP, DIM)[0], (16, n, DIM), GROUP))
    with embmap.open(path) as f:
        f.cache_nbytes = 0
        whole = np.asarray(f.at(7).vectors.quantized)
        same(f.at(7).vectors.quantized[::-7], whole[::-7])
        for step in (f.at(7).vectors.quantized, f.at(0).vectors):
            gc.collect()
            tracemalloc.start()
            try:
                sizes = [block.shape for _, block in step.blocks(rows_per_block)]
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert sizes == [(rows_per_block, DIM)] * 50
            assert peak < whole.nbytes


def test_a_query_takes_bounded_memory(path, monkeypatch):
    n, dim = 4000, 200
    path.write_bytes(shared_chunk(steps(1, 5, dim)[0], (16, n, dim), 5))
    with embmap.open(path) as f:
        expected = f.most_related(3, 7, 20), f.largest_changes(3, 20, 2, 2)
        limit = 1 << 18  # bytes decoded at once
        monkeypatch.setattr(groups_module, "_AT_ONCE", limit)
        gc.collect()
        tracemalloc.start()
        try:
            assert f.most_related(3, 7, 20) == expected[0]
            assert f.largest_changes(3, 20, 2, 2) == expected[1]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The products of all words and what ranks them, and a few copies of what is decoded at once.
    assert peak < 25 * 8 * n + 8 * limit < 2 * 2 * n * dim


# ---------------------------------------------------------------------------------- what is touched


@each_layout
def test_opening_touches_no_data(path, backend, layout):
    values = steps(4, 8, 5)
    data = bytearray(reference.encode(values, 0.5, 2, layout))
    parsed = reference.parse(bytes(data))
    first = 4 * parsed.meta_size
    if layout == "stream":
        first = len(data) - 2 * len(parsed.halfwords)
    data[first:] = np.random.default_rng(0).bytes(len(data) - first)
    path.write_bytes(data)
    with embmap.open(path, backend=backend, vocab=[*"abcdefgh"]) as f:
        assert f.shape == (8, 4, 5)
        assert (f.layout, list(f)) == (layout, [*"abcdefgh"])
        repr(f)
        repr(f.at(2).vectors)
        f.info()
        with pytest.raises(embmap.FormatError):
            f[range(8)]
        assert not f.verify().ok


@each_layout
def test_opening_reads_no_table_and_no_data(path, layout, monkeypatch):
    values = steps(4, 8, 5)
    data = reference.encode(values, 0.5, 2, layout)
    path.write_bytes(data)
    reads = []

    def counted(number, nbytes, offset):
        reads.append((offset, offset + nbytes))
        return os.pread(number, nbytes, offset)

    if not hasattr(os, "pread"):
        pytest.skip("there is no pread here")
    monkeypatch.setattr(positional_reads, "pread", counted)
    with embmap.open(path, backend="read") as f:
        (address,) = struct.unpack_from("<I", data, 16)
        assert max(end for _, end in reads) <= 4 * address
        assert sum(end - start for start, end in reads) < 200
        reads.clear()
        same(f.at(0).vectors.quantized[0], values[0, 0])  # one group of two time steps at the most
        assert sum(end - start for start, end in reads) < len(data) // 2


# ------------------------------------------------------------------------ kernels and threads alike


@needs_numba
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_steps=st.integers(2, 9),
    n_groups=st.integers(1, 6),
    group=st.integers(1, 4),
    dim=st.integers(1, 9),
    ragged=st.integers(0, 3),
    spread=st.sampled_from([0, 1, 30, 3000]),
)
def test_both_kernels_and_both_layouts_read_what_was_encoded(
    tmp_path_factory, seed, n_steps, n_groups, group, dim, ragged, spread
):
    n = n_groups * group
    values = steps(n_steps, n, dim, spread=spread, seed=seed)
    path = tmp_path_factory.getbasetemp() / "any.dwe"
    for layout in reference.LAYOUTS:
        if layout == "stream":
            values = values[:, : max(n - ragged, group)]
        path.write_bytes(reference.encode(values, 0.1, group, layout))
        for choice in ("numpy", "numba"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kernels, "CHOICE", choice)
                with embmap.open(path, backend="mmap" if seed % 2 else "read") as f:
                    same(
                        np.asarray(f.vectors),
                        np.ascontiguousarray(scaled(values, 0.1).swapaxes(0, 1)),
                    )
                    for t in range(n_steps):
                        same(np.asarray(f.at(t).vectors.quantized), values[t])


@pytest.mark.parametrize("n_workers", ["1", "2", "3"])
def test_any_number_of_threads_reads_the_same(path, backend, kernel, monkeypatch, n_workers):
    symbols = steps(1, 50, 6)[0]
    path.write_bytes(shared_chunk(symbols, (4, 251 * 50, 6), 50))
    monkeypatch.setenv("EMBMAP_THREADS", n_workers)
    with embmap.open(path, backend=backend) as f:
        found = np.asarray(f.at(1).vectors.quantized)
        assert 3 * found.size > 200_000  # where more than one thread sets to work
        same(found, np.tile(2 * symbols, (251, 1)))
        assert f.verify().problems == []


@needs_numba
def test_a_number_of_threads_that_is_none_is_said_so(path, monkeypatch):
    path.write_bytes(shared_chunk(steps(1, 50, 6)[0], (2, 700 * 50, 6), 50))
    monkeypatch.setattr(kernels, "CHOICE", "numba")
    with embmap.open(path) as f:
        monkeypatch.setenv("EMBMAP_THREADS", "many")
        with pytest.raises(ValueError, match="EMBMAP_THREADS"):
            np.asarray(f.at(0).vectors)
        monkeypatch.setenv("EMBMAP_THREADS", "1")
        assert np.asarray(f.at(0).vectors).shape == (35_000, 6)
