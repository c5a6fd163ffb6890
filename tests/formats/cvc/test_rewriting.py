"""Converting CVC to CVC keeps everything that the format holds, field by field."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import embmap
from tests.formats.cvc.made import cvc
from tests.judges.cvc import SMALL, header_of
from tests.reference import cvc as reference

RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((23, 4)).astype(np.float32)


def fields(data):
    """The header and the payloads of a file, without what follows from the place of chunks."""
    decoded = reference.decode(data)
    header = json.loads(header_of(data)[1])
    for chunk in header["chunks"]:
        chunk.pop("file_offset", None)
        chunk.pop("sections", None)
    rows = [
        (name, column.rows.dtype.str, column.rows.tobytes())
        for name, column in decoded.columns.items()
    ]
    return decoded.version, repr(header), [chunk.payload for chunk in decoded.chunks], rows


def convert(path, **options):
    out = path.with_name("out.cvc")
    report = embmap.convert(path, out, **options)
    with embmap.open(out) as file:
        verified = file.verify()
        assert not verified.problems
    return out, report


def read(path, data):
    path.write_bytes(data)
    return path


def columnar(**more):
    """A file of columns: chunks of 2, 0 and 3 rows, sections, unknown keys everywhere."""
    columns = {
        "id": ("int64", "none", 1),
        "half": ("float16", "none", 2),
        "text": ("float32", "fp16", 3),
        "image": ("float32", "int8", 4),
    }
    chunks = [
        {
            name: (np.arange(n * dim) - 2).reshape(n, dim).astype(dtype)
            for name, (dtype, _, dim) in columns.items()
        }
        for n in (2, 3)
    ]
    sections = [
        {"start_index": 0, "end_index": 3, "num_vectors": 3, "metadata": {"s": "a"}, "seen": 1},
        {"start_index": 3, "end_index": 5, "num_vectors": 2, "metadata": {"s": "b"}},
        {"start_index": 3, "end_index": 3, "num_vectors": 0},
    ]
    data = reference.columnar(columns, chunks, sections=sections, title="T", nan=float("nan"))
    header = json.loads(header_of(data)[1])
    for i, chunk in enumerate(header["chunks"]):
        chunk["metadata"] = {"batch": i}
        chunk["more"] = [i]
    header["columns"][0]["unit"] = "none"
    header |= more
    payloads = [chunk.payload for chunk in reference.decode(data).chunks]
    return cvc(header, payloads, "2.0")


FILES = {**SMALL, "columns": columnar()}


@pytest.mark.parametrize("name", FILES)
def test_every_field_of_a_made_file_is_kept(tmp_path, name):
    out, report = convert(read(tmp_path / "in.cvc", FILES[name]))
    assert fields(out.read_bytes()) == fields(FILES[name])
    assert report.left_out == ()


@pytest.mark.conformance_files("cvc/v0/*.cvc", "cvc/v1/*.cvc", "cvc/v2/*.cvc", "cvc/handmade/*.cvc")
def test_every_field_of_a_conformance_file_is_kept(conformance_file, tmp_path):
    data = Path(conformance_file).read_bytes()
    out, report = convert(read(tmp_path / "in.cvc", data))
    assert fields(out.read_bytes()) == fields(data)
    assert report.left_out == ()
    again, _ = convert(read(tmp_path / "in.cvc", out.read_bytes()))
    assert fields(again.read_bytes()) == fields(data)


def test_limited_rows_keep_stored_numbers_sections_and_chunks(tmp_path):
    path = read(tmp_path / "in.cvc", columnar())
    out, report = convert(path, limit=3)
    with embmap.open(path) as old, embmap.open(out) as new:
        assert [chunk.rows for chunk in new.chunks] == [2, 1]
        assert [chunk.metadata for chunk in new.chunks] == [{"batch": 0}, {"batch": 1}]
        assert [(each.start, each.stop) for each in new.sections] == [(0, 3), (3, 3)]
        for name, matrix in old.columns.items():
            assert new.columns[name].dtype == matrix.dtype
            assert np.asarray(new.columns[name]).tobytes() == matrix[:3].tobytes()
    assert report.left_out == ("sections",)  # one has no rows any more
    assert report.n_words == 3


def test_chosen_words_keep_stored_numbers_sections_and_chunks(tmp_path):
    path = read(tmp_path / "in.cvc", columnar())
    out, report = convert(path, vocab=list("abcde"), words=["e", "c"])
    with embmap.open(path) as old, embmap.open(out, vocab=f"{out}.words.txt") as new:
        assert list(new.vocab) == ["c", "e"]
        assert [chunk.metadata for chunk in new.chunks] == [{"batch": 1}]
        assert new.section(s="a").tolist() == [0]
        assert new.section(s="b").tolist() == [1]
        for name, matrix in old.columns.items():
            assert np.asarray(new.columns[name]).tobytes() == matrix.take([2, 4]).tobytes()
    assert report.left_out == ("chunk metadata",)


@pytest.mark.parametrize("name", ["0.1 mixed", "1.0 lossless", "1.0 on pages"])
def test_chosen_rows_of_one_matrix_are_not_rounded_again(tmp_path, name):
    path = read(tmp_path / "in.cvc", SMALL[name])
    n = len(embmap.open(path))
    out, _ = convert(path, vocab=[f"w{i}" for i in range(n)], words=["w1", f"w{n - 1}"])
    with embmap.open(path) as old, embmap.open(out) as new:
        assert new.layout == old.layout
        assert np.asarray(new.vectors).tobytes() == old.vectors.take([1, n - 1]).tobytes()


def test_another_version_keeps_payloads_sections_and_metadata(tmp_path):
    path = read(tmp_path / "in.cvc", SMALL["0.1 mixed"])
    for version in ("1.0", "2.0", "0.1"):
        out, report = convert(path, output_layout=version)
        assert report.left_out == ()
        with embmap.open(path) as old, embmap.open(out) as new:
            assert new.layout == version
            assert (new.metadata, new.sections) == (old.metadata, old.sections)
            assert [chunk.compression for chunk in new.chunks] == [
                chunk.compression for chunk in old.chunks
            ]
            assert [chunk.raw.tobytes() for chunk in new.chunks] == [
                chunk.raw.tobytes() for chunk in old.chunks
            ]


def test_a_compression_applies_to_columns_of_floats(tmp_path):
    path = read(tmp_path / "in.cvc", columnar())
    out, report = convert(path, compression="fp16")
    with embmap.open(path) as old, embmap.open(out) as new:
        assert new.chunks[0].compression == "none, fp16, fp16, fp16"
        assert new.columns["id"].dtype == np.int64
        assert np.array_equal(new.columns["half"], np.asarray(old.columns["half"], np.float32))
        assert [chunk.metadata for chunk in new.chunks] == [{"batch": 0}, {"batch": 1}]
    assert report.left_out == ()
    with pytest.raises(ValueError, match=r"version 2\.0 has no compression 'lossless'"):
        convert(path, compression="lossless")


def test_scaled_rows_keep_their_chunks_and_sections(tmp_path):
    path = embmap.cvc.write(
        tmp_path / "in.cvc",
        ROWS,
        compression="lossless",
        layout="1.0",
        chunk_rows=10,
        sections=[{"start": 0, "stop": 12, "metadata": {"s": 1}}],
    )
    out, _ = convert(path, normalize=True)
    with embmap.open(out) as file:
        assert np.allclose(np.linalg.norm(file.vectors, axis=1), 1)
        assert [chunk.rows for chunk in file.chunks] == [10, 10, 3]
        assert len(file.section(s=1)) == 12
    with pytest.raises(ValueError, match="choose it with tensor: id, half, text, image"):
        convert(read(tmp_path / "in.cvc", columnar()), normalize=True)


def test_one_column_is_kept_as_it_is(tmp_path):
    out, report = convert(read(tmp_path / "in.cvc", columnar()), tensor="image")
    assert report.left_out == ("other columns",)
    with embmap.open(tmp_path / "in.cvc") as old, embmap.open(out) as new:
        assert list(new.columns) == ["image"]
        assert new.chunks[0].compression == "int8"
        assert np.asarray(new.vectors).tobytes() == np.asarray(old.columns["image"]).tobytes()
    with pytest.raises(ValueError, match=r"version 1\.0 has one matrix"):
        convert(tmp_path / "in.cvc", output_layout="1.0")
    out, _ = convert(tmp_path / "in.cvc", tensor="text", output_layout="1.0")
    with embmap.open(out) as new:
        assert (new.layout, new.shape) == ("1.0", (5, 3))


def test_given_metadata_replace_those_of_the_file(tmp_path):
    out, _ = convert(read(tmp_path / "in.cvc", columnar()), metadata={"title": "new"})
    with embmap.open(out) as file:
        assert file.metadata == {"title": "new"}
        assert file.sections[0].metadata == {"s": "a"}
    with pytest.raises(ValueError, match="must not contain 'chunks'"):
        convert(tmp_path / "in.cvc", metadata={"chunks": 1})


def test_an_unreadable_column_is_copied_with_whole_chunks(tmp_path):
    header = json.loads(header_of(columnar())[1])
    header["columns"][1]["dtype"] = "float8"
    data = columnar(columns=header["columns"])
    path = read(tmp_path / "in.cvc", data)
    embmap.convert(path, tmp_path / "out.cvc")
    with embmap.open(path) as old, embmap.open(tmp_path / "out.cvc") as new:
        assert list(new.columns) == list(old.columns) == ["id", "text", "image"]
        with pytest.raises(embmap.FormatError, match="float8"):
            new.columns["half"]
        assert [a.raw.tobytes() for a in new.chunks] == [a.raw.tobytes() for a in old.chunks]
    out, report = convert(path, limit=4)
    assert report.left_out == ("other columns",)
    with embmap.open(out) as new:
        assert [each["name"] for each in new.info()["columns"]] == ["id", "text", "image"]


def test_a_damaged_chunk_is_not_copied(tmp_path):
    data = bytearray(columnar())
    data[-1] ^= 1
    with pytest.raises(embmap.ChecksumError, match="chunk 1"):
        convert(read(tmp_path / "in.cvc", bytes(data)))
    assert not (tmp_path / "out.cvc").exists()


def test_other_formats_name_what_they_leave_out(tmp_path):
    path = read(tmp_path / "in.cvc", columnar(nan=1))  # TOML metadata take no NaN
    report = embmap.convert(path, tmp_path / "out.npy", tensor="text")
    assert set(report.left_out) == {"sections", "chunk metadata", "other columns", "metadata"}
    report = embmap.convert(path, tmp_path / "out.fifu", tensor="text", vocab=list("abcde"))
    assert set(report.left_out) == {"sections", "chunk metadata", "other columns"}
    plain = embmap.cvc.write(tmp_path / "plain.cvc", ROWS)
    assert embmap.convert(plain, tmp_path / "out.npy").left_out == ()


def test_repeated_words_beside_a_file_are_kept(tmp_path):
    path = embmap.cvc.write(tmp_path / "in.cvc", ROWS[:3])
    Path(f"{path}.words.txt").write_text("a\nb\na\n")
    out, report = convert(path)
    assert (report.n_words, report.n_duplicates) == (3, 0)
    assert Path(f"{out}.words.txt").read_text() == "a\nb\na\n"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"limit": 7999}, {"compression": "lossless"}])
def test_memory_does_not_grow_with_the_chunks(tmp_path, options):
    rows = RNG.standard_normal((8000, 1500), np.float32)  # 48 MB
    path = embmap.cvc.write(tmp_path / "in.cvc", rows, layout="1.0")
    convert(path, limit=1)  # imports
    tracemalloc.start()
    try:
        embmap.convert(path, tmp_path / "out.cvc", **options)
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["id", "half", "text", "image"])
def test_scaled_rows_of_any_column_are_float32(tmp_path, name):
    path = read(tmp_path / "in.cvc", columnar())
    with embmap.open(path) as old:
        rows = np.asarray(old.columns[name], np.float32)
    out, _ = convert(path, tensor=name, normalize=True)
    with embmap.open(out) as new:
        lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        assert new.columns[name].dtype == np.float32
        assert np.allclose(new.columns[name], rows / lengths, atol=0.01)
