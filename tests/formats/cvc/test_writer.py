"""Writing CVC files: what comes back, the bytes, and what is refused."""

import json
import struct

import numpy as np
import pytest

import embmap
from embmap.cvc import Section, write, write_columns
from tests.formats.cvc.made import cvc

RNG = np.random.default_rng(1)


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


@pytest.mark.parametrize("blocks", [1, 4])
def test_chunks_get_the_metadata_given_for_them(tmp_path, blocks):
    rows = RNG.standard_normal((25, 6)).astype(np.float32)
    about = [{"source": "a"}, {"source": "b", "n": [1, None]}, {}]
    sections = [{"start": 8, "stop": 12, "metadata": {"source": "b"}}]
    options = {"chunk_rows": 10, "chunk_metadata": iter(about), "sections": sections}
    split = np.array_split(rows, blocks)
    for path in (
        write(tmp_path / "a", split, layout="1.0", mmap_optimized=True, **options),
        write_columns(tmp_path / "b", {"x": split}, **options | {"chunk_metadata": about}),
    ):
        with embmap.open(path) as file:
            assert [chunk.metadata for chunk in file.chunks] == about
            assert file.section(source="a").tolist() == list(range(10))
            assert file.section(source="b").tolist() == [*range(8, 12), *range(12, 20)]
            assert file.section(n=[1, None]).tolist() == list(range(10, 20))
            assert file.section(source="b", n=2).size == 0
            assert [each["metadata"] for each in file.info()["chunks"]] == about
            assert file.verify().ok


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ([{}], r"chunk_metadata\[1\] must be a mapping, not NoneType"),
        ([{}] * 4, "chunk_metadata has more items than there are chunks"),
        ([{}, "a", {}], r"chunk_metadata\[1\] must be a mapping, not str"),
        ([{}, {1: 2}, {}], "keys must be str"),
        ([{"x": float("nan")}] * 3, "cannot be written as JSON"),
    ],
)
def test_chunk_metadata_must_fit(tmp_path, about, message):
    rows = np.zeros((25, 2), np.float32)
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "a", rows, chunk_rows=10, chunk_metadata=about)
    with pytest.raises(ValueError, match=message):
        write_columns(tmp_path / "a", {"x": rows}, chunk_rows=10, chunk_metadata=about)
    assert not list(tmp_path.iterdir())


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
    "nan as int8": (ROWS * np.float32(np.nan), {"compression": "int8"}, "NaN or infinity"),
    "too large for half": (ROWS * np.float32(1e6), {}, "cannot hold"),
    "float64 without loss": (
        ROWS.astype(float),
        {"compression": "lossless", "layout": "1.0"},
        "must be float16 or float32",
    ),
    "an unknown compression": (ROWS, {"compression": "zip"}, "no compression 'zip'"),
    "an unknown version": (ROWS, {"layout": "2.0"}, "layout must be"),
    "no rows in a chunk": (ROWS, {"chunk_rows": 0}, "must be at least 1"),
    "sections beyond the rows": (ROWS, {"sections": [{"start": 3, "stop": 5}]}, "must be in rows"),
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
