"""Matrices for other libraries and processes: DLPack over copy-on-write maps, pickles by path."""

import mmap
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import embmap
from embmap.finalfusion import quantize
from embmap.io.backends import open_mapped
from embmap.vectors.dense import dense_matrix

WORDS = [f"w{i}" for i in range(40)]
ROWS = np.random.default_rng(3).standard_normal((40, 8)).astype(np.float32)
HISTORY = np.cumsum(np.ones((3, 40, 4)), axis=0).astype(np.int16)
PAGE = mmap.ALLOCATIONGRANULARITY


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, ROWS)


def replace(path):
    """Put another file of the same size and times at a path."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


def test_what_a_consumer_writes_reaches_neither_the_file_nor_another_consumer(path):
    before = path.read_bytes()
    with embmap.open(path) as file:
        first, second = np.from_dlpack(file.vectors), np.from_dlpack(file.vectors)
        assert not first.flags.owndata
        first += 1
        assert np.array_equal(second, ROWS)
        assert np.array_equal(file["w3"], ROWS[3])
    assert np.array_equal(first, ROWS + 1)
    assert path.read_bytes() == before


def test_an_export_outlives_its_file_and_the_path(path):
    with embmap.open(path) as file:
        handed = np.from_dlpack(file.vectors)
    del file
    path.unlink()
    assert np.array_equal(handed, ROWS)


def test_only_the_rows_own_pages_are_mapped(tmp_path):
    path = tmp_path / "rows.bin"
    data = np.arange(5 * PAGE, dtype=np.uint8)
    path.write_bytes(data.tobytes())
    for offset in (0, 1, PAGE - 1, PAGE, 3 * PAGE + 7):
        rows = dense_matrix(open_mapped(path), offset, (1, PAGE), "u1")
        assert np.array_equal(np.from_dlpack(rows)[0], data[offset : offset + PAGE])


def test_a_replaced_or_removed_file_is_refused_and_copied_on_request(path):
    with embmap.open(path) as file:
        replace(path)
        with pytest.raises(embmap.FormatError, match="replaced or removed"):
            file.vectors.__dlpack__()
        path.unlink()
        with pytest.raises(embmap.FormatError, match="replaced or removed"):
            np.from_dlpack(file.vectors)
        assert np.array_equal(np.from_dlpack(file.vectors, copy=True), ROWS)


def test_a_truncated_file_is_refused(path):
    with embmap.open(path) as file:
        os.truncate(path, 100)
        for copy in (None, True):
            with pytest.raises(embmap.TruncatedError, match="shrank"):
                np.from_dlpack(file.vectors, copy=copy)


def test_rows_that_are_not_aligned_are_copied(tmp_path):
    path = tmp_path / "rows.bin"
    path.write_bytes(b"xyz" + ROWS.tobytes())
    rows = dense_matrix(open_mapped(path), 3, ROWS.shape, ROWS.dtype)
    handed = np.from_dlpack(rows)
    assert handed.flags.aligned
    assert np.array_equal(handed, ROWS)
    with pytest.raises(BufferError, match="aligned"):
        np.from_dlpack(rows, copy=False)


class OfVersion:
    """A producer whose consumer knows DLPack up to a version."""

    def __init__(self, matrix, version, **options):
        self.matrix, self.options = matrix, {"max_version": version, **options}

    def __dlpack__(self, **_):
        return self.matrix.__dlpack__(**self.options)

    def __dlpack_device__(self):
        return self.matrix.__dlpack_device__()


@pytest.mark.parametrize("offset", [0, 4, 64])
def test_a_consumer_without_versions_gets_rows_at_a_multiple_of_64_bytes(tmp_path, offset):
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(offset) + ROWS.tobytes())
    rows = dense_matrix(open_mapped(path), offset, ROWS.shape, ROWS.dtype)
    handed = np.from_dlpack(OfVersion(rows, None))
    assert np.array_equal(handed, ROWS)
    assert handed.__array_interface__["data"][0] % 64 == 0
    if offset == 4:
        with pytest.raises(BufferError, match="aligned"):
            np.from_dlpack(OfVersion(rows, None, copy=False))
        newer = np.from_dlpack(OfVersion(rows, (1, 0), copy=False))
        assert newer.__array_interface__["data"][0] % 64 == 4


def test_other_devices_and_streams_are_refused(path):
    with embmap.open(path) as file:
        with pytest.raises(BufferError, match="dl_device must be"):
            file.vectors.__dlpack__(dl_device=(2, 0))
        with pytest.raises(BufferError, match="stream must be"):
            file.vectors.__dlpack__(stream=1)
        assert file.vectors.__dlpack__(dl_device=(1, 0), max_version=(1, 0)) is not None


def test_every_matrix_of_a_file_pickles_by_path(tmp_path):
    codes = quantize(ROWS, 2, k=4, iterations=1)
    product = embmap.finalfusion.write(tmp_path / "pq.fifu", WORDS, None, quantized=codes)
    columns = {"a": ROWS, "b": ROWS[:, :3].astype("i4")}
    chunks = embmap.cvc.write_columns(tmp_path / "a.cvc", columns)
    walks = embmap.open(embmap.dwe.write(tmp_path / "a.dwe", HISTORY, scale=0.5))
    found = [
        embmap.open(product).vectors,
        embmap.open(product).vectors.codes,
        *embmap.open(chunks).columns.values(),
        walks.vectors,
        walks.at(1).vectors,
        walks.at(1).vectors.quantized,
    ]
    for matrix in found:
        again = pickle.loads(pickle.dumps(matrix))
        assert type(again) is type(matrix)
        assert (again.shape, again.dtype) == (matrix.shape, matrix.dtype)
        assert np.asarray(again).tobytes() == np.asarray(matrix).tobytes()


def test_a_part_of_a_matrix_is_not_pickled_as_the_whole(tmp_path):
    codes = quantize(ROWS, 2, k=4, iterations=1)
    path = embmap.finalfusion.write(tmp_path / "pq.fifu", WORDS, None, quantized=codes)
    part = embmap.open(path).vectors.select(np.arange(3))
    assert np.asarray(part).shape == (3, 8)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(part)


def test_a_replaced_file_is_refused_when_a_matrix_is_unpickled(path):
    with embmap.open(path) as file:
        pickled = [pickle.dumps(file.vectors), pickle.dumps(file)]
    replace(path)
    os.utime(path, (1, 1))
    for data in pickled:
        with pytest.raises(embmap.FormatError, match="changed since it was pickled"):
            pickle.loads(data)
    path.unlink()
    for data in pickled:
        with pytest.raises(FileNotFoundError):
            pickle.loads(data)


def test_a_matrix_pickles_after_its_file_was_closed(path):
    with embmap.open(path, backend="read") as file:
        rows = file.vectors
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(rows))), ROWS)


LARGER = """
import sys
import numpy as np
from embmap.io.backends import open_mapped
from embmap.vectors.dense import dense_matrix

rows = dense_matrix(open_mapped(sys.argv[1]), 0, (1 << 30, 256), "f4")
handed = np.from_dlpack(rows)
handed[12345] = 1
handed[-1, -1] += 2
assert not rows.row(12345).any() and not rows.row(len(rows) - 1).any()
print(handed.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems promise no less memory")
def test_a_file_larger_than_memory_is_exported(tmp_path):
    path = tmp_path / "sparse.bin"
    with path.open("wb") as out:
        try:
            out.truncate(1 << 40)
        except OSError:
            pytest.skip("this file system has no files of a terabyte")
    ran = subprocess.run(
        [sys.executable, "-c", LARGER, path], capture_output=True, text=True, timeout=120
    )
    assert (ran.stdout, ran.stderr) == (f"{1 << 40}\n", "")
