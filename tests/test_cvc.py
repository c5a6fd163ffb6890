"""CVC files through the public face, built here byte by byte."""

import json
import struct
import zlib

import numpy as np
import pytest

import embmap
from embmap.codecs.affine import decode_affine
from embmap.codecs.half import decode_half
from embmap.codecs.planes import decode_planes, parse_planes
from embmap.cvc import Section, write, write_columns

RNG = np.random.default_rng(0)


def cvc(header, payloads, version="0.1"):
    """Return the bytes of a file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = b"CVCF"
    if version != "0.1":
        data += struct.pack("<HH", int(version[0]), 0)
    data += struct.pack("<I", len(text)) + text
    for payload in payloads:
        data += struct.pack("<I", len(payload))
        if version != "0.1":
            data += struct.pack("<I", zlib.crc32(payload))
        data += payload
    return data


def one_matrix(rows, dim, chunks, **more):
    return {
        "num_vectors": rows,
        "dimension": dim,
        "compression": "fp16",
        "chunks": chunks,
        **more,
    }


HALVES = RNG.standard_normal((7, 3)).astype(np.float16)
CODES = RNG.integers(0, 256, (4, 3), np.uint8)
MIXED = one_matrix(
    11,
    3,
    [{"rows": 7}, {"rows": 0}, {"rows": 4, "compression": "int8", "min": -1, "scale": 0.1}],
    sections=[
        {"start_index": 0, "end_index": 2, "metadata": {"source": "a"}},
        {"start_index": 2, "end_index": 9, "metadata": {"source": "b"}},
        {"start_index": 9, "end_index": 11, "metadata": {"source": "a"}},
    ],
    title="mixed",
)
PAYLOADS = [HALVES.tobytes(), b"", CODES.tobytes()]


@pytest.fixture(params=["mmap", "read"])
def open_bytes(request, tmp_path):
    def opener(data, **options):
        path = tmp_path / "a.cvc"
        path.write_bytes(data)
        return embmap.open(path, backend=request.param, **options)

    return opener


def expected():
    tail = CODES.astype(np.float32) * np.float32(0.1) + np.float32(-1)
    return np.concatenate([HALVES.astype(np.float32), tail])


@pytest.mark.parametrize("version", ["0.1", "1.0"])
def test_mixed_chunks_are_decoded_each_in_its_way(open_bytes, version):
    with open_bytes(cvc(MIXED, PAYLOADS, version)) as file:
        assert file.layout == version
        assert (len(file), file.shape, file.vocab) == (11, (11, 3), None)
        assert np.array_equal(np.asarray(file.vectors), expected())
        assert np.array_equal(file[[10, 0, 7, 10]], expected()[[10, 0, 7, 10]])
        assert np.array_equal(file[6:9], expected()[6:9])
        assert np.array_equal(file[-1], expected()[-1])
        assert file.section(source="a").tolist() == [0, 1, 9, 10]
        assert file.section(source="a", lang="en").size == 0
        assert file.section().size == 11
        assert file.metadata == {"title": "mixed"}
        assert [chunk.rows for chunk in file.chunks] == [7, 0, 4]
        assert file.chunks[2].compression == "int8"
        assert file.chunks[0].raw.tobytes() == PAYLOADS[0]
        assert not file.chunks[0].raw.flags.writeable
        out = np.empty((4, 3), np.float32)
        assert file.chunks[2].decode(out) is out
        assert np.array_equal(out, expected()[7:])
        assert file.verify().ok
        assert [part["rows"] for part in file.info()["chunks"]] == [7, 0, 4]


def test_words_may_be_given(open_bytes):
    words = [f"w{i}" for i in range(11)]
    with open_bytes(cvc(MIXED, PAYLOADS), vocab=words) as file:
        assert np.array_equal(file["w8"], expected()[8])
        assert np.array_equal(file.batch(["w10", "w0"]), expected()[[10, 0]])
    with pytest.raises(ValueError, match="2 words were given for 11 rows"):
        open_bytes(cvc(MIXED, PAYLOADS), vocab=["a", "b"])


def test_a_wrong_checksum_stops_chunks_and_not_rows(open_bytes):
    data = bytearray(cvc(MIXED, PAYLOADS, "1.0"))
    data[-1] ^= 1
    with open_bytes(bytes(data)) as file:
        assert np.array_equal(file[7], expected()[7])
        assert np.array_equal(file[0:7], expected()[0:7])
        for read in (lambda: np.asarray(file.vectors), lambda: file.chunks[2].decode()):
            with pytest.raises(embmap.ChecksumError, match="chunk 2"):
                read()
        assert not file.verify().ok


def test_columns_are_matched_by_name(open_bytes):
    ids = np.arange(5, dtype=np.int64)
    text = RNG.standard_normal((5, 2)).astype(np.float16)
    header = {
        "format_type": "columnar",
        "num_vectors": 5,
        "columns": [
            {"name": "text", "dimension": 2, "dtype": "float32", "compression": "fp16"},
            {"name": "id", "dimension": 1, "dtype": "int64", "compression": "none"},
        ],
        "chunks": [
            {
                "rows": 5,
                "columns": {
                    "id": {"compression": "none", "offset": 0, "size": 40},
                    "text": {"compression": "fp16", "offset": 40, "size": 20},
                },
            }
        ],
    }
    with open_bytes(cvc(header, [ids.tobytes() + text.tobytes()], "2.0")) as file:
        assert file.layout == "2.0"
        assert file.vectors is None
        assert list(file.columns) == ["text", "id"]
        assert file.columns["id"][:, 0].tolist() == ids.tolist()
        assert file.columns["id"].dtype == np.int64
        assert np.array_equal(np.asarray(file.columns["text"]), text.astype(np.float32))
        assert file.chunks[0].decode(column="id")[4] == 4
        with pytest.raises(ValueError, match="column must be one of"):
            file.chunks[0].decode()
        with pytest.raises(KeyError):
            file.chunks[0].decode(column="none")
        assert file.verify().ok


def test_compressed_integers_are_refused(open_bytes):
    column = {"name": "id", "dimension": 1, "dtype": "int64", "compression": "fp16"}
    part = {"compression": "fp16", "offset": 0, "size": 2}
    header = {
        "format_type": "columnar",
        "num_vectors": 1,
        "columns": [column],
        "chunks": [{"rows": 1, "columns": {"id": part}}],
    }
    with pytest.raises(embmap.FormatError, match="integers cannot be stored as fp16"):
        open_bytes(cvc(header, [b"ab"], "2.0"))
    column["compression"], header["chunks"], header["num_vectors"] = "none", [], 0
    with open_bytes(cvc(header, [], "2.0")) as file:
        assert file.columns["id"].dtype == np.int64


def planes(values):
    """Encode float32 values in byte planes."""
    data = values.astype("<f4").view(np.uint8).reshape(-1, 4)
    bits, body = [], b""
    for plane in range(4):
        dictionary = sorted(set(data[:, plane].tolist()))
        width = max(1, (len(dictionary) - 1).bit_length())
        bits.append(width)
        text = "".join(f"{dictionary.index(byte):0{width}b}" for byte in data[:, plane].tolist())
        text += "0" * (-len(text) % 8)
        packed = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
        body += struct.pack("<H", len(dictionary)) + bytes(dictionary) + packed
    return struct.pack("<I4B", values.size, *bits) + body


def test_lossless_chunks_give_any_rows_to_the_bit(open_bytes):
    values = RNG.standard_normal((20, 5)).astype(np.float32)
    values[3] = np.nan, np.inf, -np.inf, 0, -0.0
    header = one_matrix(20, 5, [{"rows": 20, "compression": "lossless"}])
    with open_bytes(cvc(header, [planes(values)], "1.0")) as file:
        assert np.asarray(file.vectors).tobytes() == values.tobytes()
        assert file[3].tobytes() == values[3].tobytes()
        assert file[[19, 3]].tobytes() == values[[19, 3]].tobytes()


@pytest.mark.parametrize("n_distinct", [1, 2, 3, 17, 256])
def test_planes_of_any_width_are_decoded(n_distinct):
    values = RNG.integers(0, n_distinct, 100).astype("<u4").view(np.float32)
    payload = np.frombuffer(planes(values), np.uint8)
    parsed = parse_planes(payload)
    for start, stop in ((0, 100), (13, 14), (99, 100), (5, 5)):
        found = decode_planes(payload, parsed, start, stop)
        assert found.tobytes() == values[start:stop].tobytes()


def test_every_half_is_decoded_exactly():
    patterns = np.arange(65536, dtype=np.uint16)
    with np.errstate(all="ignore"):
        wanted = patterns.view(np.float16).astype(np.float32)
    found = decode_half(patterns)
    finite = ~np.isnan(wanted)
    assert np.array_equal(found[finite].view(np.uint32), wanted[finite].view(np.uint32))
    assert np.isnan(found[~finite]).all()
    square = decode_half(patterns.reshape(256, 256))
    assert square.tobytes() == found.tobytes()
    few = [decode_half(patterns[start : start + 1000]) for start in range(0, 65536, 1000)]
    assert np.concatenate(few).tobytes() == found.tobytes()


def test_affine_codes_are_rounded_twice():
    codes = np.arange(256, dtype=np.uint8)
    for scale, minimum in ((0.1, -1.7), (1 / 3, 1e-3), (2.0, 3.0)):
        wanted = [
            np.float32(np.float32(np.float32(code) * np.float32(scale)) + np.float32(minimum))
            for code in codes
        ]
        assert decode_affine(codes, scale, minimum).tolist() == [float(x) for x in wanted]


def changed(**changes):
    header = json.loads(json.dumps(MIXED))
    header.update(changes)
    return cvc(header, PAYLOADS)


NESTED = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
REFUSED = {
    "nested without end": (cvc(NESTED, []), "not JSON"),
    "not UTF-8": (cvc(b'{"a": "\xff"}', []), "not JSON"),
    "a repeated key": (cvc(b'{"a": 1, "a": 2}', []), "same key twice"),
    "a list": (cvc(b"[1]", []), "not a JSON object"),
    "negative rows": (changed(chunks=[{"rows": -1}]), "'rows' cannot be -1"),
    "rows that are true": (changed(chunks=[{"rows": True}]), "'rows' cannot be"),
    "huge rows": (changed(chunks=[{"rows": 2**70}]), "'rows' cannot be"),
    "chunks that are numbers": (changed(chunks=[1]), "must be an object"),
    "no dimensions": (changed(dimension=0), "at least one dimension"),
    "a wrong sum": (changed(num_vectors=12), "the chunks have 11 rows"),
    "sections beyond the rows": (
        changed(sections=[{"start_index": 5, "end_index": 12}]),
        "do not exist",
    ),
    "lossless in 0.1": (
        changed(chunks=[{"rows": 7, "compression": "lossless"}]),
        "has no compression lossless",
    ),
    "a header beyond the file": (b"CVCF" + struct.pack("<I", 2**31) + b"{}", "only 2 are left"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_headers_are_refused(open_bytes, case):
    data, message = REFUSED[case]
    with pytest.raises(embmap.FormatError, match=message):
        open_bytes(data)


@pytest.mark.parametrize("version", ["0.1", "1.0"])
def test_every_truncation_and_flip_is_refused_or_harmless(tmp_path, version):
    data = cvc(MIXED, PAYLOADS, version)
    path = tmp_path / "a.cvc"

    def read():
        with embmap.open(path) as file, np.errstate(all="ignore"):
            return np.asarray(file.vectors)

    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(embmap.FormatError):
            read()
    payload = data.index(PAYLOADS[0])
    for place in range(len(data)):
        for flip in (1, 0x80):
            path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            try:
                found = read()
            except embmap.FormatError:
                continue
            if version == "1.0" and place >= payload:  # the checksum of a chunk without rows
                assert np.array_equal(found, expected())
            assert found.dtype == np.float32


def test_lossless_payloads_that_are_damaged_are_refused(open_bytes):
    values = RNG.standard_normal((4, 2)).astype(np.float32)
    whole = planes(values)
    header = one_matrix(4, 2, [{"rows": 4, "compression": "lossless"}])
    for place in range(12):
        payload = whole[:place] + bytes([whole[place] ^ 0x0F]) + whole[place + 1 :]
        try:
            with open_bytes(cvc(header, [payload], "1.0")) as file:
                row = file[0]
        except embmap.FormatError:
            continue
        assert row.shape == (2,)
    with open_bytes(cvc(header, [whole + b"0"], "1.0")) as file:
        with pytest.raises(embmap.FormatError, match="the payload has"):
            file[0]
        assert not file.verify().ok
    with pytest.raises(embmap.FormatError, match=r"chunk 0.*8 values take"):
        open_bytes(cvc(header, [whole[:15]], "1.0"))


def test_large_files_are_decoded_by_threads_to_the_same(tmp_path):
    halves = RNG.standard_normal((40_000, 128)).astype(np.float16)
    chunks = [{"rows": 10_000}] * 4
    path = tmp_path / "a.cvc"
    payloads = [halves[i : i + 10_000].tobytes() for i in range(0, 40_000, 10_000)]
    path.write_bytes(cvc(one_matrix(40_000, 128, chunks), payloads))
    with embmap.open(path) as file:
        assert np.array_equal(np.asarray(file.vectors), halves.astype(np.float32))


@pytest.mark.parametrize("version", ["0.1", "1.0"])
@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_what_is_written_comes_back(tmp_path, version, compression):
    vectors = RNG.standard_normal((25, 6)).astype(np.float32)
    path = tmp_path / "a.cvc"
    options = {"compression": compression, "layout": version, "chunk_rows": 10}
    if compression == "lossless" and version == "0.1":
        with pytest.raises(ValueError, match=r"version 1\.0 does"):
            write(path, vectors, **options)
        return
    sections = [{"start": 0, "stop": 3, "metadata": {"lang": "ü"}}, Section(3, 25, {})]
    assert write(path, vectors, **options, sections=sections, metadata={"x": [1]}) == path
    with embmap.open(path) as file:
        assert file.layout == version
        assert [chunk.rows for chunk in file.chunks] == [10, 10, 5]
        assert file.section(lang="ü").tolist() == [0, 1, 2]
        assert file.metadata == {"x": [1]}
        assert file.verify().ok
        found = np.asarray(file.vectors)
        if compression == "lossless":
            assert found.tobytes() == vectors.tobytes()
        elif compression == "fp16":
            assert np.array_equal(found, vectors.astype(np.float16).astype(np.float32))
        else:
            for chunk, rows in zip(file.chunks, np.split(vectors, [10, 20]), strict=True):
                step = (rows.max() - rows.min()) / 255
                assert np.abs(chunk.decode() - rows).max() <= 0.51 * step
        again = write(tmp_path / "b.cvc", file.vectors, **options)
    with embmap.open(again) as file:
        assert np.allclose(np.asarray(file.vectors), found, atol=1e-6)


def test_any_blocks_make_the_same_chunks(tmp_path):
    vectors = RNG.standard_normal((23, 4)).astype(np.float32)
    whole = write(tmp_path / "a", vectors, chunk_rows=7).read_bytes()
    for sizes in ([23], [1] * 23, [10, 0, 13], [6, 9, 8]):
        parts = iter(np.split(vectors, np.cumsum(sizes)[:-1]))
        assert write(tmp_path / "b", parts, chunk_rows=7).read_bytes() == whole
    with embmap.open(tmp_path / "b") as file:
        assert [chunk.rows for chunk in file.chunks] == [7, 7, 7, 2]


def test_the_bytes_are_those_of_the_text(tmp_path):
    rows = np.array([[1, 2], [3, 4]], np.float32)
    header = {
        "num_vectors": 2,
        "dimension": 2,
        "compression": "fp16",
        "chunks": [{"rows": 2, "compression": "fp16"}],
    }
    path = write(tmp_path / "a", rows)
    assert path.read_bytes() == cvc(header, [rows.astype(np.float16).tobytes()])
    path = write(tmp_path / "a", rows, layout="1.0")
    assert path.read_bytes() == cvc(header, [rows.astype(np.float16).tobytes()], "1.0")


def test_each_chunk_may_choose(tmp_path):
    vectors = RNG.standard_normal((30, 4)).astype(np.float32)
    path = write(
        tmp_path / "a",
        vectors,
        chunk_rows=10,
        layout="1.0",
        compression=lambda number, chunk: ["int8", "fp16", "lossless"][number],
    )
    with embmap.open(path) as file:
        assert [chunk.compression for chunk in file.chunks] == ["int8", "fp16", "lossless"]
        assert np.array_equal(file[20:], vectors[20:])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_a_chunk_of_many_pieces_is_encoded_as_a_whole(tmp_path, compression, dtype):
    if (compression, dtype) == ("lossless", "f8"):
        dtype = "f4"
    rng = np.random.default_rng(6)
    vectors = (rng.standard_normal((9000, 301)) * np.linspace(0.5, 2, 301)).astype(dtype)
    blocks = np.split(vectors, [1, 2, 3000, 8500])
    options = {"compression": compression, "layout": "1.0"}
    path = write(tmp_path / "a", vectors, **options)
    assert path.read_bytes() == write(tmp_path / "b", blocks, **options).read_bytes()
    single = vectors.astype("f4")
    if compression == "fp16":
        expected = vectors.astype("f2").astype("f4")
    elif compression == "int8":
        scale = (single.max() - single.min()) / np.float32(255)
        codes = np.rint((single - single.min()) / scale).clip(0, 255)
        expected = codes * scale + single.min()
    else:
        expected = single
    with embmap.open(path) as file:
        assert len(file.chunks) == 1
        assert np.array_equal(file.chunks[0].decode(), expected)


def test_no_vectors_and_equal_ones_are_written(tmp_path):
    for version in ("0.1", "1.0"):
        with embmap.open(write(tmp_path / "a", np.empty((0, 5), "f4"), layout=version)) as file:
            assert file.shape == (0, 5)
            assert np.asarray(file.vectors).shape == (0, 5)
    path = write(tmp_path / "a", np.full((3, 2), 7.5, "f4"), compression="int8")
    with embmap.open(path) as file:
        assert np.asarray(file.vectors).tolist() == [[7.5, 7.5]] * 3


def test_columns_come_back(tmp_path):
    columns = {
        "text": RNG.standard_normal((25, 4)).astype(np.float32),
        "raw": RNG.standard_normal((25, 2)).astype(np.float32),
        "id": np.arange(25, dtype=np.int64),
        "kind": np.arange(25, dtype=np.uint8).reshape(25, 1),
        "half": RNG.standard_normal((25, 1)).astype(np.float16),
    }
    path = write_columns(
        tmp_path / "a", columns, compression={"text": "fp16"}, chunk_rows=10, metadata={"m": 1}
    )
    with embmap.open(path) as file:
        assert file.layout == "2.0"
        assert list(file.columns) == list(columns)
        assert file.metadata == {"m": 1}
        for name, expected in columns.items():
            found = np.asarray(file.columns[name])
            wanted = expected.reshape(25, -1)
            if name == "text":
                wanted = wanted.astype(np.float16).astype(np.float32)
            assert found.dtype == wanted.dtype
            assert np.array_equal(found, wanted)
        assert file.verify().ok


ROWS = np.ones((4, 2), np.float32)
UNWRITABLE = {
    "integers": (ROWS.astype(int), {}, "floating point"),
    "nan as int8": (ROWS * np.float32(np.nan), {"compression": "int8"}, "no NaN"),
    "too large for half": (ROWS * np.float32(1e6), {}, "cannot hold"),
    "float64 without loss": (
        ROWS.astype(float),
        {"compression": "lossless", "layout": "1.0"},
        "must be float16 or float32",
    ),
    "an unknown compression": (ROWS, {"compression": "zip"}, "no compression 'zip'"),
    "an unknown version": (ROWS, {"layout": "2.0"}, "layout must be"),
    "no rows in a chunk": (ROWS, {"chunk_rows": 0}, "must be at least 1"),
    "sections beyond the rows": (ROWS, {"sections": [{"start": 3, "stop": 5}]}, "must lie in"),
    "metadata that are keys": (ROWS, {"metadata": {"chunks": 1}}, "a key of the format"),
    "metadata that are no JSON": (ROWS, {"metadata": {"a": object()}}, "cannot be written as JSON"),
    "blocks of two widths": ([ROWS, ROWS[:, :1]], {}, "1 columns"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_does_not_fit_is_refused_and_the_old_file_stays(tmp_path, case):
    vectors, options, message = UNWRITABLE[case]
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=message):
        write(path, vectors, **options)
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {}, "one column"),
        ({"a": [np.zeros((2, 1), np.float32), np.zeros((2, 2), np.float32)]}, {}, "2 columns"),
        ({"a": iter([1.0, 2.0])}, {}, "must be arrays"),
        ({"a": [1], "b": iter([np.zeros(2, np.int64)])}, {}, "same number of rows"),
        ({"a": [1], "b": [1, 2]}, {}, "same number of rows"),
        ({"a": np.zeros(2)}, {}, "float64"),
        ({"a": np.zeros(2, np.int32)}, {"compression": "fp16"}, "must be float32"),
        ({"a": np.zeros(2, np.float32)}, {"compression": "lossless"}, "version 1.0 does"),
        ({"a": np.zeros(2, np.float32)}, {"chunk_rows": 0}, "at least 1"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, columns, options, message):
    with pytest.raises(ValueError, match=message):
        write_columns(tmp_path / "a", columns, **options)
    assert list(tmp_path.iterdir()) == []


def test_columns_come_from_matrices_and_blocks_of_any_size(tmp_path):
    vectors = RNG.standard_normal((10, 3)).astype(np.float32)
    source = write(tmp_path / "source.cvc", vectors, compression="lossless", layout="1.0")
    numbers = np.arange(10, dtype=np.int64)
    steps = []
    with embmap.open(source) as file:
        path = write_columns(
            tmp_path / "columns.cvc",
            {
                "matrix": file.vectors,
                "blocks": (vectors[i : i + 3] for i in range(0, 10, 3)),
                "numbers": (numbers[i : i + 4] for i in range(0, 10, 4)),
                "listed": numbers.tolist(),
            },
            chunk_rows=7,
            progress=lambda *step: steps.append(step),
        )
    with embmap.open(path) as file:
        assert [chunk.rows for chunk in file.chunks] == [7, 3]
        assert np.array_equal(file.columns["matrix"], vectors)
        assert np.array_equal(file.columns["blocks"], vectors)
        assert np.array_equal(np.asarray(file.columns["numbers"])[:, 0], numbers)
        assert np.array_equal(np.asarray(file.columns["listed"])[:, 0], numbers)
    assert steps == [("writing rows", 7, 10), ("writing rows", 10, 10)]


def test_columns_without_rows_keep_their_names_and_types(tmp_path):
    path = write_columns(
        tmp_path / "a.cvc", {"a": np.empty((0, 3), np.int32), "b": np.empty(0)[:0].astype("u1")}
    )
    with embmap.open(path) as file:
        assert {name: (m.shape, m.dtype.name) for name, m in file.columns.items()} == {
            "a": ((0, 3), "int32"),
            "b": ((0, 1), "uint8"),
        }


@pytest.mark.parametrize("n", [0, 1, 25])
@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_chunks_optimized_for_mapping_start_on_pages(tmp_path, backend, compression, n):
    vectors = RNG.standard_normal((n, 3)).astype(np.float32)
    plain = write(tmp_path / "plain", vectors, compression=compression, layout="1.0", chunk_rows=4)
    paged = write(
        tmp_path / "paged",
        vectors,
        compression=compression,
        layout="1.0",
        chunk_rows=4,
        mmap_optimized=True,
    )
    data = paged.read_bytes()
    header = json.loads(data[12 : 12 + struct.unpack_from("<I", data, 8)[0]])
    assert header["mmap_optimized"] is True
    assert len(header["chunks"]) == -(-n // 4)
    for chunk in header["chunks"]:
        assert chunk["file_offset"] % 4096 == 0
    with embmap.open(plain, backend=backend) as one, embmap.open(paged, backend=backend) as two:
        assert np.array_equal(np.asarray(one.vectors), np.asarray(two.vectors))
        assert [c.raw.tobytes() for c in one.chunks] == [c.raw.tobytes() for c in two.chunks]
        assert two.verify().ok


def test_only_version_one_can_be_optimized_for_mapping(tmp_path):
    with pytest.raises(ValueError, match=r"requires the layout '1\.0'"):
        write(tmp_path / "a", ROWS, mmap_optimized=True)


def test_overflow_can_be_allowed(tmp_path):
    vectors = np.array([[1e6, -1e6], [65504, 1]], np.float32)
    with pytest.raises(ValueError, match="65504"):
        write(tmp_path / "a", vectors)
    with pytest.raises(ValueError, match="65504"):
        write_columns(tmp_path / "a", {"a": vectors}, compression="fp16")
    expected = [[np.inf, -np.inf], [65504, 1]]
    with embmap.open(write(tmp_path / "a", vectors, allow_overflow=True)) as file:
        assert np.asarray(file.vectors).tolist() == expected
    path = write_columns(tmp_path / "b", {"a": vectors}, compression="fp16", allow_overflow=True)
    with embmap.open(path) as file:
        assert np.asarray(file.vectors).tolist() == expected


def test_writing_reports_its_progress(tmp_path):
    steps = []
    write(tmp_path / "a", np.zeros((5, 2)), chunk_rows=2, progress=lambda *step: steps.append(step))
    assert steps == [("writing rows", done, 5) for done in (2, 4, 5)]
    steps.clear()
    blocks = (np.zeros((2, 2)) for _ in range(2))  # of unknown number
    write(tmp_path / "a", blocks, chunk_rows=3, progress=lambda *step: steps.append(step))
    assert steps == [("writing rows", done, 0) for done in (3, 4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sections": [{"start": 0.0, "stop": 5.0}]}, "must be rows"),
        ({"sections": [{"start": True, "stop": 5}]}, "must be rows"),
        ({"sections": [(0, 5)]}, "must have start and stop"),
        ({"sections": [{"start": 0, "stop": 5, "metadata": {1: 2}}]}, "keys must be str"),
        ({"metadata": {1: 2, "1": 3}}, "keys must be str"),
        ({"metadata": {"a": {1: 2}}}, "keys must be str"),
        ({"metadata": ["a"]}, "must be a mapping"),
    ],
)
def test_headers_that_could_not_be_read_again_are_not_written(tmp_path, options, message):
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=message):
        write(path, np.zeros((5, 2)), **options)
    assert path.read_bytes() == b"old"


def test_sections_take_numbers_of_numpy(tmp_path):
    section = {"start": np.int64(1), "stop": np.int32(3), "metadata": {"a": (1, 2)}}
    with embmap.open(write(tmp_path / "a.cvc", np.zeros((5, 2)), sections=[section])) as file:
        assert [(each.start, each.stop) for each in file.sections] == [(1, 3)]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({1: np.zeros(2, np.float32)}, {}, "must be str"),
        ({None: np.zeros(2, np.float32)}, {}, "must be str"),
        ([("a", np.zeros(2, np.float32))], {}, "mapping"),
        (
            {"a": np.zeros(2, np.float32)},
            {"compression": {"b": "fp16"}},
            "'b', which is not a column",
        ),
        ({"a": np.zeros(2, np.float32)}, {"compression": None}, "must be a name"),
        ({"a": iter([])}, {}, "at least one block"),
    ],
)
def test_columns_that_mean_nothing_are_refused(tmp_path, columns, options, message):
    with pytest.raises(ValueError, match=message):
        write_columns(tmp_path / "a", columns, **options)
    assert list(tmp_path.iterdir()) == []


def test_columns_may_be_of_the_other_byte_order(tmp_path):
    values = np.arange(6, dtype=">f4").reshape(3, 2)
    path = write_columns(tmp_path / "a.cvc", {"a": values}, compression="fp16")
    with embmap.open(path) as file:
        assert np.array_equal(file.columns["a"], values)


def test_int8_refuses_ranges_that_float32_cannot_span(tmp_path):
    wide = np.array([[3e38, -3e38], [0, 1]], np.float32)
    with pytest.raises(ValueError, match="chunk 0: int8 cannot span"):
        write(tmp_path / "a.cvc", wide, compression="int8")
    with pytest.raises(ValueError, match="chunk 0: int8 cannot span"):
        write(tmp_path / "a.cvc", np.array([[1e39, 0.0]]), compression="int8")
    path = write(tmp_path / "a.cvc", wide / 2, compression="int8")
    with embmap.open(path) as file:
        assert np.isfinite(np.asarray(file.vectors)).all()
