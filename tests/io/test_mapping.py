"""The bytes of a file behind all back ends."""

import errno
import mmap
import os
import sys

import numpy as np
import pytest

from embmap.errors import TruncatedError, UnsupportedError
from embmap.io.backends import open_mapped
from embmap.io.cached_reads import NotInMemoryError
from embmap.io.mapping import BytesFile, expand_ranges


def opened(path, backend):
    try:
        return open_mapped(path, backend=backend)
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["mmap", "read", "cached"])
def open_file(request, tmp_path):
    def opener(data):
        path = tmp_path / "data.bin"
        path.write_bytes(data)  # which leaves it in memory
        return opened(path, request.param)

    return opener


def test_arrays_are_plain_read_only_and_equal_the_bytes(open_file):
    data = np.arange(100, dtype="<f4").tobytes()
    file = open_file(data)
    array = file.array(40, "<f4", (5, 6))
    assert type(array) is np.ndarray
    assert not array.flags.writeable
    assert np.array_equal(array, np.arange(10, 40, dtype="<f4").reshape(5, 6))


def test_unaligned_data_is_handed_out_and_says_so(open_file):
    file = open_file(b"x" + np.arange(4, dtype="<f8").tobytes())
    array = file.array(1, "<f8", 4)
    assert array.tolist() == [0, 1, 2, 3]
    assert array.flags.aligned == (file.backend != "mmap")


@pytest.mark.parametrize(
    ("offset", "shape"), [(97, 4), (-1, 1), (0, 101), (0, (2**40, 2**40)), (0, -1), (2**63, 1)]
)
def test_no_range_leaves_the_file(open_file, offset, shape):
    file = open_file(bytes(100))
    with pytest.raises(TruncatedError):
        file.array(offset, np.uint8, shape)


def test_read_returns_exactly_the_bytes_asked_for(open_file):
    file = open_file(bytes(range(100)))
    assert file.read(10, 5) == bytes(range(10, 15))
    assert file.read(100, 0) == b""
    with pytest.raises(TruncatedError) as caught:
        file.read(99, 2)
    assert caught.value.offset == 99
    assert str(file.path) in str(caught.value)


def test_gather_joins_ranges(open_file):
    file = open_file(bytes(range(100)))
    found = file.gather(np.array([5, 50, 0]), np.array([2, 0, 3]))
    assert found.tolist() == [5, 6, 0, 1, 2]


def test_an_empty_file_opens(open_file):
    file = open_file(b"")
    assert file.nbytes == 0
    assert file.read(0, 0) == b""
    file.check_whole()
    with pytest.raises(TruncatedError):
        file.read(0, 1)


@pytest.mark.parametrize("access", ["auto", "normal", "sequential"])
@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_advice_changes_no_bytes(tmp_path, access, backend):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(256)) * 10_000)
    file = open_mapped(path, backend=backend, access=access)
    file.prefetch(np.array([5000, 0, 2_000_000]), np.array([10, 70_000, 1 << 40]))
    file.prefetch(np.array([], np.int64), 5)
    file.lacks(np.array([0, 2_000_000]))
    assert file.read(5000, 3) == bytes([136, 137, 138])
    for offset, nbytes in ((100_000, 50_000), (150_000, 50_000), (0, 2_000_000), (7, 20)):
        expected = np.arange(offset, offset + nbytes).astype(np.uint8)
        assert file.read(offset, nbytes) == expected.tobytes()
        for find in (file.array, file.scattered):
            found = find(offset, np.uint8, nbytes)
            assert not found.flags.writeable
            assert np.array_equal(found, expected)


def test_advice_works_where_the_system_has_none(tmp_path, monkeypatch):
    for name in ("MADV_RANDOM", "MADV_NORMAL", "MADV_SEQUENTIAL"):
        monkeypatch.delattr(mmap, name, raising=False)
    for name in ("posix_fadvise", "RWF_NOWAIT"):
        monkeypatch.delattr(os, name, raising=False)
    path = tmp_path / "data.bin"
    path.write_bytes(b"abc" * 1_000_000)
    for backend in ("mmap", "read"):
        for access in ("auto", "normal", "sequential"):
            file = open_mapped(path, backend=backend, access=access)
            assert not file.lacks(np.array([0, 5]))
            file.prefetch(np.array([0, 5]), 10)
            assert file.read(0, 30_000) == b"abc" * 10_000
            assert file.gather(np.arange(100), np.ones(100, int)).tobytes() == b"abc" * 33 + b"a"


def test_positional_reads_go_on_after_short_ones(tmp_path, monkeypatch):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(200)))
    file = open_mapped(path, backend="read")
    whole = os.pread
    monkeypatch.setattr(
        "embmap.io.positional_reads.pread", lambda fd, n, offset: whole(fd, min(n, 7), offset)
    )
    assert file.read(3, 150) == bytes(range(3, 153))


def test_what_is_not_in_memory_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(200)))
    file = opened(path, "cached")
    preadv = os.preadv
    places, sizes = np.array([3, 150]), np.array([5, 10])

    def first_half(number, buffers, *rest):
        return preadv(number, [memoryview(buffers[0])[: len(buffers[0]) // 2]], *rest)

    def nothing(*_):
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", first_half)  # what is short is read on
    assert file.read(0, 100) == bytes(range(100))
    assert file.gather(places, sizes).tolist() == [*range(3, 8), *range(150, 160)]
    monkeypatch.setattr(os, "preadv", nothing)
    with pytest.raises(BlockingIOError):
        file.read(0, 100)
    with pytest.raises(BlockingIOError):
        file.gather(places, sizes)

    def not_cached(number, buffers, offset, flags=0):
        if flags:
            raise BlockingIOError
        return preadv(number, buffers, offset)

    monkeypatch.setattr(os, "preadv", not_cached)
    with pytest.raises(NotInMemoryError) as absent:
        file.gather(places, sizes)
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.perf_counter", iter([0.0, 0.0008, 0.0, 0.0006]).__next__)
    absent.value.load()
    # The disk took 0.4 ms for each: two ranges are waited for, and eighty are not.
    assert file.gather(places, sizes).tolist() == [*range(3, 8), *range(150, 160)]
    with pytest.raises(NotInMemoryError):
        file.gather(np.arange(80), np.ones(80, int))
    now[0] += 6  # that was long ago
    with pytest.raises(NotInMemoryError):
        file.read(5, 2)
    now[0] -= 6
    monkeypatch.setattr("time.perf_counter", iter([0.0, 3.0, 0.0, 0.0]).__next__)
    assert file.read(5, 2) == bytes([5, 6])  # for the last time: it took three seconds
    with pytest.raises(NotInMemoryError):
        file.read(5, 2)
    monkeypatch.setattr(os, "preadv", preadv)
    absent.value.load()  # what is in memory says nothing about the disk
    monkeypatch.setattr(os, "preadv", not_cached)
    with pytest.raises(NotInMemoryError):
        file.read(5, 2)
    monkeypatch.undo()
    assert file.gather(places, sizes).tolist() == [*range(3, 8), *range(150, 160)]
    with open(path, "rb") as handle:  # the system's own answer, where it drops what it is told to
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for _ in range(3):
        try:
            assert file.read(7, 3) == bytes([7, 8, 9])
            assert file.gather(places, sizes).tolist() == [*range(3, 8), *range(150, 160)]
        except NotInMemoryError as absent:
            absent.load()
        else:
            break
    else:
        pytest.fail("what was loaded is still not in memory")


def test_systems_that_cannot_tell_what_is_in_memory_are_told_apart(tmp_path, monkeypatch):
    path = tmp_path / "data.bin"
    path.write_bytes(b"abc")

    def not_here(*_):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", not_here, raising=False)
    with pytest.raises(UnsupportedError):
        open_mapped(path, backend="cached")
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    with pytest.raises(UnsupportedError, match="only Linux"):
        open_mapped(path, backend="cached")


def test_the_fallback_without_pread_reads_the_same(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(200)))
    program = (
        "import os, sys; del os.pread\n"
        "from embmap.io.backends import open_mapped\n"
        "assert open_mapped(sys.argv[1], backend='read').read(5, 3) == bytes([5, 6, 7])"
    )
    status = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program, str(path)])
    assert status == 0


def test_a_file_that_shrank_raises(open_file):
    file = open_file(bytes(10_000))
    os.truncate(file.path, 5000)
    with pytest.raises(TruncatedError, match="shrank"):
        file.check_whole()
    if file.backend != "mmap":
        with pytest.raises(TruncatedError, match="shrank"):
            file.read(0, 10_000)
        with pytest.raises(TruncatedError, match="shrank"):
            file.gather(np.array([0, 4990]), np.array([10, 20]))


def test_a_large_file_that_shrank_raises_whatever_was_read_of_it(tmp_path):
    path = tmp_path / "data.bin"
    for used in (False, True):
        path.write_bytes(bytes(1 << 21))
        file = open_mapped(path)
        if used:
            assert not file.array(0, np.uint8, 1 << 21).any()
        os.truncate(path, 5000)
        file.prefetch(np.array([0, 1 << 20]), 1 << 20)
        assert file.array(0, np.uint8, 1 << 21)[:5000].tolist() == [0] * 5000
        with pytest.raises(TruncatedError, match="shrank"):
            file.check_whole()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")
def test_both_maps_of_a_large_file_outlive_it_and_leave_nothing_open(tmp_path):
    path = tmp_path / "data.bin"
    data = np.arange(1 << 20, dtype="<u2")
    path.write_bytes(data.tobytes())
    before = len(os.listdir("/proc/self/fd"))
    file = open_mapped(path)
    ordered, scattered = file.array(0, "<u2", data.size), file.scattered(0, "<u2", data.size)
    assert not np.shares_memory(ordered, scattered)
    del file
    assert np.array_equal(ordered, data)
    assert np.array_equal(scattered, data)
    del ordered, scattered
    assert len(os.listdir("/proc/self/fd")) == before


def test_views_outlive_the_file_object(open_file):
    array = open_file(bytes(range(100))).array(0, np.uint8, 100)
    assert array.sum() == sum(range(100))


def test_only_regular_files_open(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_mapped(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_mapped(tmp_path / "missing")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UnsupportedError):
            open_mapped(tmp_path / "pipe")


@pytest.mark.parametrize("wrong", [{"backend": "mapp"}, {"access": "fast"}])
def test_unknown_choices_are_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="must be one of"):
        open_mapped(tmp_path, **wrong)


def test_bytes_in_memory_have_the_same_face():
    file = BytesFile(bytes(range(100)))
    assert file.array(10, "<u2", 2).tolist() == [10 + 11 * 256, 12 + 13 * 256]
    assert file.zero_copy
    with pytest.raises(TruncatedError):
        file.read(99, 2)


def test_expanded_ranges_list_the_numbers_of_ranges():
    assert expand_ranges(np.array([10, 3, 7]), np.array([2, 0, 3])).tolist() == [10, 11, 7, 8, 9]
