"""What holds for one matrix holds for all: one body of tests over every class of them."""

import copy
import pickle

import numpy as np
import pytest

import embmap
from embmap.client.matrix import RemoteMatrix
from embmap.conversion.rows import Converted
from embmap.formats.composed import FastTextRows, FastTextWords
from embmap.formats.cvc.chunks import ChunkedMatrix
from embmap.formats.cvc.halves import Halves
from embmap.formats.dwe.timestep import Timestep, Trajectories
from embmap.formats.parquet.table import ParquetMatrix, ParquetTable
from embmap.formats.text.reader import TextMatrix
from embmap.formats.word2vec.file import Word2VecMatrix
from embmap.io.backends import open_mapped
from embmap.subwords import FastTextIndexer
from embmap.vectors.bfloat import BFloat16Matrix
from embmap.vectors.dense import MappedMatrix, ReadMatrix, dense_matrix
from embmap.vectors.foreign import ForeignMatrix
from embmap.vectors.matrix import Matrix
from embmap.vectors.product import ProductMatrix
from embmap.vectors.streamed import ArrayMatrix, Leading, Scaled, Selected, Stacked
from embmap.words.given import vocabulary_of
from embmap.words.table import WordTable
from tests.judges import inputs

N, DIM, STEPS = 53, 6, 3
RNG = np.random.default_rng(8)
ROWS = RNG.standard_normal((N, DIM)).astype(np.float32)
WIDE = RNG.standard_normal((N, 110)).astype(np.float32)
HISTORY = np.cumsum(RNG.integers(-40, 40, (STEPS, N, DIM)), axis=0).astype(np.int16)


def stored(folder, values, backend):
    """The matrix over rows that lie one after the other in a file."""
    path = folder / "rows.bin"
    path.write_bytes(b"head" + values.tobytes())
    return dense_matrix(open_mapped(path, backend=backend), 4, values.shape, values.dtype)


def saved(folder, values, backend="mmap"):
    """The matrix over an array that numpy saved."""
    np.save(folder / "a.npy", values)
    return embmap.open(folder / "a.npy", backend=backend).vectors


def chunked(folder, compression, backend="mmap"):
    path = embmap.cvc.write(
        folder / "a.cvc", ROWS, chunk_rows=7, compression=compression, layout="1.0"
    )
    return embmap.open(path, backend=backend).vectors


def over_time(folder, backend="mmap"):
    path = embmap.dwe.write(folder / "a.dwe", HISTORY, scale=0.5, group=10, layout="stream")
    return embmap.open(path, backend=backend)


def quantized(folder, **options):
    codes = embmap.finalfusion.quantize(ROWS, 3, k=16, iterations=3, **options)
    path = embmap.finalfusion.write(
        folder / "a.fifu", [f"w{i}" for i in range(N)], None, quantized=codes
    )
    return embmap.open(path).vectors


def projected(folder):
    codes = embmap.finalfusion.quantize(WIDE, 10, k=4, iterations=1, projection="opq")
    words = [f"w{i}" for i in range(N)]
    return embmap.open(
        embmap.finalfusion.write(folder / "a.fifu", words, None, quantized=codes)
    ).vectors


def text(folder):
    path = folder / "a.txt"
    lines = [" ".join([f"w{i}", *map(str, row)]) for i, row in enumerate(ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return read_by_converting(path)


def word2vec(folder, newline=b"\n", backend="mmap"):
    path = folder / "a.bin"
    rows = b"".join(b"w%d " % i + row.tobytes() + newline for i, row in enumerate(ROWS))
    path.write_bytes(b"%d %d\n" % (N, DIM) + rows)
    return embmap.open(path, backend=backend).vectors


def fasttext(folder, lengths=(2, 3), backend="mmap"):
    """The matrix of a model; the words of short numbers have n-grams whose rows are zeros."""
    path = folder / "a.bin"
    words = [f"w{i}" for i in range(N)]
    rows = ROWS.copy()
    if lengths[1]:
        counts = FastTextIndexer(*lengths, 5).buckets(words)[1]
        counts -= 2 * (lengths[0] == 1)  # the brackets themselves do not count
        rows *= (counts + 1)[:, np.newaxis].astype("f4")
    matrix = np.vstack([rows, np.zeros((5, DIM), "f4")]) if lengths[1] else rows
    path.write_bytes(inputs.fasttext(words, matrix=matrix, buckets=5, lengths=lengths)[0])
    return embmap.open(path, backend=backend).vectors


NGRAMS = FastTextIndexer(2, 3, 5)
SIZES = NGRAMS.buckets([f"w{i}" for i in range(N)])[1][:, np.newaxis] + 1


def taken_apart():
    """The rows of words without their n-grams, which are zeros."""
    words = WordTable.of(vocabulary_of([f"w{i}" for i in range(N)], N, "fasttext"))
    buckets = ArrayMatrix(np.zeros((5, DIM), np.float32))
    return FastTextRows.of(words, ArrayMatrix(ROWS), buckets, NGRAMS)


def parquet(folder):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    np.save(folder / "a.npy", ROWS)
    embmap.convert(folder / "a.npy", folder / "a.parquet")
    return ParquetTable(open_mapped(folder / "a.parquet"), None).vectors()


def read_by_converting(path):
    """The matrix that a conversion reads an input through."""
    from contextlib import ExitStack

    from embmap.conversion.inputs import Request, open_input

    with ExitStack() as stack:
        return open_input(path, Request(folder=path.parent), stack).vectors


def remote(shape_of):
    """A matrix whose rows are asked for, here of an array instead of a server."""
    return RemoteMatrix(shape_of.shape, shape_of.dtype, lambda rows: shape_of[list(rows)])


# The class, how a matrix of it is made, and how far decoding may be from what was written.
CASES = {
    "mapped": (MappedMatrix, lambda folder: stored(folder, ROWS, "mmap"), ROWS, 0),
    "read": (ReadMatrix, lambda folder: stored(folder, ROWS, "read"), ROWS, 0),
    "float64": (MappedMatrix, lambda folder: stored(folder, ROWS.astype("f8"), "mmap"), ROWS, 0),
    "bfloat16": (
        BFloat16Matrix,
        lambda folder: BFloat16Matrix(
            stored(folder, (ROWS.view(np.uint32) >> 16).astype(np.uint16), "mmap")
        ),
        ROWS,
        0.05,
    ),
    "columns": (ForeignMatrix, lambda folder: saved(folder, np.asfortranarray(ROWS)), ROWS, 0),
    "columns, read": (
        ForeignMatrix,
        lambda folder: saved(folder, np.asfortranarray(ROWS), "read"),
        ROWS,
        0,
    ),
    "big-endian": (ForeignMatrix, lambda folder: saved(folder, ROWS.astype(">f8")), ROWS, 0),
    "product": (ProductMatrix, quantized, ROWS, 2),
    "projected product": (
        ProductMatrix,
        lambda folder: quantized(folder, projection="opq"),
        ROWS,
        2,
    ),
    "wide projected product": (ProductMatrix, projected, WIDE, 20),
    "fp16": (ChunkedMatrix, lambda folder: chunked(folder, "fp16"), ROWS, 2e-3),
    "halves": (
        Halves,
        lambda folder: chunked(folder, "fp16").stored_as("float16"),
        ROWS,
        2e-3,
    ),
    "halves, read": (
        Halves,
        lambda folder: chunked(folder, "fp16", "read").stored_as("float16"),
        ROWS,
        2e-3,
    ),
    "int8": (ChunkedMatrix, lambda folder: chunked(folder, "int8", "read"), ROWS, 0.05),
    "lossless": (ChunkedMatrix, lambda folder: chunked(folder, "lossless"), ROWS, 0),
    "time step": (Timestep, lambda folder: over_time(folder).at(1).vectors, HISTORY[1] * 0.5, 0),
    "integers": (Timestep, lambda folder: over_time(folder).at(1).vectors.quantized, HISTORY[1], 0),
    "trajectories": (
        Trajectories,
        lambda folder: over_time(folder, "read").vectors,
        HISTORY.swapaxes(0, 1) * 0.5,
        0,
    ),
    "array": (ArrayMatrix, lambda folder: ArrayMatrix(ROWS), ROWS, 0),
    "scaled": (
        Scaled,
        lambda folder: Scaled(ArrayMatrix(HISTORY[1]), 0.5),
        HISTORY[1] * np.float32(0.5),
        0,
    ),
    "selected": (
        Selected,
        lambda folder: Selected(stored(folder, ROWS[::-1].copy(), "read"), np.arange(N)[::-1]),
        ROWS,
        0,
    ),
    "leading": (
        Leading,
        lambda folder: Leading(stored(folder, np.hstack((ROWS, ROWS)), "mmap"), DIM),
        ROWS,
        0,
    ),
    "stacked": (
        Stacked,
        lambda folder: Stacked(ArrayMatrix(ROWS[:20]), ArrayMatrix(ROWS[20:])),
        ROWS,
        0,
    ),
    "converted": (
        Converted,
        lambda folder: Converted(ArrayMatrix(ROWS), np.dtype(np.float64)),
        ROWS,
        0,
    ),
    "text": (TextMatrix, text, ROWS, 0),
    "parquet": (ParquetMatrix, parquet, ROWS, 0),
    "word2vec": (Word2VecMatrix, word2vec, ROWS, 0),
    "word2vec, read": (Word2VecMatrix, lambda folder: word2vec(folder, b"", "read"), ROWS, 0),
    "fasttext": (FastTextWords, fasttext, ROWS, 1e-6),
    "fasttext, read": (FastTextWords, lambda folder: fasttext(folder, (1, 2), "read"), ROWS, 1e-6),
    "fasttext, apart": (FastTextRows, lambda folder: taken_apart(), ROWS * SIZES, 1e-6),
    "fasttext without n-grams": (FastTextWords, lambda folder: fasttext(folder, (0, 0)), ROWS, 0),
    "remote": (RemoteMatrix, lambda folder: remote(ROWS), ROWS, 0),
    "remote trajectories": (
        RemoteMatrix,
        lambda folder: remote(HISTORY.swapaxes(0, 1) * np.float32(0.5)),
        HISTORY.swapaxes(0, 1) * 0.5,
        0,
    ),
}


@pytest.fixture(params=CASES)
def matrix(request, tmp_path):
    kind, make, written, tolerance = CASES[request.param]
    made = make(tmp_path)
    assert type(made) is kind
    assert np.allclose(np.asarray(made), written, rtol=0, atol=tolerance)
    return made


def same(found, expected):
    """Whether two arrays have the same shape, dtype and bits."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


def test_every_class_is_here():
    def classes(of):
        for each in of.__subclasses__():
            yield each
            yield from classes(each)

    abstract = {"DenseMatrix", "Streamed", "_DecodedMatrix"}
    named = {each.__name__ for each in classes(Matrix) if each.__module__.startswith("embmap.")}
    assert named - abstract == {kind.__name__ for kind, *_ in CASES.values()}


def test_rows_are_the_same_however_they_are_asked_for(matrix):
    rows = [matrix.row(i) for i in range(N)]
    whole = np.stack(rows)
    assert (matrix.shape, matrix.dtype) == (whole.shape, whole.dtype)
    assert (len(matrix), matrix.ndim, matrix.nbytes) == (N, whole.ndim, whole.nbytes)
    same(np.asarray(matrix), whole)
    same(np.stack(list(matrix)), whole)
    for i in (0, 20, N - 1, -1, -N):
        same(matrix[i], whole[i])
        same(matrix[np.int64(i)], whole[i])
        same(matrix.rows()[i % N], whole[i])
    for part in (slice(3, 30), slice(5, 5), slice(9, 2), slice(None, None, 7), slice(N, None, -2)):
        same(matrix[part], whole[part])
    picked = [5, -1, 5, 0, N - 1, 19, 20]
    for key in (picked, np.array(picked), np.array(picked, np.int8), np.arange(N) % 3 == 0):
        same(matrix[key], whole[key])
        same(matrix.take(key), whole[key])
    same(matrix[[]], whole[:0])
    same(np.asarray(matrix[2, 1]), np.asarray(whole[2, 1]))
    for key in ((slice(4), 1), (7, slice(1, 3)), ([3, 1], slice(1)), (5,)):
        same(matrix[key], whole[key])


def test_blocks_cover_the_rows_in_order(matrix):
    whole = np.asarray(matrix)
    for size in (1, 10, N, 1000):
        blocks = list(matrix.blocks(size))
        starts = np.cumsum([0, *(len(block) for _, block in blocks)])
        assert [start for start, _ in blocks] == starts[:-1].tolist()
        assert max(len(block) for _, block in blocks) <= size
        same(np.concatenate([block for _, block in blocks]), whole)
    with pytest.raises(ValueError, match="positive"):
        next(matrix.blocks(0))


def test_what_fits_is_written_to_out(matrix):
    whole = np.asarray(matrix)
    picked = [4, 0, -1, 4]
    out = np.full((4, *matrix.shape[1:]), 7, matrix.dtype)
    assert matrix.take(picked, out) is out
    same(out, whole[picked])
    wide = np.zeros((8, *matrix.shape[1:]), matrix.dtype)
    matrix.take(picked, wide[::2])
    same(wide[::2].copy(), whole[picked])
    for wrong in (out[:3], out.astype("c16"), np.zeros((4, 1), matrix.dtype)):
        with pytest.raises(ValueError, match="out must be"):
            matrix.take(picked, wrong)


def test_what_is_no_row_is_refused(matrix):
    for wrong in (N, -N - 1, 2**70, [0, N], [1.5], [[1]], np.ones(N - 1, bool), True, "w1"):
        with pytest.raises((IndexError, TypeError, ValueError)):
            matrix[wrong]


def test_nothing_is_read_by_looking_at_it(matrix):
    assert "not read" in repr(matrix)
    assert matrix.prefetch() is None
    assert matrix.prefetch(np.array([3, 0])) is None
    if matrix.zero_copy:
        assert np.shares_memory(matrix[2:5], np.asarray(matrix))
    else:
        with pytest.raises(ValueError, match="copy"):
            np.asarray(matrix, copy=False)
    assert np.asarray(matrix, "f8").dtype == np.float64


def test_dlpack_hands_out_what_may_be_written_to(matrix):
    whole = np.asarray(matrix).copy()
    assert matrix.__dlpack_device__() == (1, 0)
    for options in ({}, {"copy": True}, {"device": "cpu"}):
        handed = np.from_dlpack(matrix, **options)
        same(handed, whole)
        handed[...] = 0
    same(np.asarray(matrix), whole)
    if matrix.zero_copy and np.asarray(matrix).flags.aligned:
        same(np.from_dlpack(matrix, copy=False), whole)
    else:
        with pytest.raises(BufferError, match="copy must not be False"):
            np.from_dlpack(matrix, copy=False)


def test_a_matrix_pickles_by_path_or_says_that_it_cannot(matrix):
    if matrix.origin is None:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(matrix)
        return
    pickled = pickle.dumps(matrix)
    assert len(pickled) < 2000
    again = pickle.loads(pickled)
    assert type(again) is type(matrix)
    same(np.asarray(again), np.asarray(matrix))
    assert copy.copy(matrix).origin is None
