"""Parquet files as conversions read and write them."""

import numpy as np
import pytest

import embmap

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

WORDS = ["berlin", "zürich", "東京", "🙂", "a"]
VECTORS = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
LISTS = VECTORS.tolist()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.parquet"


def save(path, columns, metadata=None, **options):
    """Write columns: values by name, or values with their type."""
    arrays = [
        pa.array(*each) if isinstance(each, tuple) else pa.array(each) for each in columns.values()
    ]
    table = pa.table(arrays, list(columns)).replace_schema_metadata(metadata)
    parquet.write_table(table, path, **options)
    return path


def read(path, **options):
    """The words and vectors of a Parquet file, as a conversion reads them."""
    target = path.with_name("back.npy")
    report = embmap.convert(path, target, **options)
    words = None
    if report.words_path is not None:
        words = report.words_path.read_text("utf-8").split("\n")[:-1]
    return words, np.load(target)


VECTOR_TYPES = {
    "lists of a fixed size": pa.list_(pa.float32(), 6),
    "lists": pa.list_(pa.float32()),
    "large lists": pa.large_list(pa.float32()),
    "numbers that are not null": pa.list_(pa.field("x", pa.float32(), nullable=False), 6),
}


@pytest.mark.parametrize("options", [{}, {"row_group_size": 2}, {"compression": "zstd"}])
@pytest.mark.parametrize("kind", VECTOR_TYPES)
def test_every_kind_of_list_is_read(path, kind, options):
    save(path, {"word": WORDS, "vector": (LISTS, VECTOR_TYPES[kind])}, **options)
    words, vectors = read(path)
    assert words == WORDS
    np.testing.assert_array_equal(vectors, VECTORS, strict=True)


def test_tensors_of_a_fixed_shape_are_read(path):
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(VECTORS)
    save(path, {"word": WORDS, "vector": tensors})
    assert read(path)[1].tolist() == LISTS


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint16", "int64"])
def test_every_dtype_is_read_and_kept(path, dtype):
    numbers = (VECTORS * 50).astype(dtype)
    if np.dtype(dtype).kind == "u":
        numbers = np.abs(numbers.astype(np.int16)).astype(dtype)
    flat = pa.array(numbers.ravel())
    save(path, {"word": WORDS, "vector": pa.FixedSizeListArray.from_arrays(flat, 6)})
    assert read(path)[1].tolist() == numbers.tolist()
    out = path.with_name("b.parquet")
    report = embmap.convert(path, out, limit=3)
    assert (report.dtype, report.left_out) == (dtype, ())
    assert parquet.read_table(out)["vector"].type.value_type == flat.type


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_dtype_is_written(tmp_path, dtype):
    np.save(tmp_path / "a.npy", VECTORS)
    out = tmp_path / "b.parquet"
    assert embmap.convert(tmp_path / "a.npy", out, dtype=dtype).dtype == dtype
    column = parquet.read_table(out)["vector"].combine_chunks()
    expected = VECTORS.astype(dtype)
    np.testing.assert_array_equal(column.flatten().to_numpy().reshape(5, 6), expected, strict=True)


@pytest.mark.parametrize("type", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_text_is_read(path, type):
    words = pa.array(WORDS).cast(type)
    save(path, {"token": words, "n": range(5), "emb": LISTS}, row_group_size=2)
    assert read(path)[0] == WORDS
    assert read(path, limit=3)[0] == WORDS[:3]


def test_the_column_of_words_is_found(path):
    save(path, {"tag": WORDS[::-1], "word": WORDS, "vector": LISTS})
    assert read(path)[0] == WORDS
    save(path, {"a": WORDS, "b": WORDS, "vector": LISTS})  # either could be meant
    assert read(path)[0] is None
    path.with_name("back.npy").unlink()
    with pytest.raises(ValueError, match="no words; name them with vocab"):
        embmap.convert(path, path.with_name("b.fifu"))
    assert read(path, vocab=WORDS)[0] == WORDS


def test_one_of_several_columns_of_vectors_is_chosen(path):
    columns = {"word": WORDS, "title": LISTS, "body": (-VECTORS).tolist()}
    save(path, columns)
    with pytest.raises(ValueError, match="several columns of vectors; choose one with tensor: ti"):
        read(path)
    assert read(path, tensor="body")[1].tolist() == (-VECTORS).tolist()
    with pytest.raises(ValueError, match="no column 'x' for tensor; it has word, title, body"):
        read(path, tensor="x")
    with pytest.raises(embmap.FormatError, match=r"'word'.*lists of numbers, not string"):
        read(path, tensor="word")
    report = embmap.convert(path, path.with_name("b.parquet"), tensor="body")
    assert report.left_out == ("other columns",)
    assert parquet.read_table(path.with_name("b.parquet")).column_names == ["word", "vector"]
    save(path, columns | {"vector": (2 * VECTORS).tolist()})
    assert read(path)[1].tolist() == (2 * VECTORS).tolist()


# What is wrong

NONE = None
BAD = {
    "no column of vectors": ({"word": WORDS, "x": range(5)}, "no column holds vectors"),
    "lists of text": ({"word": WORDS, "vector": [["a"]] * 5}, "no column holds vectors"),
    "lists of lists": ({"vector": [[[1.0]]] * 5}, "no column holds vectors"),
    "lists of booleans": ({"vector": [[True]] * 5}, "no column holds vectors"),
    "ragged lists": (
        {"word": WORDS, "vector": [*LISTS[:3], [1.0], LISTS[4]]},
        r"'vector, row 3'\: vectors must have 6 numbers like those before, not 1",
    ),
    "a vector that is null": (
        {"word": WORDS, "vector": [*LISTS[:2], NONE, *LISTS[3:]]},
        "'vector, row 2': there is no vector: null",
    ),
    "a vector of a fixed size that is null": (
        {"word": WORDS, "vector": ([*LISTS[:2], NONE, *LISTS[3:]], pa.list_(pa.float32(), 6))},
        "'vector, row 2': there is no vector: null",
    ),
    "a number that is null": (
        {"word": WORDS, "vector": [*LISTS[:4], [1.0, 2, NONE, 4, 5, 6]]},
        "'vector, row 4': a number is missing: null",
    ),
    "a word that is null": (
        {"word": ["a", NONE, "b", "c", "d"], "vector": LISTS},
        "'word, row 1': there is no word: null",
    ),
    "a word that is not UTF-8": (
        {"word": pa.array([b"a", b"\xff", b"b", b"c", b"d"]).view(pa.string()), "vector": LISTS},
        "not UTF-8",
    ),
    "names that repeat": (None, "columns must have different names"),
    "no rows": ({"vector": ([], pa.list_(pa.float32()))}, "the input has no vectors"),
}


@pytest.mark.parametrize("row_group_size", [2, 5])
@pytest.mark.parametrize("kind", BAD)
def test_what_is_wrong_is_named(path, kind, row_group_size):
    columns, message = BAD[kind]
    if columns is None:
        table = pa.table([pa.array(LISTS)] * 2, ["vector", "vector"])
        parquet.write_table(table, path)
    else:
        save(path, columns, row_group_size=row_group_size)
    out = path.with_name("out.fifu" if "word" in (columns or ()) else "out.npy")
    with pytest.raises(ValueError, match=message):
        embmap.convert(path, out)
    assert [each.name for each in path.parent.iterdir()] == ["a.parquet"]


def test_an_empty_column_of_a_fixed_size_has_its_length(path):
    save(path, {"vector": ([], pa.list_(pa.float32(), 6))})
    assert read(path)[1].shape == (0, 6)


@pytest.mark.parametrize("end", [4, 100, -1])
def test_a_file_that_is_cut_is_an_error(path, end):
    save(path, {"word": WORDS, "vector": LISTS})
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(embmap.FormatError, match="damaged, or not Parquet"):
        read(path)


@pytest.mark.slow
def test_any_byte_that_differs_is_an_error_or_a_table(path):
    save(path, {"word": WORDS, "vector": (LISTS, VECTOR_TYPES["numbers that are not null"])})
    data = path.read_bytes()
    refused = 0
    for at in range(0, len(data), 5):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            embmap.convert(path, path.with_name("b.npy"), input_format="parquet", lossy=True)
        except (embmap.EmbmapError, ValueError):
            refused += 1
    assert refused


# What is kept


def keeping(path):
    columns = {"n": range(5), "word": WORDS, "emb": LISTS, "label": [None, "x", "y", "x", None]}
    return save(path, columns, {"made by": "hand", "pandas": "{}"}, row_group_size=2)


def test_other_columns_are_kept_with_the_rows_that_are_chosen(path):
    keeping(path)
    out = path.with_name("b.parquet")
    report = embmap.convert(path, out, words=["a", "zürich", "🙂"], dim=2, dtype="float16")
    assert (report.n_words, report.dim, report.left_out) == (3, 2, ())
    table = parquet.read_table(out)
    assert table.column_names == ["n", "word", "emb", "label"]
    assert table["n"].to_pylist() == [1, 3, 4]
    assert table["word"].to_pylist() == ["zürich", "🙂", "a"]
    assert table["label"].to_pylist() == ["x", "x", None]
    assert table["emb"].to_pylist() == VECTORS[[1, 3, 4], :2].astype("f2").tolist()
    assert table.schema.metadata == {b"made by": b"hand", b"pandas": b"{}"}


def test_a_file_is_copied_if_nothing_changes(path):
    keeping(path)
    out = path.with_name("b.parquet")
    assert embmap.convert(path, out).left_out == ()
    assert out.read_bytes() == path.read_bytes()


def test_metadata_and_words_that_are_given_are_written(path):
    save(path, {"n": range(5), "vector": LISTS})
    out = path.with_name("b.parquet")
    embmap.convert(path, out, vocab=WORDS, metadata={"a": "b", "n": [1, 2]})
    table = parquet.read_table(out)
    assert table.column_names == ["word", "n", "vector"]
    assert table["word"].to_pylist() == WORDS
    assert table.schema.metadata == {b"a": b"b", b"n": b"[1, 2]"}
    save(path, {"word": range(5), "vector": LISTS})
    with pytest.raises(ValueError, match="a column 'word' of int64; rename it"):
        embmap.convert(path, out, vocab=WORDS)


def test_metadata_go_to_other_formats_without_the_notes_of_libraries(path):
    keeping(path)
    out = path.with_name("b.fifu")
    assert embmap.convert(path, out).left_out == ("other columns",)
    with embmap.open(out) as f:
        assert f.metadata == {"made by": "hand"}


def test_what_parquet_does_not_hold_is_named(tmp_path):
    indexer = embmap.subwords.BucketIndexer(3, 4, 4)
    rows = np.random.default_rng(0).standard_normal((5 + indexer.n_buckets, 4)).astype("f4")
    source = tmp_path / "a.fifu"
    embmap.finalfusion.write(source, WORDS, rows, subwords=indexer)
    assert embmap.convert(source, tmp_path / "b.parquet").left_out == ("subwords",)
    quantized = embmap.finalfusion.quantize(VECTORS, 3, 2, iterations=1)
    embmap.finalfusion.write(source, WORDS, None, quantized=quantized)
    assert "quantization" in embmap.convert(source, tmp_path / "b.parquet").left_out


def test_repeated_words_are_kept_from_parquet_to_parquet(path):
    save(path, {"word": ["a", "b", "a", "c", "b"], "vector": LISTS})
    out = path.with_name("b.parquet")
    assert embmap.convert(path, out, normalize=True).n_words == 5
    assert embmap.convert(path, path.with_name("b.npy")).n_duplicates == 2


def test_several_files_become_time_steps_in_one_order(path, tmp_path):
    other = save(tmp_path / "b.parquet", {"word": WORDS[::-1], "vector": LISTS[::-1]})
    save(path, {"word": WORDS, "vector": LISTS}, row_group_size=2)
    embmap.convert([path, other], tmp_path / "c.dwe", bits=16)
    with embmap.open(tmp_path / "c.dwe", vocab=tmp_path / "c.dwe.words.txt") as f:
        assert np.array_equal(f.vectors[:, 0], f.vectors[:, 1])


def test_compressed_parquet_is_read(path, tmp_path):
    import gzip

    save(path, {"word": WORDS, "vector": LISTS})
    given = tmp_path / "a.parquet.gz"
    given.write_bytes(gzip.compress(path.read_bytes()))
    assert read(given)[0] == WORDS
