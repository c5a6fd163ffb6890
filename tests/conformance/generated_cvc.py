"""What tests of made CVC files share: files to read, and the comparison with the reference."""

import json
import struct

import numpy as np
import pytest

import embmap
from tests.reference import cvc as reference

RNG = np.random.default_rng(20)
PATTERNS = np.arange(65536, dtype="<u2")
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e-42, 65504.0], np.float32)


def vectors(rows, dim):
    """Numbers of no particular kind."""
    return RNG.standard_normal((rows, dim)).astype(np.float32)


def canonical(array):
    """Dtype, shape and bits of an array, every NaN made the same."""
    array = np.array(array, order="C")
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    return array.dtype.str, array.shape, array.tobytes()


def same(found, expected, what=""):
    """Check that two arrays are equal to the bit."""
    assert canonical(found) == canonical(expected), what


def reads_like_the_reference(path, backend, data=None):
    """Compare an open file with the reference decoder; return what the decoder read."""
    data = path.read_bytes() if data is None else data
    path.write_bytes(data)
    decoded = reference.decode(data)
    assert decoded.problems == []
    with embmap.open(path, backend=backend) as f:
        assert (f.format, f.layout) == ("cvc", decoded.version)
        assert len(f) == decoded.n
        assert f.vocab is None
        assert f.metadata == decoded.metadata
        assert list(f.columns) == list(decoded.columns)
        for name, column in decoded.columns.items():
            rows_are(f.columns[name], column.rows)
        if len(decoded.columns) == 1:
            (column,) = decoded.columns.values()
            same(f.vectors, column.rows)
            assert f.shape == column.rows.shape
        chunks_are(f, decoded)
        sections_are(f, decoded)
        report = f.verify()
        assert report.ok, report.problems
        assert json.loads(json.dumps(f.info()))["n_rows"] == decoded.n
    return decoded


def rows_are(matrix, expected):
    """Check every way to rows of a matrix."""
    n = len(expected)
    assert matrix.shape == expected.shape
    assert matrix.dtype == expected.dtype
    same(np.asarray(matrix), expected)
    picked = RNG.permutation(n)[:40].tolist()
    for i in picked:
        same(matrix[i], expected[i], i)
        same(matrix[i - n], expected[i], i)
        same(matrix[i : i + 1], expected[i : i + 1], i)
    for start, stop, step in ((0, n, 1), (1, n - 1, 1), (n // 3, n // 2, 1), (0, n, 3), (n, 0, -2)):
        same(matrix[start:stop:step], expected[start:stop:step], (start, stop, step))
    twice = np.array(picked + [i - n for i in picked[:5]], np.int64)
    same(matrix[twice], expected[twice])
    same(matrix.take(np.sort(twice)), expected[np.sort(twice)])
    same(matrix[np.arange(n) % 2 == 0], expected[::2])
    same(matrix[[]], expected[:0])
    out = np.full((twice.size, expected.shape[1]), 7, expected.dtype)
    assert matrix.take(twice, out) is out
    same(out, expected[twice])
    joined = [block for _, block in matrix.blocks(5)]
    assert [start for start, _ in matrix.blocks(5)] == list(range(0, n, 5))
    same(np.concatenate([expected[:0], *joined]), expected)
    for beyond in (n, -n - 1):
        with pytest.raises(IndexError):
            matrix[beyond]
        with pytest.raises(IndexError):
            matrix[[beyond]]


def chunks_are(f, decoded):
    """Check every chunk of an open file."""
    assert len(f.chunks) == len(decoded.chunks)
    for chunk, expected in zip(f.chunks, decoded.chunks, strict=True):
        assert chunk.rows == expected.rows
        assert chunk.metadata == expected.metadata
        assert chunk.raw.tobytes() == expected.payload
        assert not chunk.raw.flags.writeable
        for name, column in decoded.columns.items():
            rows = column.rows[expected.start : expected.start + expected.rows]
            same(chunk.decode(column=name), rows)


def sections_are(f, decoded):
    """Check the sections of an open file, and the rows of those that any metadata choose."""
    found = [(section.start, section.stop, section.metadata) for section in f.sections]
    assert found == decoded.sections
    choices = [{}, {"no such key": 1}]
    for _, _, metadata in decoded.sections:
        choices += [metadata, *({key: value} for key, value in metadata.items())]
    for match in choices:
        rows = f.section(**match)
        assert rows.dtype == np.int64
        assert rows.tolist() == decoded.section(**match)


def section(start, stop, **metadata):
    """An entry of the header for a section."""
    size = {"start_index": start, "end_index": stop, "num_vectors": stop - start}
    return {**size, "metadata": metadata}


SECTIONS = [
    section(0, 7, source="wiki", lang="en"),
    section(7, 7, source="nothing"),
    section(7, 20, source="arxiv", lang="de", deep={"k": [1, None]}),
    section(20, 23, source="wiki", lang="de", n=1),
]
ABOUT = {"title": "café ✓", "n": 3, "nested": {"k": [1, 2.5, None, True]}, "empty": {}}


# ---------------------------------------------------------------------------------- one matrix

WITHOUT_COLUMNS = {
    f"{version} {compression}": (version, compression)
    for version in ("0.1", "1.0")
    for compression in reference.COMPRESSIONS[version]
}
each_way = pytest.mark.parametrize("way", WITHOUT_COLUMNS)


# --------------------------------------------------------------------------------------- columns

COLUMNS = {
    "text": ("float32", "fp16", 4),
    "image": ("float32", "int8", 5),
    "raw": ("float32", "none", 2),
    "half": ("float16", "none", 3),
    "i32": ("int32", "none", 2),
    "doc id": ("int64", "none", 1),
    "i8": ("int8", "none", 3),
    "ü": ("uint8", "none", 1),
}


def values(dtype, shape):
    """Numbers of a dtype, its extremes among them."""
    if dtype.startswith("float"):
        return RNG.standard_normal(shape).astype(dtype)
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)


def columns_of(sizes, names=None, columns=None):
    """Chunks of columns."""
    columns = columns or COLUMNS
    return [
        {name: values(columns[name][0], (n, columns[name][2])) for name in names or columns}
        for n in sizes
    ]


def reference_halves(rows):
    """Numbers rounded to half precision."""
    stored = reference.stored_as("fp16", rows)[1]
    found = [reference.half(bits) for (bits,) in struct.iter_unpack("<H", stored)]
    return np.array(found, np.float32).reshape(rows.shape)
