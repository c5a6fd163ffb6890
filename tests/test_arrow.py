"""Handing words and vectors to Arrow and Parquet."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import embmap

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
arrow = pytest.importorskip("embmap.arrow")

WORDS = ["berlin", "zürich", "東京", "🙂", ""]
VECTORS = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS, metadata='a = "b"\nn = 3')


@pytest.fixture
def file(path):
    with embmap.open(path) as f:
        yield f


def numbers(column):
    """The numbers of a column of vectors: an array of shape (n, dim)."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.flatten().to_numpy().reshape(len(whole), -1)


# array


def test_an_array_shares_the_pages_of_a_mapped_file(file):
    found = arrow.array(file.vectors)
    assert found.type == pa.list_(pa.float32(), 6)
    buffer = found.values.buffers()[1]
    assert buffer.address == np.asarray(file.vectors).ctypes.data
    assert not buffer.is_mutable
    found.validate(full=True)


def test_an_array_outlives_its_file_and_what_replaces_it(path, tmp_path):
    with embmap.open(path) as f:
        found = arrow.array(f.vectors)
        table = pa.table(f)
    embmap.finalfusion.write(tmp_path / "b", WORDS, -VECTORS)
    os.replace(tmp_path / "b", path)
    assert numbers(found).tolist() == numbers(table["vector"]).tolist() == VECTORS.tolist()


def test_the_vectors_of_an_array_cannot_be_written(file):
    found = arrow.array(file.vectors).flatten().to_numpy()
    with pytest.raises(ValueError, match="read-only"):
        found += 1


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "u2", ">i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_dtype_and_order(tmp_path, dtype, order):
    stored = np.asarray(VECTORS * 10, dtype, order=order)
    np.save(tmp_path / "a.npy", stored)
    with embmap.open(tmp_path / "a.npy") as f:
        found = arrow.array(f.vectors)
    assert found.type.value_type == pa.from_numpy_dtype(stored.dtype.newbyteorder("="))
    assert numbers(found).tolist() == stored.tolist()
    assert numbers(arrow.array(stored)).tolist() == stored.tolist()


def test_decoded_and_unaligned_vectors_are_copied(tmp_path):
    embmap.cvc.write(tmp_path / "a.cvc", VECTORS, compression="int8")
    words = "".join(
        f"{word} {' '.join(map(str, row))}\n" for word, row in zip("abcde", VECTORS, strict=True)
    )
    (tmp_path / "a.txt").write_text(words)
    embmap.convert(tmp_path / "a.txt", tmp_path / "a.bin")  # rows at odd offsets, between words
    for name in ("a.cvc", "a.bin"):
        with embmap.open(tmp_path / name) as f:
            assert numbers(arrow.array(f.vectors)).tolist() == np.asarray(f.vectors).tolist()
            assert arrow.array(f.vectors).values.buffers()[1].address % 4 == 0


def test_trajectories_become_nested_lists(tmp_path):
    history = np.arange(24).reshape(2, 3, 4)
    embmap.dwe.write(tmp_path / "a.dwe", history, scale=1)
    with embmap.open(tmp_path / "a.dwe", vocab=list("abc")) as f:
        assert arrow.array(f.vectors).to_pylist() == history.swapaxes(0, 1).tolist()
        assert pa.table(f.at(1))["vector"].to_pylist() == history[1].tolist()


def test_a_file_that_shrank_is_refused(path):
    with embmap.open(path) as f:
        os.truncate(path, 100)
        for ask in (lambda: arrow.array(f.vectors), lambda: pa.table(f)):
            with pytest.raises(embmap.TruncatedError, match="shrank"):
                ask()
        with pytest.raises(embmap.TruncatedError, match="shrank"):
            arrow.write_parquet(path.with_name("b.parquet"), f)
    assert [each.name for each in path.parent.iterdir()] == ["a.fifu"]


@pytest.mark.parametrize(
    ("vectors", "error", "message"),
    [
        (np.ones(3), ValueError, "2 or 3 dimensions, not 1"),
        (np.ones((3, 0)), ValueError, "at least one number"),
        (np.array([["a"]]), TypeError, "must be numbers, not <U1"),
        (np.array([[None]]), TypeError, "must be numbers, not object"),
    ],
)
def test_what_is_no_vectors_is_refused(vectors, error, message):
    with pytest.raises(error, match=message):
        arrow.array(vectors)


def test_a_file_is_not_its_vectors(file):
    with pytest.raises(TypeError, match=r"f\.vectors"):
        arrow.array(file)


# Streams


def test_a_stream_takes_a_batch_at_a_time(tmp_path):
    path = tmp_path / "a.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (70_000, 100))
    rows[-1] = 7
    rows.flush()
    with embmap.open(path) as f:
        reader = pa.RecordBatchReader.from_stream(f)
        sizes = [batch.num_rows for batch in reader]
    assert sum(sizes) == 70_000
    assert max(sizes) * 100 <= 1 << 21


def test_a_file_without_words_is_a_stream_of_vectors(tmp_path):
    np.save(tmp_path / "a.npy", VECTORS)
    with embmap.open(tmp_path / "a.npy") as f:
        table = pa.table(f)
    assert table.column_names == ["vector"]
    assert numbers(table["vector"]).tolist() == VECTORS.tolist()


def test_a_stream_goes_on_after_its_file_is_closed(path):
    with embmap.open(path) as f:
        reader = pa.RecordBatchReader.from_stream(f)
    assert reader.read_all()["word"].to_pylist() == WORDS


def test_a_stream_has_the_types_that_are_asked_for(file):
    schema = pa.schema([("word", pa.large_string()), ("vector", pa.list_(pa.float64()))])
    table = pa.table(file, schema=schema)
    assert table.schema == schema
    assert table["vector"].to_pylist() == VECTORS.tolist()


@pytest.mark.parametrize(
    "fields",
    [[("vector", pa.list_(pa.float32(), 6))], [("word", pa.string()), ("vector", pa.string())]],
)
def test_a_stream_of_other_columns_is_refused(file, fields):
    with pytest.raises((TypeError, ValueError)):
        pa.table(file, schema=pa.schema(fields))


def test_closed_files_and_files_without_vectors_are_no_streams(tmp_path, path):
    with embmap.open(path) as f:
        pass
    with pytest.raises(embmap.ClosedError):
        pa.table(f)
    embmap.embd.write(tmp_path / "a.weights", {"a": np.ones(3, "f4")}, vocab=["a"])
    with embmap.open(tmp_path / "a.weights") as f:
        for ask in (pa.table, lambda f: arrow.write_parquet(tmp_path / "b", f)):
            with pytest.raises(embmap.FormatError, match="holds no vectors"):
                ask(f)


def test_a_word_that_is_not_utf8_is_an_error(tmp_path, path):
    data = path.read_bytes().replace(b"berlin", b"ber\xffin")
    path.write_bytes(data)
    with embmap.open(path) as f:
        with pytest.raises(ValueError, match=r"a\.fifu, byte .*, word 0: not UTF-8"):
            pa.table(f)
        with pytest.raises(embmap.FormatError, match="not UTF-8"):
            arrow.write_parquet(tmp_path / "b.parquet", f)
    assert not (tmp_path / "b.parquet").exists()


POLARS = """
import sys, numpy as np, embmap, polars
with embmap.open(sys.argv[1]) as file:
    table = polars.DataFrame(file)
    doubled = table.with_columns(polars.col("vector") * 2)
    assert table["word"].to_list() == list(file)
    stored = np.asarray(file.vectors)
    assert doubled["vector"].to_numpy().tolist() == (2 * stored).tolist()
"""
DUCKDB = """
import sys, numpy as np, embmap, duckdb
with embmap.open(sys.argv[1]) as file:
    rows = duckdb.sql("select word, vector[2] from file order by vector[2]").fetchall()
    order = np.argsort(file.vectors[:, 1])
    assert rows == [(file.vocab[i], float(file.vectors[i, 1])) for i in order.tolist()]
"""


# In a process of its own, because polars forbids others to fork.
@pytest.mark.slow
@pytest.mark.parametrize(("library", "script"), [("polars", POLARS), ("duckdb", DUCKDB)])
def test_other_libraries_read_a_file(path, library, script):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = run(script, path)
    assert done.returncode == 0, done.stderr


# write_parquet


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_words_vectors_and_metadata_are_written(file, tmp_path, compression):
    target = tmp_path / "b.parquet"
    assert arrow.write_parquet(target, file, compression=compression) == target
    stored = parquet.ParquetFile(target)
    used = stored.metadata.row_group(0).column(1).compression
    assert used.lower() == compression.replace("none", "uncompressed")
    table = stored.read()
    assert table["word"].to_pylist() == WORDS
    assert table["vector"].type.list_size == 6
    assert numbers(table["vector"]).tolist() == VECTORS.tolist()
    assert table.schema.metadata == {b"a": b"b", b"n": b"3"}


def test_a_time_step_and_progress(tmp_path):
    history = np.arange(24).reshape(2, 3, 4)
    embmap.dwe.write(tmp_path / "a.dwe", history, scale=1)
    steps = []
    with embmap.open(tmp_path / "a.dwe") as f:
        arrow.write_parquet(
            tmp_path / "b.parquet", f.at(0), progress=lambda *step: steps.append(step)
        )
    table = parquet.read_table(tmp_path / "b.parquet")
    assert table.column_names == ["vector"]
    assert table["vector"].to_pylist() == history[0].tolist()
    assert steps == [("writing rows", 3, 3)]


def test_arguments_that_are_wrong_leave_nothing(file, path):
    with pytest.raises(ValueError, match=r"compression must be one of none, snappy.*, not 'x'"):
        arrow.write_parquet(path.with_name("b.parquet"), file, compression="x")
    with pytest.raises(ValueError, match="is read; name another file"):
        arrow.write_parquet(path, file)
    assert [each.name for each in path.parent.iterdir()] == ["a.fifu"]


# The extra


@pytest.mark.slow
def test_without_pyarrow_the_extra_is_named(path):
    script = """
import sys
import embmap
assert not [name for name in sys.modules if name.startswith("pyarrow")]
sys.modules["pyarrow"] = None
def refuse(what):
    try:
        what()
    except ImportError as error:
        print(error)
def face():
    import embmap.arrow
refuse(face)
refuse(lambda: embmap.open(sys.argv[1]).__arrow_c_stream__())
refuse(lambda: embmap.convert(sys.argv[1], "a.parquet"))
"""
    done = run(script, path)
    assert done.stdout == "Arrow and Parquet need pyarrow: pip install 'embmap[arrow]'\n" * 3
    assert [each.name for each in path.parent.iterdir()] == ["a.fifu"]


def run(script, path):
    """Run Python in a new process, in the folder of a file."""
    return subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        cwd=path.parent,
        env={**os.environ, "PYTHONPATH": str(Path(embmap.__file__).parents[1])},
        check=False,
    )
