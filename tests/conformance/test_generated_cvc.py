"""What the conformance folder shows about CVC files, with files made here.

Files come from the reference encoder and are compared, through the public face, with what the
reference decoder says; files that embmap writes go the other way round.
"""

import itertools
import json
import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    """Check that an open file says what the reference decoder says; return the file's columns."""
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


@pytest.fixture
def path(tmp_path):
    """Where a file may stand."""
    return tmp_path / "file.cvc"


def section(start, stop, **metadata):
    """What a header says about a section."""
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


@each_way
def test_any_split_into_chunks_gives_the_rows(path, backend, way):
    version, compression = WITHOUT_COLUMNS[way]
    for sizes in ([1], [23], [10, 10, 3], [1] * 23, [0, 5, 0, 0, 18, 0], [7, 0, 16]):
        rows = vectors(sum(sizes), 5)
        parts = np.split(rows, np.cumsum(sizes)[:-1])
        data = reference.matrix(version, [(compression, part) for part in parts])
        decoded = reads_like_the_reference(path, backend, data)
        found = decoded.columns["vectors"].rows
        if compression == "lossless":
            same(found, rows)
        else:
            assert np.abs(found - rows).max() < 0.05


@each_way
@pytest.mark.parametrize("dim", [1, 2, 7, 64])
def test_any_dimension_is_read_from_odd_offsets(path, backend, way, dim):
    version, compression = WITHOUT_COLUMNS[way]
    for spaces in ("", " "):  # one of the two puts the payload at an odd offset
        chunks = [(compression, vectors(9, dim)), (compression, vectors(4, dim))]
        reads_like_the_reference(path, backend, reference.matrix(version, chunks, title=spaces))


@each_way
def test_no_chunks_and_chunks_without_rows_are_files(path, backend, way):
    version, compression = WITHOUT_COLUMNS[way]
    for chunks in ([], [(compression, vectors(0, 4))], [(compression, vectors(0, 4))] * 3):
        data = reference.matrix(version, chunks, default=compression, dimension=4)
        decoded = reads_like_the_reference(path, backend, data)
        assert decoded.columns["vectors"].rows.shape == (0, 4)


@pytest.mark.parametrize("version", ["0.1", "1.0"])
def test_every_half_is_read_exactly(path, backend, version):
    header = {
        "num_vectors": 512,
        "dimension": 128,
        "compression": "fp16",
        "chunks": [{"rows": 500}, {"rows": 12}],
    }
    whole = PATTERNS.tobytes()
    data = reference.encode(version, header, [whole[:128000], whole[128000:]])
    decoded = reads_like_the_reference(path, backend, data)
    expected = decoded.columns["vectors"].rows.reshape(-1)
    for bits in (0, 0x8000, 1, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x3C01):
        (value,) = struct.unpack("<e", struct.pack("<H", bits))
        same(expected[bits], np.float32(value), hex(bits))
    assert np.isnan(expected).sum() == 2 * 1023
    with embmap.open(path, backend=backend) as f:
        for row in (248, 249, 252, 504, 511):  # infinities and NaN, each row by itself
            same(f[row], expected.reshape(512, 128)[row], row)


QUANTIZED = {
    "a tenth": (-1.7, 0.1),
    "integers": (-1, 1),
    "zero": (0, 0),
    "of the text": (-0.5, 0.00392156862),
    "doubles that are no float32": (0.1 + 2**-40, 1 / 3),
    "negative": (3.5, -0.25),
    "subnormal": (1e-45, 1e-41),
    "large": (-3e38, 2.6e36),
    "beyond float32": (1e39, 1.0),
    "scale beyond float32": (0.0, -1e300),
    "sums beyond float32": (3.3e38, 1e36),
    "NaN": (np.nan, np.nan),
    "infinite": (-np.inf, np.inf),
    "infinite scale": (0.0, np.inf),
    "large integers": (-(2**70), 2**53 + 1),
}


@pytest.mark.parametrize("numbers", QUANTIZED)
@pytest.mark.parametrize("version", ["0.1", "1.0"])
def test_every_code_is_rounded_twice(path, backend, version, numbers):
    minimum, scale = QUANTIZED[numbers]
    header = {
        "num_vectors": 70,
        "dimension": 8,
        "compression": "int8",
        "chunks": [{"rows": 64, "min": minimum, "scale": scale}, {"rows": 6, "min": 1, "scale": 2}],
    }
    payloads = [bytes(range(256)) * 2, bytes(range(48))]
    decoded = reads_like_the_reference(path, backend, reference.encode(version, header, payloads))
    found = decoded.columns["vectors"].rows
    same(found[64:].reshape(-1), np.arange(48, dtype=np.float32) * 2 + 1)
    if numbers == "a tenth":
        assert found.reshape(-1)[3] == np.float32(np.float32(3) * np.float32(0.1)) - np.float32(1.7)


def test_bare_names_of_json_are_numbers(path, backend):
    for text in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0.0", b"1E-400", b"0"):
        header = b'{"num_vectors":2,"dimension":3,"compression":"int8","chunks":[{"rows":2,'
        header += b'"min":%s,"scale":1}],"also":-Infinity}' % text
        data = reference.encode("0.1", header, [bytes(range(6))])
        assert reference.decode(data).metadata == {"also": -np.inf}
        reads_like_the_reference(path, backend, data)


@pytest.mark.parametrize("n_distinct", [1, 2, 3, 4, 5, 17, 128, 129, 256])
def test_planes_of_any_width_are_read_to_the_bit(path, backend, n_distinct):
    bits = RNG.integers(0, n_distinct, (37, 3)).astype("<u4") * np.uint32(0x01010101)
    whole = bits.view("<f4")
    data = reference.matrix("1.0", [("lossless", whole[:30]), ("lossless", whole[30:])])
    decoded = reads_like_the_reference(path, backend, data)
    same(decoded.columns["vectors"].rows, whole)


def test_special_numbers_come_back_without_loss(path, backend):
    rows = np.stack([SPECIAL, SPECIAL[::-1], np.full(8, -3.25, np.float32)])
    data = reference.matrix("1.0", [("lossless", rows), ("lossless", rows[2:])])
    decoded = reads_like_the_reference(path, backend, data)
    same(decoded.columns["vectors"].rows[:3], rows)
    nans = np.array([[0x7F800001, 0xFFC00000, 0x7FFFFFFF]], "<u4")
    path.write_bytes(reference.matrix("1.0", [("lossless", nans.view("<f4"))]))
    with embmap.open(path, backend=backend) as f:
        assert f[0].tobytes() == nans.tobytes()
        assert np.asarray(f.vectors).tobytes() == nans.tobytes()


@pytest.mark.parametrize("version", ["0.1", "1.0"])
def test_chunks_of_all_kinds_stand_in_one_file(path, backend, version):
    kinds = reference.COMPRESSIONS[version]
    for default in kinds:
        for order in itertools.permutations(kinds):
            chunks = [(kind, vectors(3 + i, 4)) for i, kind in enumerate(order)]
            data = reference.matrix(version, [*chunks, (default, vectors(0, 4))], default=default)
            reads_like_the_reference(path, backend, data)


@each_way
def test_sections_choose_every_row_of_every_match(path, backend, way):
    version, compression = WITHOUT_COLUMNS[way]
    chunks = [(compression, vectors(10, 4)), (compression, vectors(13, 4))]
    data = reference.matrix(version, chunks, sections=SECTIONS, **ABOUT)
    decoded = reads_like_the_reference(path, backend, data)
    assert decoded.section(source="wiki") == [*range(7), 20, 21, 22]
    with embmap.open(path, backend=backend) as f:
        rows = f.section(source="wiki")
        assert rows.tolist() == [*range(7), 20, 21, 22]
        same(f[rows], decoded.columns["vectors"].rows[rows])
        assert f.section(source="wiki", lang="de").tolist() == [20, 21, 22]
        assert f.section(source="wiki", lang="fr").tolist() == []
        assert f.section(source="nothing").tolist() == []
        assert f.section(deep={"k": [1, None]}).tolist() == list(range(7, 20))


@pytest.mark.parametrize("sections", [None, [], [{"start_index": 0, "end_index": 3}]])
def test_sections_may_say_little(path, backend, sections):
    data = reference.matrix("1.0", [("fp16", vectors(3, 2))], sections=sections)
    reads_like_the_reference(path, backend, data)


def test_chunks_have_metadata(path, backend):
    header = {
        "num_vectors": 5,
        "dimension": 2,
        "compression": "int8",
        "chunks": [
            {"rows": 2, "min": 0, "scale": 1, "metadata": {"source": "café", "n": 1}},
            {"rows": 2, "min": 0, "scale": 1, "metadata": {"nested": {"k": [1, 2, None]}}},
            {"rows": 1, "min": 0, "scale": 1, "sections": [{"start_in_chunk": 0}], "x": None},
        ],
    }
    data = reference.encode("1.0", header, [bytes(4), bytes(4), bytes(2)])
    decoded = reads_like_the_reference(path, backend, data)
    assert decoded.chunks[0].metadata["source"] == "café"


def test_headers_are_any_json(path, backend):
    chunks = [{"rows": 4, "unknown": [{}]}, {"rows": 5, "compression": "fp16"}]
    header = {"unknown": {"ü": "✓🙂"}, "num_vectors": 9, "dimension": 2}
    header |= {"compression": "int8", "chunks": chunks, "": 0, "\0": "\ud800"}
    chunks[0] |= {"min": 0.5, "scale": 2}
    payloads = [bytes(range(8)), RNG.standard_normal(10).astype("<f2").tobytes()]
    raw = json.dumps({**header, "\0": ""}, ensure_ascii=False, indent="\t").encode()
    for text in (
        raw,
        b" \n\r\t" + json.dumps(header).encode() + b"\n" * 50,
        json.dumps(dict(reversed(header.items()))).encode(),
    ):
        for version in ("0.1", "1.0"):
            reads_like_the_reference(path, backend, reference.encode(version, text, payloads))


# ------------------------------------------------------------------------- telling versions apart


@pytest.mark.parametrize(("major", "minor"), [(5, 1), (3, 1), (10, 1), (1, 1), (2, 1), (4, 2)])
def test_a_length_that_looks_like_a_version_is_a_length(path, backend, major, minor):
    nbytes = major | minor << 16
    header = {
        "num_vectors": 6,
        "dimension": 3,
        "compression": "fp16",
        "chunks": [{"rows": 6}],
    }
    text = reference.json_of(header)
    text += b" " * (nbytes - len(text))
    assert (nbytes, len(text)) == (major + 65536 * minor, nbytes)
    data = reference.encode("0.1", text, [RNG.standard_normal(18).astype("<f2").tobytes()])
    assert struct.unpack_from("<HH", data, 4) == (major, minor)
    assert reads_like_the_reference(path, backend, data).version == "0.1"


@pytest.mark.parametrize("version", ["0.1", "1.0", "2.0"])
def test_a_version_may_be_named(path, backend, version):
    made = reference.matrix("1.0", [("fp16", vectors(3, 2))])
    path.write_bytes(made)
    if version == "1.0":
        with embmap.open(path, backend=backend, layout=version) as f:
            same(np.asarray(f.vectors), reference.decode(made).columns["vectors"].rows)
    else:
        with pytest.raises(embmap.FormatError):
            embmap.open(path, backend=backend, layout=version)


@pytest.mark.parametrize("version", [(3, 0), (1, 1), (2, 1), (10, 100), (5, 7)])
def test_newer_versions_are_refused_as_that(path, backend, version):
    data = bytearray(reference.matrix("1.0", [("fp16", vectors(3, 2))]))
    struct.pack_into("<HH", data, 4, *version)
    with pytest.raises(reference.NewerFile):
        reference.decode(bytes(data))
    path.write_bytes(data)
    with pytest.raises(embmap.UnsupportedError, match=rf"newer.*{version[0]}\.{version[1]}\b"):
        embmap.open(path, backend=backend)


# -------------------------------------------------------------------------------- chunks on pages


@pytest.mark.parametrize("kinds", [["fp16"], ["int8", "fp16", "lossless"], ["lossless"] * 2, []])
def test_chunks_stand_where_the_header_says(path, backend, kinds):
    chunks = [(kind, vectors(20 - i, 16)) for i, kind in enumerate(kinds)]
    made = reference.matrix("1.0", [*chunks], dimension=16)
    data = reference.matrix("1.0", chunks, dimension=16, mmap_optimized=True)
    decoded = reads_like_the_reference(path, backend, data)
    plain = reference.decode(made)
    same(decoded.columns["vectors"].rows, plain.columns["vectors"].rows)
    with embmap.open(path, backend=backend) as f:
        assert all(part["offset"] % 4096 == 8 for part in f.info()["chunks"])


def test_chunks_on_pages_stand_in_any_order(path, backend):
    data = reference.matrix("1.0", [("fp16", vectors(6, 4))] * 3, mmap_optimized=True)
    header = json.loads(data[12 : 12 + struct.unpack_from("<I", data, 8)[0]])
    offsets = [chunk["file_offset"] for chunk in header["chunks"]]
    assert offsets == [4096, 8192, 12288]
    for order in itertools.permutations(offsets):
        for chunk, offset in zip(header["chunks"], order, strict=True):
            chunk["file_offset"] = offset
        text = reference.json_of(header)
        shuffled = data[:8] + struct.pack("<I", len(text)) + text + data[12 + len(text) :]
        reads_like_the_reference(path, backend, shuffled)


def test_a_long_header_moves_the_first_page(path, backend):
    chunks = [("int8", vectors(5, 3)), ("fp16", vectors(2, 3))]
    for size in (3700, 3800, 3900, 4096, 9000):
        data = reference.matrix("1.0", chunks, mmap_optimized=True, title="x" * size)
        reads_like_the_reference(path, backend, data)


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


@pytest.mark.parametrize("sizes", [[23], [9, 9, 5], [0, 4, 0, 1, 0], [0], []])
def test_columns_of_all_dtypes_are_read(path, backend, sizes):
    data = reference.columnar(COLUMNS, columns_of(sizes), **ABOUT)
    decoded = reads_like_the_reference(path, backend, data)
    for name, (dtype, compression, dimension) in COLUMNS.items():
        rows = decoded.columns[name].rows
        assert rows.shape == (sum(sizes), dimension)
        assert rows.dtype == (dtype if compression == "none" else "float32")
    with embmap.open(path, backend=backend) as f:
        assert f.vectors is None


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_one_column_is_the_matrix(path, backend, dtype):
    columns = {"x": (dtype, "none", 3)}
    chunks = columns_of([4, 3], columns=columns)
    decoded = reads_like_the_reference(path, backend, reference.columnar(columns, chunks))
    same(decoded.columns["x"].rows, np.concatenate([chunk["x"] for chunk in chunks]))


def test_columns_are_matched_by_name_in_any_order(path, backend):
    names = ["text", "doc id", "half"]
    for orders in itertools.product(itertools.permutations(names), repeat=2):
        some = {name: COLUMNS[name] for name in names}
        chunks = [*columns_of([3], orders[0]), *columns_of([2], orders[1])]
        data = reference.columnar(some, chunks)
        decoded = reads_like_the_reference(path, backend, data)
        wanted = np.concatenate([chunk["doc id"] for chunk in chunks])
        same(decoded.columns["doc id"].rows, wanted)


def test_columns_may_have_gaps_and_share_bytes(path, backend):
    stored = values("float16", (4, 2)).tobytes()
    header = {
        "format_type": "columnar",
        "num_vectors": 4,
        "columns": [
            {"name": "a", "dimension": 2, "dtype": "float32", "compression": "fp16"},
            {"name": "b", "dimension": 2, "dtype": "float16", "compression": "none"},
        ],
        "chunks": [
            {
                "rows": 4,
                "columns": {
                    "b": {"offset": 3, "size": 16},
                    "unknown": 7,
                    "a": {"offset": 3, "size": 16},
                },
            }
        ],
    }
    data = reference.encode("2.0", header, [b"???" + stored + b"?"])
    decoded = reads_like_the_reference(path, backend, data)
    same(decoded.columns["a"].rows, decoded.columns["b"].rows.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_column_mixes_compressions(path, backend, dtype):
    rows = values(dtype, (3, 2))
    entries, payloads = [], []
    for compression in ("none", "int8", "fp16"):
        entry, payload = reference.stored_as(compression, rows)
        part = {"compression": compression, "offset": 0, "size": len(payload), **entry}
        entries.append({"rows": 3, "columns": {"x": part}})
        payloads.append(payload)
    column = {"name": "x", "dimension": 2, "dtype": dtype, "compression": "int8"}
    header = {"format_type": "columnar", "num_vectors": 9, "columns": [column], "chunks": entries}
    decoded = reads_like_the_reference(path, backend, reference.encode("2.0", header, payloads))
    assert decoded.columns["x"].rows.dtype == np.float32


def test_sections_choose_rows_of_every_column(path, backend):
    data = reference.columnar(COLUMNS, columns_of([10, 0, 13]), sections=SECTIONS)
    decoded = reads_like_the_reference(path, backend, data)
    with embmap.open(path, backend=backend) as f:
        rows = f.section(source="wiki")
        assert rows.tolist() == [*range(7), 20, 21, 22]
        for name, column in decoded.columns.items():
            same(f.columns[name].take(rows), column.rows[rows])


# ---------------------------------------------------------------------------------- bad files

GOOD = {
    "num_vectors": 4,
    "dimension": 3,
    "compression": "fp16",
    "chunks": [{"rows": 2}, {"rows": 2, "compression": "int8", "min": 0.5, "scale": 2}],
}
PAYLOADS = [b"\1\2\3\4\5\6\7\x08\x09\x0a\x0b\x0c", b"abcdef"]
PART = {"compression": "none", "offset": 0, "size": 16}
COLUMN = {"name": "id", "dimension": 1, "dtype": "int64", "compression": "none"}
GOOD_COLUMNS = {
    "format_type": "columnar",
    "num_vectors": 2,
    "columns": [COLUMN],
    "chunks": [{"rows": 2, "columns": {"id": PART}}],
}


def changed(good, *place, **values):
    """A header with other values somewhere; ... takes a key away."""
    header = json.loads(json.dumps(good))
    target = header
    for key in place:
        target = target[key]
    for key, value in values.items():
        if value is ...:
            del target[key]
        else:
            target[key] = value
    return header


def matrix_with(*place, payloads=PAYLOADS, version="1.0", **values):
    """A file with other values somewhere in the header."""
    return reference.encode(version, changed(GOOD, *place, **values), payloads)


def columns_with(*place, **values):
    """A file of columns with other values somewhere in the header."""
    return reference.encode("2.0", changed(GOOD_COLUMNS, *place, **values), [bytes(16)])


def on_pages_with(**offsets):
    """A file with chunks on pages, some elsewhere: c0=offset."""
    data = reference.encode("1.0", {**GOOD, "mmap_optimized": True}, PAYLOADS)
    (nbytes,) = struct.unpack_from("<I", data, 8)
    header = json.loads(data[12 : 12 + nbytes])
    for chunk, offset in offsets.items():
        if offset is ...:
            del header["chunks"][int(chunk[1:])]["file_offset"]
        else:
            header["chunks"][int(chunk[1:])]["file_offset"] = offset
    text = reference.json_of(header)
    return data[:8] + struct.pack("<I", len(text)) + text + data[12 + len(text) :]


WHOLE = matrix_with()
OLD = matrix_with(version="0.1")
COLUMNAR = columns_with()
HEADER_NBYTES = struct.unpack_from("<I", WHOLE, 8)[0]
SOME = [section(0, 1)]
BAD = {
    "empty": (b"", "magic|empty|format"),
    "magic alone": (b"CVCF", "header length"),
    "bad magic": (b"CVCX" + WHOLE[4:], "magic|format"),
    "version and no length": (WHOLE[:8], "header length"),
    "header cut off": (WHOLE[:60], "header"),
    "no chunks behind the header": (WHOLE[: 12 + HEADER_NBYTES], "chunk 0"),
    "chunk cut off in its length": (WHOLE[: 12 + HEADER_NBYTES + 3], "chunk 0"),
    "chunk cut off in its checksum": (WHOLE[: 12 + HEADER_NBYTES + 7], "chunk 0"),
    "chunk cut off": (WHOLE[:-2], "chunk 1.*6 bytes.*4"),
    "second chunk missing": (WHOLE[: 12 + HEADER_NBYTES + 20], "chunk 1"),
    "trailing bytes": (WHOLE + b"abc", "3 bytes"),
    "trailing bytes of 0.1": (OLD + b"abc", "3 bytes"),
    "trailing bytes of columns": (COLUMNAR + b"abc", "3 bytes"),
    "a chunk beyond those listed": (OLD + struct.pack("<I", 6) + b"abcdef", "10 bytes"),
    "not JSON": (reference.encode("0.1", b"{nope}", []), "not JSON"),
    "JSON and more": (reference.encode("0.1", b"{} {}", []), "not JSON"),
    "JSON after a mark": (reference.encode("0.1", b"\xef\xbb\xbf{}", []), "not JSON"),
    "not UTF-8": (reference.encode("0.1", b'{"a":"\xff"}', []), "not JSON.*utf-8"),
    "no JSON at all": (reference.encode("0.1", b"", []), "not JSON"),
    "a list": (reference.encode("0.1", b"[1, 2]", []), "not a JSON object"),
    "key twice": (reference.encode("1.0", b'{"dimension":1,"dimension":1}', []), "twice"),
    "key twice in a chunk": (
        reference.encode(
            "1.0",
            b'{"num_vectors":2,"dimension":3,"compression":"fp16","chunks":[{"rows":2,"rows":2}]}',
            PAYLOADS[:1],
        ),
        "twice",
    ),
    "no num_vectors": (matrix_with(num_vectors=...), "'num_vectors' is missing"),
    "no dimension": (matrix_with(dimension=...), "'dimension' is missing"),
    "no compression": (matrix_with(compression=...), "'compression' is missing"),
    "no chunks": (matrix_with(chunks=...), "'chunks' is missing"),
    "no rows": (matrix_with("chunks", 0, rows=...), "chunk 0.*'rows' is missing"),
    "no min": (matrix_with("chunks", 1, min=...), "chunk 1.*'min' is missing"),
    "no scale": (matrix_with("chunks", 1, scale=...), "chunk 1.*'scale' is missing"),
    "min that is text": (matrix_with("chunks", 1, min="0.5"), "chunk 1.*'min'"),
    "scale that is null": (matrix_with("chunks", 1, scale=None), "chunk 1.*'scale'"),
    "scale that is true": (matrix_with("chunks", 1, scale=True), "chunk 1.*'scale'"),
    "min that no double holds": (matrix_with("chunks", 1, min=10**400), "chunk 1.*'min'"),
    "scale that no double holds": (matrix_with("chunks", 1, scale=-(10**400)), "chunk 1.*'scale'"),
    "rows that are negative": (matrix_with("chunks", 0, rows=-2), "chunk 0.*'rows'"),
    "rows that are a float": (matrix_with("chunks", 0, rows=2.0), "chunk 0.*'rows'"),
    "rows that are true": (matrix_with("chunks", 0, rows=True), "chunk 0.*'rows'"),
    "num_vectors that is text": (matrix_with(num_vectors="4"), "'num_vectors'"),
    "num_vectors that is a float": (matrix_with(num_vectors=4.0), "'num_vectors'"),
    "dimension that is a float": (matrix_with(dimension=3.0), "'dimension'"),
    "dimension that is true": (matrix_with(dimension=True), "'dimension'"),
    "chunks that are an object": (matrix_with(chunks={}), "'chunks'"),
    "a chunk that is a number": (matrix_with(chunks=[2, 2]), "chunk 0"),
    "a chunk that is null": (matrix_with(chunks=[None, None]), "chunk 0"),
    "more rows than vectors": (matrix_with(num_vectors=3), "4 rows.*3|num_vectors"),
    "fewer rows than vectors": (matrix_with(num_vectors=5), "4 rows.*5|num_vectors"),
    "wrong dimension": (matrix_with(dimension=2), "chunk 0.*size"),
    "no dimensions": (matrix_with(dimension=0, payloads=[b"", b""]), "dimension"),
    "payload too short": (matrix_with(payloads=[PAYLOADS[0][:-1], PAYLOADS[1]]), "chunk 0.*size"),
    "payload too long": (matrix_with(payloads=[PAYLOADS[0], b"abcdefg"]), "chunk 1.*size"),
    "unknown compression": (matrix_with(compression="zlib"), "zlib"),
    "unknown compression of a chunk": (matrix_with("chunks", 1, compression="int4"), "int4"),
    "compression of a chunk that is null": (matrix_with("chunks", 1, compression=None), "None"),
    "compression of a chunk that is a list": (
        matrix_with("chunks", 1, compression=["int8"]),
        "compression",
    ),
    "compression that is a number": (matrix_with(compression=1), "'compression'"),
    "lossless in 0.1": (
        matrix_with("chunks", 1, version="0.1", compression="lossless"),
        "lossless",
    ),
    "none in 0.1": (matrix_with("chunks", 1, version="0.1", compression="none"), "none"),
    "none in 1.0": (matrix_with("chunks", 1, compression="none"), "none"),
    "sections that are a number": (matrix_with(sections=5), "sections"),
    "sections that are text": (matrix_with(sections="abc"), "section"),
    "sections that are an object": (matrix_with(sections={}), "section"),
    "a section that is a number": (matrix_with(sections=[1]), "section 0"),
    "a section without a start": (
        matrix_with(sections=[{"end_index": 1}]),
        "section 0.*start_index",
    ),
    "a section without an end": (
        matrix_with(sections=[{"start_index": 1}]),
        "section 0.*end_index",
    ),
    "a section beyond the rows": (matrix_with(sections=[*SOME, section(1, 5)]), "section 1"),
    "a section backwards": (matrix_with(sections=[section(2, 1)]), "section 0"),
    "a negative section": (matrix_with(sections=[section(-1, 1)]), "section 0"),
    "metadata that are a list": (
        matrix_with(sections=[{"start_index": 0, "end_index": 1, "metadata": ["a"]}]),
        "section 0.*metadata",
    ),
    "no offset on a page": (on_pages_with(c1=...), "chunk 1.*'file_offset' is missing"),
    "offset in the header": (on_pages_with(c0=12), "chunk 0|header"),
    "offset at the start": (on_pages_with(c1=0), "chunk 1|header"),
    "offset beyond the file": (on_pages_with(c1=1 << 20), "chunk 1"),
    "offset at the end of the file": (on_pages_with(c1=8192 + 14), "chunk 1"),
    "offset that is negative": (on_pages_with(c1=-4096), "chunk 1.*'file_offset'"),
    "offset that is a float": (on_pages_with(c1=8192.0), "chunk 1.*'file_offset'"),
    "two chunks on one page": (on_pages_with(c1=4096), "chunk"),
    "no columns": (columns_with(columns=...), "'columns' is missing"),
    "columns that are an object": (columns_with(columns={}), "'columns'"),
    "rows of no columns": (columns_with(columns=[]), "column"),
    "a column that is text": (columns_with(columns=["id"]), "column 0"),
    "a column without a name": (columns_with("columns", 0, name=...), "column 0.*'name'"),
    "a column without a dtype": (columns_with("columns", 0, dtype=...), "column 0.*'dtype'"),
    "a column without a dimension": (
        columns_with("columns", 0, dimension=...),
        "column 0.*'dimension'",
    ),
    "a column without a compression": (
        columns_with("columns", 0, compression=...),
        "column 0.*'compression'",
    ),
    "two columns of one name": (columns_with(columns=[COLUMN, COLUMN]), "two columns.*'id'"),
    "unknown dtype": (columns_with("columns", 0, dtype="float64"), "'id'.*float64"),
    "no dimensions of a column": (columns_with("columns", 0, dimension=0), "dimension"),
    "another format type": (columns_with(format_type="single"), "format_type|single"),
    "no format type": (columns_with(format_type=...), "format_type"),
    "chunk without columns": (columns_with("chunks", 0, columns=...), "chunk 0.*'columns'"),
    "chunk without a column": (columns_with("chunks", 0, columns={"ID": PART}), "chunk 0.*'id'"),
    "columns of a chunk in a list": (
        columns_with("chunks", 0, columns=[PART]),
        "chunk 0.*'columns'",
    ),
    "part without an offset": (
        columns_with("chunks", 0, "columns", "id", offset=...),
        "chunk 0.*'id'.*'offset'",
    ),
    "part without a size": (
        columns_with("chunks", 0, "columns", "id", size=...),
        "chunk 0.*'id'.*'size'",
    ),
    "part outside its chunk": (
        columns_with("chunks", 0, "columns", "id", offset=1),
        "chunk 0.*'id'.*outside",
    ),
    "part of the wrong size": (
        columns_with("chunks", 0, "columns", "id", size=15),
        "chunk 0.*'id'.*size",
    ),
    "part that is lossless": (
        columns_with("chunks", 0, "columns", "id", compression="lossless"),
        "chunk 0.*'id'.*lossless",
    ),
    "integers in fp16": (
        columns_with("chunks", 0, "columns", "id", compression="fp16"),
        "chunk 0.*'id'.*fp16",
    ),
}


def test_what_the_bad_files_were_made_from_is_good(path, backend):
    for data in (WHOLE, OLD, COLUMNAR, on_pages_with()):
        reads_like_the_reference(path, backend, data)


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused_by_what_is_wrong(path, backend, kind):
    data, message = BAD[kind]
    with pytest.raises(reference.InvalidFile):
        reference.decode(data)
    path.write_bytes(data)
    with pytest.raises(embmap.FormatError) as caught:
        embmap.open(path, backend=backend)
    assert str(path) in str(caught.value)
    about = str(caught.value).replace(str(path), "")
    assert len(about) < 1000
    assert re.search(message, about, re.IGNORECASE), about


def test_columns_without_loss_are_of_no_version(path, backend):
    rows = vectors(2, 1)
    payload = reference.stored_as("lossless", rows)[1]
    column = {**COLUMN, "dtype": "float32"}
    part = {"compression": "lossless", "offset": 0, "size": len(payload)}
    chunks = [{"rows": 2, "columns": {"id": part}}]
    header = changed(GOOD_COLUMNS, columns=[column], chunks=chunks)
    data = reference.encode("2.0", header, [payload])
    with pytest.raises(reference.InvalidFile, match="lossless"):
        reference.decode(data)
    path.write_bytes(data)
    with pytest.raises(embmap.UnsupportedError, match="lossless"):
        embmap.open(path, backend=backend)


@pytest.mark.parametrize("kind", ["0.1", "1.0", "1.0 on pages", "2.0"])
def test_a_wrong_checksum_is_found_by_whole_chunks_and_verify(path, backend, kind):
    whole = {"0.1": OLD, "1.0": WHOLE, "1.0 on pages": on_pages_with(), "2.0": COLUMNAR}[kind]
    name = "id" if kind == "2.0" else "vectors"
    data = whole[:-1] + bytes([whole[-1] ^ 1])
    decoded = reference.decode(data)
    path.write_bytes(data)
    with embmap.open(path, backend=backend) as f:
        last, n = len(f.chunks) - 1, len(f)
        rows = decoded.columns[name].rows
        if kind == "0.1":
            assert decoded.problems == []
            assert f.verify().ok  # nothing could tell
            same(np.asarray(f.columns[name]), rows)
            return
        assert decoded.problems == [f"the checksum of chunk {last} does not hold"]
        same(f.columns[name][n - 1], rows[n - 1])
        same(f.columns[name].take([n - 1, 0]), rows[[n - 1, 0]])
        report = f.verify()
        assert not report.ok
        assert any(f"chunk {last}" in problem.message for problem in report.problems)
        for read in (
            lambda: np.asarray(f.columns[name]),
            lambda: f.columns[name][n - 2 :],
            lambda: f.chunks[last].decode(column=name),
        ):
            with pytest.raises(embmap.ChecksumError, match=f"chunk {last}"):
                read()
        if last:
            same(f.columns[name][:2], rows[:2])
            same(f.chunks[0].decode(), rows[:2])


# ------------------------------------------------------------------------------ what embmap writes


@each_way
def test_what_is_written_is_what_the_reference_reads(path, backend, way):
    version, compression = WITHOUT_COLUMNS[way]
    for n, dim, chunk_rows in ((23, 5, 10), (23, 5, 100), (1, 1, 1), (8, 3, 4), (0, 4, 10)):
        rows = vectors(n, dim)
        about = {"sections": [{"start": 0, "stop": n, "metadata": {"ü": 1}}], "metadata": ABOUT}
        embmap.cvc.write(
            path, rows, compression=compression, layout=version, chunk_rows=chunk_rows, **about
        )
        decoded = reads_like_the_reference(path, backend)
        assert decoded.version == version
        assert decoded.metadata == ABOUT
        assert decoded.sections == [(0, n, {"ü": 1})]
        sizes = [min(chunk_rows, n - start) for start in range(0, n, chunk_rows)]
        assert [chunk.rows for chunk in decoded.chunks] == sizes
        for chunk in decoded.chunks:
            part = rows[chunk.start : chunk.start + chunk.rows]
            assert chunk.compressions == [compression]
            assert chunk.payload == reference.stored_as(compression, part)[1]
            found = decoded.columns["vectors"].rows[chunk.start : chunk.start + chunk.rows]
            if compression == "lossless":
                same(found, part)
            if compression == "int8":
                step = (float(part.max()) - float(part.min())) / 255
                assert np.abs(found - part).max() <= step * 0.501


def test_chunks_of_all_kinds_are_written(path, backend):
    kinds = ["lossless", "int8", "fp16"]
    rows = vectors(28, 3)
    embmap.cvc.write(
        path, rows, layout="1.0", chunk_rows=10, compression=lambda number, _: kinds[number]
    )
    decoded = reads_like_the_reference(path, backend)
    assert [chunk.compressions for chunk in decoded.chunks] == [[kind] for kind in kinds]
    same(decoded.columns["vectors"].rows[:10], rows[:10])


@pytest.mark.parametrize("n", [0, 1, 25, 5000])
def test_chunks_are_written_on_pages(path, backend, n):
    rows = vectors(n, 3)
    embmap.cvc.write(path, rows, layout="1.0", chunk_rows=20, mmap_optimized=True, metadata=ABOUT)
    assert len(path.read_bytes()) < 8192 + 4096 * (1 + n / 20) + n * 5
    decoded = reads_like_the_reference(path, backend)
    same(decoded.columns["vectors"].rows, reference_halves(rows))
    with embmap.open(path, backend=backend) as f:
        assert all(part["offset"] % 4096 == 8 for part in f.info()["chunks"])


def test_special_numbers_are_written(path, backend):
    rows = SPECIAL.reshape(2, 4)
    for compression, version in (("fp16", "0.1"), ("fp16", "1.0"), ("lossless", "1.0")):
        embmap.cvc.write(path, rows, compression=compression, layout=version)
        found = reads_like_the_reference(path, backend).columns["vectors"].rows
        same(found, rows if compression == "lossless" else reference_halves(rows))


def reference_halves(rows):
    """Numbers rounded to half precision."""
    stored = reference.stored_as("fp16", rows)[1]
    found = [reference.half(bits) for (bits,) in struct.iter_unpack("<H", stored)]
    return np.array(found, np.float32).reshape(rows.shape)


HALF_TIES = st.integers(0, 0x7BFF).map(
    lambda bits: (reference.half(bits) + reference.half(min(bits + 1, 0x7BFF))) / np.float32(2)
)


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(HALF_TIES | st.floats(-65504, 65504, width=32), min_size=1, max_size=30))
def test_halves_are_written_rounded_to_even(tmp_path_factory, numbers):
    path = tmp_path_factory.getbasetemp() / "halves.cvc"
    rows = np.array(numbers, np.float32).reshape(-1, 1)
    embmap.cvc.write(path, rows, compression="fp16")
    (chunk,) = reference.decode(path.read_bytes()).chunks
    assert chunk.payload == reference.stored_as("fp16", rows)[1]


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(
        st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=30
    )
)
def test_codes_are_written_within_half_a_step(tmp_path_factory, numbers):
    path = tmp_path_factory.getbasetemp() / "codes.cvc"
    rows = np.array(numbers, np.float32).reshape(-1, 1)
    embmap.cvc.write(path, rows, compression="int8", layout="1.0")
    decoded = reference.decode(path.read_bytes())
    found = decoded.columns["vectors"].rows.astype(float)
    low, high = float(rows.min()), float(rows.max())
    step = (high - low) / 255
    # Half a step, and what the float32 roundings of the step, the code and the sum lose.
    lost = (high - low) * 2.0**-22 + max(abs(low), abs(high)) * 2.0**-22 + 2.0**-140
    assert np.abs(found - rows).max() <= step / 2 + lost
    assert found.min() == low


def test_columns_written_are_what_the_reference_reads(path, backend):
    names = {"text": "fp16", "image": "int8", "raw": "none", "half": "none", "i32": "none"}
    names |= {"doc id": "none", "i8": "none", "ü": "none"}
    for n, chunk_rows in ((23, 10), (23, 23), (1, 5)):
        columns = {name: values(COLUMNS[name][0], (n, COLUMNS[name][2])) for name in names}
        sections = [{"start": 0, "stop": n, "metadata": {"a": [1]}}]
        embmap.cvc.write_columns(
            path,
            columns,
            compression=names,
            chunk_rows=chunk_rows,
            sections=sections,
            metadata=ABOUT,
        )
        decoded = reads_like_the_reference(path, backend)
        assert decoded.version == "2.0"
        assert decoded.sections == [(0, n, {"a": [1]})]
        assert decoded.metadata == ABOUT
        assert list(decoded.columns) == list(names)
        for name, compression in names.items():
            column = decoded.columns[name]
            assert (column.dtype, column.compression) == (COLUMNS[name][0], compression)
            if compression == "none":
                same(column.rows, columns[name])
            if compression == "fp16":
                same(column.rows, reference_halves(columns[name]))
        image = columns["image"]
        assert np.abs(decoded.columns["image"].rows - image).max() < np.ptp(image) / 255


# -------------------------------------------------------------------------------------- the oracle


@pytest.mark.conformance_files("cvc/v0/*.cvc", "cvc/v1/*.cvc", "cvc/v2/*.cvc", "cvc/handmade/*.cvc")
def test_the_reference_reads_the_conformance_files(conformance_file):
    decoded = reference.decode(conformance_file.read_bytes())
    assert decoded.problems == []
    beside = conformance_file.with_suffix(".npy")
    if beside.exists():
        same(decoded.columns["vectors"].rows, np.load(beside))
    else:
        assert decoded.version == "2.0"
        for name, column in decoded.columns.items():
            answers = list(conformance_file.parent.glob(f"{conformance_file.stem}.{name}.npy"))
            if answers and column.rows.dtype.kind == "f" and column.rows.dtype.itemsize == 4:
                same(column.rows, np.load(answers[0]).reshape(column.rows.shape))


@pytest.mark.conformance_files("cvc/bad/*.cvc")
def test_the_reference_refuses_the_bad_conformance_files(conformance_file):
    data = conformance_file.read_bytes()
    if conformance_file.stem in ("crc_wrong", "payload_bitflip"):
        assert reference.decode(data).problems
    else:
        with pytest.raises(reference.InvalidFile):
            reference.decode(data)
