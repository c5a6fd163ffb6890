"""What the conformance folder shows about CVC files, with files made here.

Files come from the reference encoder and are compared, through the public face, with what the
reference decoder says; files that embmap writes go the other way round.
"""

import itertools
import json
import struct

import numpy as np
import pytest

import embmap
from tests.conformance.generated_cvc import (
    ABOUT,
    COLUMNS,
    PATTERNS,
    RNG,
    SECTIONS,
    SPECIAL,
    WITHOUT_COLUMNS,
    columns_of,
    each_way,
    reads_like_the_reference,
    same,
    values,
    vectors,
)
from tests.reference import cvc as reference

pytestmark = pytest.mark.slow


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
