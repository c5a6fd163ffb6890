"""The lazy matrices: what numpy does with an array, they do without reading it."""

import numpy as np
import pytest

from embmap.errors import FormatError, TruncatedError
from embmap.io.backends import open_mapped
from embmap.io.mapping import BytesFile
from embmap.vectors.dense import dense_matrix
from embmap.vectors.product import ProductMatrix
from embmap.vectors.segments import normalize, segment_sums

ROWS, COLUMNS = 37, 5


def dense(tmp_path, backend, dtype="<f4", shift=4):
    values = (np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) - 60).astype(dtype)
    path = tmp_path / "matrix.bin"
    path.write_bytes(b"x" * shift + values.tobytes())
    return dense_matrix(open_mapped(path, backend=backend), shift, (ROWS, COLUMNS), dtype), values


def quantized(tmp_path, backend):
    rng = np.random.default_rng(0)
    q, k, part = 3, 11, 4
    codes = rng.integers(0, k, (ROWS, q), np.uint8)
    codebooks = rng.standard_normal((q, k, part), np.float32)
    projection = rng.standard_normal((q * part, q * part), np.float32)
    norms = rng.random(ROWS, np.float32)
    parts = [codes, codebooks, projection, norms]
    path = tmp_path / "quantized.bin"
    path.write_bytes(b"".join(part.tobytes() for part in parts))
    file = open_mapped(path, backend=backend)
    ends = np.cumsum([part.nbytes for part in parts]).tolist()
    matrix = ProductMatrix(
        dense_matrix(file, 0, codes.shape, "u1"),
        dense_matrix(file, ends[0], (q * k, part), "<f4"),
        k,
        dense_matrix(file, ends[1], projection.shape, "<f4"),
        dense_matrix(file, ends[2], (ROWS, 1), "<f4"),
        {"path": path},
    )
    expected = np.empty((ROWS, q * part), np.float32)
    for i in range(ROWS):
        row = np.concatenate([codebooks[j, codes[i, j]] for j in range(q)])
        expected[i] = (projection @ row) * norms[i]
    return matrix, expected


@pytest.fixture(params=["dense", "unaligned", "quantized"])
def case(request, tmp_path, backend):
    if request.param == "quantized":
        matrix, values = quantized(tmp_path, backend)
        return matrix, values, 1e-5
    matrix, values = dense(tmp_path, backend, shift=4 if request.param == "dense" else 3)
    return matrix, values, 0


INDICES = [
    0,
    -1,
    np.int32(5),
    slice(None),
    slice(3, 9),
    slice(9, 3),
    slice(-4, None),
    slice(None, None, -3),
    slice(30, 100),
    [],
    [0],
    [5, -5, 5, 36, 0],
    np.array([3, 1, 2], np.uint8),
    np.arange(ROWS) % 3 == 0,
    (4, 2),
    (4, slice(1, 3)),
    (slice(2, 5), 1),
    ([1, 2], slice(None, None, -1)),
    (),
]


@pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index)[:20])
def test_indexing_is_numpys(case, index):
    matrix, values, tolerance = case
    expected = values[np.array(index, np.intp) if isinstance(index, list) else index]
    found = matrix[index]
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, [0, ROWS], [-ROWS - 1], [True], [0.5], [[0]]])
def test_rows_that_do_not_exist_are_refused(case, index):
    with pytest.raises(IndexError):
        case[0][index]


def test_take_writes_to_out(case):
    matrix, values, tolerance = case
    out = np.zeros((3, values.shape[1]), matrix.dtype)
    assert matrix.take([7, 0, 7], out) is out
    np.testing.assert_allclose(out, values[[7, 0, 7]], rtol=tolerance, atol=tolerance)
    strided = np.zeros((3, 2 * values.shape[1]), matrix.dtype)[:, ::2]
    matrix.take([7, 0, 7], strided)
    np.testing.assert_allclose(strided, values[[7, 0, 7]], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "out", [np.zeros((2, 5), "f4"), np.zeros((3, 4), "f4"), np.zeros((3, 5), "f8")]
)
def test_an_out_that_does_not_fit_is_refused(tmp_path, backend, out):
    matrix, _ = dense(tmp_path, backend)
    with pytest.raises(ValueError, match="out must be"):
        matrix.take([0, 1, 2], out)
    fitting = np.zeros((3, 5), "f4")
    fitting.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        matrix.take([0, 1, 2], fitting)


@pytest.mark.parametrize("rows_per_block", [None, 1, 7, 100])
def test_blocks_cover_every_row_once(case, rows_per_block):
    matrix, values, tolerance = case
    blocks = list(matrix.blocks(rows_per_block))
    assert [start for start, _ in blocks] == list(range(0, ROWS, rows_per_block or ROWS))
    joined = np.concatenate([block for _, block in blocks])
    np.testing.assert_allclose(joined, values, rtol=tolerance, atol=tolerance)
    rows = np.stack(list(matrix))
    np.testing.assert_allclose(rows, values, rtol=tolerance, atol=tolerance)
    with pytest.raises(ValueError, match="positive"):
        next(matrix.blocks(0))


def test_asarray_is_the_whole_matrix(case):
    matrix, values, tolerance = case
    np.testing.assert_allclose(np.asarray(matrix), values, rtol=tolerance, atol=tolerance)
    assert np.asarray(matrix, np.float64).dtype == np.float64
    assert np.array(matrix, copy=True).flags.writeable
    if matrix.zero_copy:
        assert not np.asarray(matrix, copy=False).flags.writeable
    else:
        with pytest.raises(ValueError, match="copy"):
            np.asarray(matrix, copy=False)


def test_zero_copy_tells_the_truth(tmp_path):
    for backend in ("mmap", "read"):
        matrix, _ = dense(tmp_path, backend)
        shares = np.shares_memory(matrix[2:4], np.asarray(matrix))
        assert matrix.zero_copy == shares
        assert matrix.zero_copy == (backend == "mmap")


def test_sizes_and_repr_read_nothing(case):
    matrix, values, _ = case
    assert (len(matrix), matrix.ndim, matrix.shape) == (ROWS, 2, values.shape)
    assert matrix.nbytes == values.nbytes
    assert "not read" in repr(matrix)


def test_prefetch_is_only_a_hint(case):
    matrix, _, _ = case
    matrix.prefetch()
    matrix.prefetch(np.array([0, 1, 30, 5]))
    matrix.prefetch(np.empty(0, np.int64))


def test_a_sparse_gather_by_reads_keeps_the_order(tmp_path):
    values = np.arange(4000 * 300, dtype="<f4").reshape(4000, 300)
    path = tmp_path / "matrix.bin"
    path.write_bytes(values.tobytes())
    matrix = dense_matrix(open_mapped(path, backend="read"), 0, values.shape, "<f4")
    rows = np.random.default_rng(1).integers(0, 4000, 3000)
    assert np.array_equal(matrix.take(rows), values[rows])
    matrix.prefetch(rows)


def test_a_matrix_outside_its_file_is_refused():
    with pytest.raises(TruncatedError):
        dense_matrix(BytesFile(bytes(100)), 1, (5, 5), "<f4")
    with pytest.raises(TruncatedError):
        dense_matrix(BytesFile(bytes(100)), 0, (2**62, 2**62), "<f4")


def test_a_code_without_a_centroid_is_refused_and_named(tmp_path, backend):
    matrix, _ = quantized(tmp_path, backend)
    path = tmp_path / "quantized.bin"
    data = bytearray(path.read_bytes())
    data[3 * 8 + 1] = 11
    path.write_bytes(data)
    file = open_mapped(path, backend=backend)
    matrix.codes = dense_matrix(file, 0, (ROWS, 3), "u1")
    for index in (slice(None), [8]):
        with pytest.raises(FormatError, match="a code is 11, but there are 11 centroids"):
            matrix[index]
    with pytest.raises(FormatError, match="row 8"):
        matrix[3:20]
    assert matrix[0].shape == (12,)


def test_segment_sums_add_rows_in_order(case):
    matrix, values, _ = case
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 6, 50)
    rows = rng.integers(0, ROWS, counts.sum())
    sums = segment_sums(matrix, rows, counts)
    parts = np.split(rows, np.cumsum(counts)[:-1])
    for found, part in zip(sums, parts, strict=True):
        expected = np.zeros(values.shape[1], np.float32)
        for row in part:
            expected += matrix[int(row)]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_segments_larger_than_a_block_are_summed_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("embmap.vectors.segments._BLOCK_NBYTES", 64)
    matrix, values = dense(tmp_path, "read")
    rows, counts = np.arange(ROWS), np.array([30, 0, 7])
    sums = segment_sums(matrix, rows, counts)
    assert sums.tolist() == [values[:30].sum(0).tolist(), [0] * 5, values[30:].sum(0).tolist()]


def test_wider_rows_are_summed_in_their_own_type(tmp_path):
    matrix, values = dense(tmp_path, "mmap", "<f8")
    sums = segment_sums(matrix, np.arange(ROWS), np.array([ROWS]))
    assert sums.dtype == np.float64
    assert sums[0].tolist() == values.sum(0).tolist()


def test_normalize_gives_unit_length_and_keeps_zeros():
    vectors = np.array([[3, 4], [0, 0], [1e-30, 0]], np.float32)
    lengths = normalize(vectors)
    assert lengths[:2].tolist() == [5, 0]
    assert np.allclose(vectors[:2], [[0.6, 0.8], [0, 0]])
