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
from tests.formats.cvc.made import cvc

RNG = np.random.default_rng(0)


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


@pytest.fixture
def open_bytes(tmp_path, backend):
    def opener(data, **options):
        path = tmp_path / "a.cvc"
        path.write_bytes(data)
        return embmap.open(path, backend=backend, **options)

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


def test_chunks_of_many_pieces_are_checked_and_decoded_as_a_whole(open_bytes, kernel):
    n, dim = 150_000, 16
    rng = np.random.default_rng(4)
    halves = rng.standard_normal((n, dim), dtype=np.float32).astype(np.float16)
    codes = rng.integers(0, 256, (n, dim), np.uint8)
    described = [{"rows": n}, {"rows": n, "compression": "int8", "min": -1, "scale": 0.1}]
    data = cvc(one_matrix(2 * n, dim, described), [halves.tobytes(), codes.tobytes()], "1.0")
    tail = codes.astype(np.float32) * np.float32(0.1) + np.float32(-1)
    wanted = np.concatenate((halves.astype(np.float32), tail))
    with open_bytes(data) as file:
        assert np.array_equal(file.vectors, wanted)
        assert np.array_equal(file[7 : 2 * n - 7], wanted[7 : 2 * n - 7])
        assert np.array_equal(file.chunks[1].decode(np.asfortranarray(tail * 0)), tail)
        for row in (0, n - 1, n, 2 * n - 1):
            assert np.array_equal(file[row], wanted[row])
    for number, at in ((0, -codes.nbytes - 20), (1, -codes.nbytes), (1, -n * 8), (1, -1)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with open_bytes(bytes(damaged)) as file:
            for read in (lambda f=file: np.asarray(f.vectors), file.chunks[number].decode):
                with pytest.raises(embmap.ChecksumError, match=f"chunk {number}"):
                    read()


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


def two_columns(**ids):
    """Header and payload of five rows in columns "text" and "id"."""
    text = HALVES[:5, :2].tobytes()
    about = {"name": "id", "dimension": 1, "dtype": "int64", "compression": "none"}
    part = {"compression": "none", "offset": 20, "size": 40}
    part |= {key: ids.pop(key) for key in list(ids) if key in (*part, "min", "scale")}
    header = {
        "format_type": "columnar",
        "num_vectors": 5,
        "columns": [
            {"name": "text", "dimension": 2, "dtype": "float32", "compression": "fp16"},
            about | ids,
        ],
        "chunks": [
            {
                "rows": 5,
                "columns": {"text": {"compression": "fp16", "offset": 0, "size": 20}, "id": part},
            }
        ],
    }
    return header, text + np.arange(5, dtype=np.int64).tobytes()


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "int32"])
def test_compressed_integers_are_read_as_float32(open_bytes, dtype):
    header, payload = two_columns(dtype=dtype, compression="int8", size=5, min=-1, scale=0.5)
    codes = np.array([0, 1, 2, 254, 255], np.uint8)
    with open_bytes(cvc(header, [payload[:20] + codes.tobytes()], "2.0")) as file:
        ids = file.columns["id"]
        assert ids.dtype == np.float32
        assert np.asarray(ids)[:, 0].tolist() == [-1.0, -0.5, 0.0, 126.0, 126.5]
        assert ids.take([4, 0])[:, 0].tolist() == [126.5, -1.0]
        assert file.verify().ok
    header, payload = two_columns(dtype=dtype, compression="fp16", size=10)
    with open_bytes(cvc(header, [payload[:20] + HALVES[:5, 2].tobytes()], "2.0")) as file:
        assert np.asarray(file.columns["id"])[:, 0].tolist() == HALVES[:5, 2].tolist()


def test_integers_of_no_rows_keep_their_dtype(open_bytes):
    column = {"name": "id", "dimension": 1, "dtype": "int64", "compression": "none"}
    header = {"format_type": "columnar", "num_vectors": 0, "columns": [column], "chunks": []}
    with open_bytes(cvc(header, [], "2.0")) as file:
        assert file.columns["id"].dtype == np.int64


UNREADABLE = {
    "dtype": ({"dtype": "float8"}, embmap.FormatError, "float8"),
    "compression": ({"compression": "zip"}, embmap.UnsupportedError, "zip"),
    "size": ({"size": 39}, embmap.FormatError, "wrong size"),
    "place": ({"offset": 30}, embmap.FormatError, "outside its chunk"),
    "range": ({"compression": "int8", "size": 5}, embmap.FormatError, "'min' is missing"),
    "dimension": ({"dimension": 2**62}, embmap.UnsupportedError, "too many numbers for an array"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_unreadable_column_hides_no_other(open_bytes, what):
    ids, kind, message = UNREADABLE[what]
    header, payload = two_columns(**ids)
    with open_bytes(cvc(header, [payload], "2.0")) as file:
        assert file.vectors is None
        assert list(file.columns) == ["text"]
        assert np.array_equal(np.asarray(file.columns["text"]), HALVES[:5, :2].astype(np.float32))
        for ask in (lambda: file.columns["id"], lambda: file.chunks[0].decode(column="id")):
            for _ in range(2):
                with pytest.raises(kind, match=message) as caught:
                    ask()
                assert file.path in (caught.value.path, None) or str(file.path) in str(caught.value)
        with pytest.raises(KeyError):
            file.columns["none"]
        report = file.verify()
        assert not report.ok
        assert any(message in problem.message for problem in report.problems)
        (about,) = (each for each in file.info()["columns"] if each["name"] == "id")
        assert message in about["error"]
        assert repr(file)


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
        found = decode_planes(payload, parsed, np.arange(start, stop))
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
        "must be in rows",
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


@pytest.mark.parametrize(
    ("start", "gap", "warns"),
    [
        (4096, b"", False),
        (4096 + 17, b"", False),
        (3 << 20, b"", False),
        (4096, b"x", True),
        (3 << 20, bytes(2 << 20) + b"x", True),
    ],
)
def test_bytes_between_chunks_are_zero_or_a_warning(open_bytes, start, gap, warns):
    first = 8 + 2 * 3
    chunks = [{"rows": 1, "file_offset": 4096}, {"rows": 1, "file_offset": start + 4096}]
    data = cvc(one_matrix(2, 3, chunks, mmap_optimized=True), [], "1.0")
    record = struct.pack("<II", 6, zlib.crc32(bytes(6))) + bytes(6)
    data += bytes(4096 - len(data)) + record + gap
    data += bytes(start + 4096 - len(data)) + record
    with open_bytes(data) as file:
        assert not np.asarray(file.vectors).any()
        report = file.verify()
        assert report.ok
        assert [problem.severity for problem in report.problems] == ["warning"] * warns
        assert all(problem.offset == 4096 + first for problem in report.problems)


def test_a_conversion_names_the_columns_that_can_be_read(tmp_path):
    path = tmp_path / "a.cvc"
    header, payload = two_columns(dtype="float8")
    path.write_bytes(cvc(header, [payload], "2.0"))
    with pytest.raises(ValueError, match="choose a column with tensor: text"):
        embmap.convert(path, tmp_path / "a.npy")
    with pytest.raises(embmap.FormatError, match="float8"):
        embmap.convert(path, tmp_path / "a.npy", tensor="id")
    report = embmap.convert(path, tmp_path / "a.npy", tensor="text")
    assert report.left_out == ("other columns",)
