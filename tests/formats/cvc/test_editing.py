"""Appending rows to CVC files and changing their columns: nothing else in the file changes."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from embmap.cvc import append, edit_columns, write, write_columns
from tests.formats.cvc.test_rewriting import columnar
from tests.judges.cvc import SMALL, header_of
from tests.reference import cvc as reference

RNG = np.random.default_rng(5)
ROWS = RNG.standard_normal((23, 4)).astype(np.float32)
MORE = RNG.standard_normal((7, 4)).astype(np.float32)
KINDS = [("0.1", "fp16"), ("0.1", "int8"), ("1.0", "fp16"), ("1.0", "int8"), ("1.0", "lossless")]


def payloads(path):
    """The payload of each chunk, from the reference decoder, which checks all else."""
    decoded = reference.decode(path.read_bytes())
    assert not decoded.problems
    return [chunk.payload for chunk in decoded.chunks]


def columns_of(path):
    with embmap.open(path) as file:
        assert not file.verify().problems
        found = {name: np.asarray(column) for name, column in file.columns.items()}
    decoded = reference.decode(path.read_bytes())
    for name, column in decoded.columns.items():
        np.testing.assert_array_equal(found[name], column.rows, strict=True)
    return found


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize(("version", "compression"), KINDS)
def test_rows_are_appended_as_new_chunks(tmp_path, version, compression, optimized):
    if optimized and version == "0.1":
        pytest.skip("version 0.1 has no aligned chunks")
    options = {"compression": compression, "layout": version, "mmap_optimized": optimized}
    path = write(
        tmp_path / "a.cvc",
        ROWS,
        chunk_rows=10,
        sections=[{"start": 5, "stop": 23, "metadata": {"s": 1}}],
        chunk_metadata=[{"c": i} for i in range(3)],
        metadata={"title": "T"},
        **options,
    )
    before = payloads(path)
    old = columns_of(path)["vectors"]
    assert append(path, MORE, section={"s": 2}, chunk_rows=4, chunk_metadata=[{"c": 9}] * 2) == path
    fresh = write(tmp_path / "fresh.cvc", MORE, chunk_rows=4, **options)
    assert payloads(path) == before + payloads(fresh)
    with embmap.open(path) as file:
        assert file.layout == version
        assert file.metadata == {"title": "T"}
        assert [chunk.rows for chunk in file.chunks] == [10, 10, 3, 4, 3]
        assert [chunk.metadata for chunk in file.chunks] == [
            *({"c": i} for i in range(3)),
            {"c": 9},
            {"c": 9},
        ]
        assert file.section(s=1).tolist() == list(range(5, 23))
        assert file.section(s=2).tolist() == list(range(23, 30))
    found = columns_of(path)["vectors"]
    assert found.tobytes() == old.tobytes() + columns_of(fresh)["vectors"].tobytes()
    header = json.loads(header_of(path.read_bytes())[1])
    assert bool(header.get("mmap_optimized")) is optimized


@pytest.mark.parametrize("name", SMALL)
def test_every_made_file_takes_its_own_rows_again(tmp_path, name):
    path = tmp_path / "a.cvc"
    path.write_bytes(SMALL[name])
    old, before = columns_of(path), payloads(path)
    append(path, old, section={"again": True})
    assert payloads(path)[: len(before)] == before
    found = columns_of(path)
    n = len(next(iter(old.values())))
    for column, rows in old.items():
        assert found[column].dtype == rows.dtype
        assert found[column][:n].tobytes() == rows.tobytes()
        np.testing.assert_allclose(found[column][n:], rows, atol=0.02)
    with embmap.open(path) as file:
        assert file.section(again=True).tolist() == list(range(n, 2 * n))


def test_rows_are_appended_to_columns_from_blocks(tmp_path):
    path = write_columns(
        tmp_path / "a.cvc",
        {"id": np.arange(5), "x": ROWS[:5], "y": ROWS[:5]},
        compression={"x": "fp16", "y": "int8"},
    )
    ids = np.split(np.arange(5, 12), [3, 4])
    append(path, {"y": iter([MORE[:2], MORE[2:]]), "x": list(MORE), "id": iter(ids)})
    found = columns_of(path)
    assert found["id"][:, 0].tolist() == list(range(12))
    assert np.array_equal(found["x"][5:], MORE.astype(np.float16).astype(np.float32))
    assert np.allclose(found["y"][5:], MORE, atol=0.02)


def test_an_empty_file_takes_rows_and_any_file_takes_none(tmp_path):
    for version in ("0.1", "1.0"):
        for empty in (np.empty((0, 4), np.float32), iter([])):
            path = write(tmp_path / "a.cvc", empty, layout=version)
            append(path, ROWS, words=[f"w{i}" for i in range(23)])
            assert columns_of(path)["vectors"].shape == (23, 4)
            before = path.read_bytes()
            append(path, np.empty((0, 4), np.float32), words=[], section={"s": 1})
            assert path.read_bytes() == before
            for beside in tmp_path.iterdir():
                beside.unlink()


def test_words_beside_a_file_grow_with_it(tmp_path):
    path = write(tmp_path / "a.cvc", ROWS[:3])
    beside = Path(f"{path}.words.txt")
    beside.write_bytes(b"\xef\xbb\xbfa\r\nb\r\na\r\n")
    with pytest.raises(ValueError, match="has a word for each row; give words as well"):
        append(path, MORE)
    with pytest.raises(ValueError, match="2 words were given for 7 rows"):
        append(path, MORE, words=["c", "d"])
    with pytest.raises(ValueError, match="holds the end of a line"):
        append(path, MORE[:1], words=["c\nd"])
    with pytest.raises(TypeError, match="a word is a str, not int"):
        append(path, MORE[:1], words=[1])
    assert beside.read_bytes() == b"\xef\xbb\xbfa\r\nb\r\na\r\n"
    append(path, MORE[:2], words=["c", "ü"])
    assert beside.read_text("utf-8") == "a\nb\na\nc\nü\n"
    (tmp_path / "more.txt").write_text("d\n")
    append(path, MORE[2:3], words=tmp_path / "more.txt")
    with embmap.open(path, vocab=beside) as file:  # the digests match
        assert list(file.vocab) == ["a", "b", "a", "c", "ü", "d"]
        assert np.array_equal(file["d"], MORE[2].astype(np.float16).astype(np.float32))
    assert embmap.convert(path, tmp_path / "b.fifu").n_words == 5
    beside.write_text("x\n" * 6)
    with pytest.raises(embmap.ChecksumError, match="was not written with these vectors"):
        append(path, MORE[:1], words=["y"])
    beside.unlink()
    with pytest.raises(embmap.ChecksumError, match="is missing"):
        append(path, MORE[:1], words=["y"])


@pytest.mark.parametrize("lines", [b"a\nb\n", b"a\nb\nc\nd\n", b"a\n\xff\nc\n"])
def test_words_that_do_not_fit_are_refused(tmp_path, lines):
    path = write(tmp_path / "a.cvc", ROWS[:3])
    before = path.read_bytes()
    Path(f"{path}.words.txt").write_bytes(lines)
    with pytest.raises(embmap.FormatError):
        append(path, MORE[:1], words=["x"])
    assert path.read_bytes() == before
    assert Path(f"{path}.words.txt").read_bytes() == lines


def test_words_stay_with_a_file_whose_columns_change(tmp_path):
    source = write_columns(tmp_path / "s.cvc", {"x": ROWS[:3], "y": MORE[:3]})
    Path(f"{source}.words.txt").write_text("a\nb\na\n")
    path = tmp_path / "a.cvc"
    embmap.convert(source, path)
    noted = Path(f"{path}.words.json").read_bytes()
    edit_columns(path, drop=["y"])
    assert Path(f"{path}.words.json").read_bytes() != noted
    with embmap.open(path, vocab=f"{path}.words.txt") as file:
        assert list(file.vocab) == ["a", "b", "a"]
        assert file["b"].tolist() == ROWS[1].tolist()
    with pytest.raises(ValueError, match="so words must be None"):
        append(write(tmp_path / "b.cvc", ROWS), MORE, words=["w"] * 7)


def test_columns_are_added_renamed_replaced_and_dropped_in_one_go(tmp_path):
    path = tmp_path / "a.cvc"
    path.write_bytes(columnar())
    old = columns_of(path)
    ids = np.arange(5, dtype=np.uint8)
    edit_columns(
        path,
        add={"new": ids, "id": iter([ROWS[:4], ROWS[4:5]])},
        replace={"half": MORE[:5]},
        rename={"text": "Text"},
        drop=["id"],
        compression={"id": "int8", "half": "fp16"},
    )
    found = columns_of(path)
    assert list(found) == ["half", "Text", "image", "new", "id"]
    assert found["new"].dtype == np.uint8
    assert found["new"][:, 0].tolist() == ids.tolist()
    assert np.allclose(found["id"], ROWS[:5], atol=0.02)
    assert np.array_equal(found["half"], MORE[:5].astype(np.float16).astype(np.float32))
    assert found["Text"].tobytes() == old["text"].tobytes()
    assert found["image"].tobytes() == old["image"].tobytes()
    with embmap.open(path) as file:
        assert [chunk.rows for chunk in file.chunks] == [2, 3]
        assert [chunk.metadata for chunk in file.chunks] == [{"batch": 0}, {"batch": 1}]
        assert file.section(s="a").tolist() == [0, 1, 2]
        assert file.metadata["title"] == "T"
        assert file.chunks[0].compression == "fp16, fp16, int8, none, int8"


def test_payloads_are_kept_whole_where_columns_are_added_or_renamed(tmp_path):
    path = tmp_path / "a.cvc"
    path.write_bytes(columnar())
    before = payloads(path)
    edit_columns(path, rename={"id": "text", "text": "id"}, add={"x": np.arange(5)})
    after = payloads(path)
    assert all(new.startswith(old) for new, old in zip(after, before, strict=True))
    edit_columns(path, drop=["x"], rename={"id": "text", "text": "id"})
    assert payloads(path) == before
    headers = [json.loads(header_of(data)[1]) for data in (path.read_bytes(), columnar())]
    for header in headers:
        assert header.pop("nan") != 0
        for chunk in header["chunks"]:
            chunk.pop("sections", None)
    assert headers[0] == headers[1]


def test_a_replaced_column_keeps_its_compression(tmp_path):
    path = write_columns(tmp_path / "a.cvc", {"x": ROWS, "y": ROWS}, compression={"x": "int8"})
    edit_columns(path, replace={"x": ROWS[:, :2] + 1})
    assert columns_of(path)["x"].shape == (23, 2)
    with embmap.open(path) as file:
        assert file.chunks[0].compression == "int8, none"
    with pytest.raises(ValueError, match="column 'x' must be float32 for int8, not int64"):
        edit_columns(path, replace={"x": np.arange(23)})
    edit_columns(path, replace={"x": np.arange(23)}, compression="none")
    assert columns_of(path)["x"].dtype == np.int64


def test_a_column_that_cannot_be_read_stays_with_whole_payloads_or_is_dropped(tmp_path):
    header = json.loads(header_of(columnar())[1])
    header["columns"][1]["dtype"] = "float8"
    path = tmp_path / "a.cvc"
    data = columnar(columns=header["columns"])
    path.write_bytes(data)
    edit_columns(path, add={"x": np.arange(5)}, rename={"id": "ID"})
    with embmap.open(path) as file:
        assert list(file.columns) == ["ID", "text", "image", "x"]
        with pytest.raises(embmap.FormatError, match="float8"):
            file.columns["half"]
    for changes in ({"drop": ["ID"]}, {"rename": {"half": "h"}}, {"replace": {"x": ROWS[:5]}}):
        with pytest.raises(embmap.FormatError, match="float8"):
            edit_columns(path, **changes)
    with pytest.raises(embmap.FormatError, match="float8"):
        append(path, {})
    edit_columns(path, drop=["half"])
    assert list(columns_of(path)) == ["ID", "text", "image", "x"]


TWO = {"x": ROWS, "id": np.arange(23, dtype=np.int32)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add": {"x": ROWS}}, "the file has a column 'x' already"),
        ({"rename": {"x": "id"}}, "the file has a column 'id' already"),
        ({"drop": ["y"]}, "there is no column 'y'; the file has x, id"),
        ({"replace": {"y": ROWS}}, "there is no column 'y'"),
        ({"rename": {"y": "z"}}, "there is no column 'y'"),
        ({"rename": {"x": 1}}, "the name of a column must be str, not 1"),
        ({"add": {1: ROWS}}, "the name of a column must be str, not 1"),
        ({"drop": ["x"], "rename": {"x": "y"}}, "column 'x' is to be changed in 2 ways"),
        ({"drop": ["x", "id"]}, "one column of the file must remain"),
        ({"drop": "x"}, "drop must be a collection of names, not 'x'"),
        ({"add": {"y": ROWS[:5]}}, "column 'y' must have 23 rows, not 5"),
        ({"add": {"y": iter([ROWS[:5]])}}, "column 'y' has fewer rows than the file, which has 23"),
        ({"add": {"y": iter([ROWS, ROWS])}}, "column 'y' has more rows than the file"),
        ({"add": {"y": iter([])}}, "a column must have at least one block"),
        ({"add": {"y": ROWS.astype("f8")}}, "column 'y' must be one of float32, .*, not float64"),
        ({"add": {"y": ROWS}, "compression": "lossless"}, "2.0 has no compression 'lossless'"),
        ({"add": {"y": ROWS}, "compression": {"z": "fp16"}}, "compression names 'z'"),
        ({"add": {"y": ROWS * 1e6}, "compression": "fp16"}, "column 'y': "),
        ({"add": {"y": ROWS}, "compression": 1}, "compression must be a name, or a mapping"),
    ],
)
def test_changes_that_do_not_fit_leave_the_file_as_it_is(tmp_path, changes, message):
    path = write_columns(tmp_path / "a.cvc", TWO)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        edit_columns(path, **changes)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:, :3], "rows must have 4 dimensions as in the file, not 3"),
        (ROWS[0], "vectors must have two dimensions, not 1"),
        (np.arange(8).reshape(2, 4), "vectors must be floating point, not int64"),
        (ROWS * 1e6, "chunk 1: "),
        ({"x": ROWS}, "rows must be given for the columns vectors, not x"),
        (iter([ROWS, ROWS[:, :2]]), "the block from row 23 on has 2 columns"),
    ],
)
def test_rows_that_do_not_fit_leave_the_file_as_it_is(tmp_path, rows, message):
    path = write(tmp_path / "a.cvc", ROWS, layout="1.0")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        append(path, rows)
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="chunk_rows must be at least 1, not 0"):
        append(path, ROWS, chunk_rows=0)
    with pytest.raises(ValueError, match="section must be a mapping, not str"):
        append(path, ROWS, section="wiki")
    with pytest.raises(ValueError, match="keys must be str"):
        append(path, ROWS, section={1: 2})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"x": ROWS}, "rows must be given for the columns x, id, not x"),
        (ROWS, "rows must be given for the columns x, id$"),
        ({"x": ROWS[:, :2], "id": np.arange(23, dtype=np.int32)}, "column 'x' must have 4 dim"),
        ({"x": ROWS, "id": np.arange(23)}, "column 'id' must be int32 as in the file, not int64"),
        ({"x": ROWS, "id": np.arange(5, dtype=np.int32)}, "same number of rows"),
    ],
)
def test_rows_of_columns_must_fit(tmp_path, more, message):
    path = write_columns(tmp_path / "a.cvc", TWO)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        append(path, more)
    assert path.read_bytes() == before


def test_a_file_of_one_matrix_has_no_columns_to_change(tmp_path):
    path = write(tmp_path / "a.cvc", ROWS, layout="1.0")
    with pytest.raises(ValueError, match=r"version 1\.0, which has one matrix.*output_layout='2"):
        edit_columns(path, add={"id": np.arange(23)})
    embmap.convert(path, tmp_path / "b.cvc", output_layout="2.0")
    edit_columns(tmp_path / "b.cvc", add={"id": np.arange(23)})
    assert list(columns_of(tmp_path / "b.cvc")) == ["vectors", "id"]


def test_other_files_and_damaged_ones_are_refused(tmp_path):
    other = embmap.finalfusion.write(tmp_path / "a.fifu", ["a"], ROWS[:1])
    path = write(tmp_path / "a.cvc", ROWS, layout="1.0")
    damaged = tmp_path / "b.cvc"
    damaged.write_bytes(path.read_bytes()[:-1] + b"\x00")
    for change in (lambda at: append(at, MORE), lambda at: edit_columns(at, drop=["x"])):
        with pytest.raises(embmap.FormatError, match="not a CVC file"):
            change(other)
        with pytest.raises(FileNotFoundError):
            change(tmp_path / "none.cvc")
    with pytest.raises(embmap.ChecksumError, match="chunk 0"):
        append(damaged, MORE)


def test_a_file_that_is_open_keeps_its_bytes(tmp_path):
    path = write(tmp_path / "a.cvc", ROWS, compression="lossless", layout="1.0")
    with embmap.open(path) as file:
        append(path, MORE)
        assert len(file) == 23
        assert np.asarray(file.vectors).tobytes() == ROWS.tobytes()
        append(path, file.vectors)
    found = columns_of(path)["vectors"]
    assert found.tobytes() == ROWS.tobytes() + MORE.tobytes() + ROWS.tobytes()


def test_of_two_writers_at_a_time_the_second_is_refused(tmp_path):
    path = write(tmp_path / "a.cvc", ROWS)

    def blocks():
        yield MORE
        append(path, MORE)
        yield MORE

    with pytest.raises(embmap.EmbmapError, match="replaced by another program"):
        append(path, blocks())
    assert len(columns_of(path)["vectors"]) == 30


def test_an_interrupt_leaves_the_file_and_nothing_else(tmp_path):
    path = write(tmp_path / "a.cvc", ROWS)
    before = path.read_bytes()

    def blocks():
        yield MORE
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        append(path, blocks())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


NAMES = st.sampled_from("abcd")
DTYPES = st.sampled_from(["f4", "f2", "i4", "i8", "i1", "u1"])


@st.composite
def changes(draw):
    """A change: what is done, with a name, another name and what random rows are made from."""
    kind = draw(st.sampled_from(["append", "add", "drop", "rename", "replace"]))
    seed, dim = draw(st.integers(0, 99)), draw(st.integers(1, 3))
    return kind, draw(NAMES), draw(NAMES), (seed, draw(DTYPES), dim), draw(st.integers(0, 5))


def some(n, made_of):
    seed, dtype, dim = made_of
    return np.random.default_rng(seed).integers(0, 100, (n, dim)).astype(dtype)


@settings(max_examples=60)
@given(
    start=st.dictionaries(
        NAMES, st.tuples(st.integers(0, 9), DTYPES, st.integers(1, 3)), min_size=1
    ),
    n=st.integers(0, 7),
    chunk_rows=st.integers(1, 4),
    todo=st.lists(changes(), max_size=6),
)
def test_any_changes_do_what_they_do_to_plain_arrays(tmp_path_factory, start, n, chunk_rows, todo):
    path = tmp_path_factory.mktemp("changes") / "a.cvc"
    model = {name: some(n, made_of) for name, made_of in start.items()}
    sections = []
    write_columns(path, model, chunk_rows=chunk_rows, metadata={"kept": [1]})
    for kind, name, other, made_of, more in todo:
        after = dict(model)
        if kind == "append":
            rows = {
                key: some(more, (made_of[0], old.dtype, old.shape[1])) for key, old in model.items()
            }
            append(path, rows, chunk_rows=chunk_rows, section={"n": len(sections)})
            after = {key: np.concatenate((old, rows[key])) for key, old in model.items()}
            sections.append(range(n, n + more))
            n += more
        elif kind in ("add", "replace"):
            after[name] = some(n, made_of)
            if (kind == "add") == (name in model):
                with pytest.raises(ValueError, match="column"):
                    edit_columns(path, **{kind: {name: after[name]}})
                after = model
            else:
                edit_columns(path, **{kind: {name: after[name]}})
        elif name not in model or (kind == "drop" and len(model) == 1):
            with pytest.raises(ValueError, match="column"):
                edit_columns(
                    path, **({"drop": [name]} if kind == "drop" else {kind: {name: other}})
                )
        elif kind == "drop":
            edit_columns(path, drop={name})
            del after[name]
        elif other in model and other != name:
            with pytest.raises(ValueError, match="already"):
                edit_columns(path, rename={name: other})
        else:
            edit_columns(path, rename={name: other})
            after = {other if key == name else key: rows for key, rows in model.items()}
        model = after
    found = columns_of(path)
    assert list(found) == list(model)
    for name, rows in model.items():
        np.testing.assert_array_equal(found[name], rows, strict=True)
    with embmap.open(path) as file:
        assert file.metadata == {"kept": [1]}
        for i, rows in enumerate(sections):
            assert file.section(n=i).tolist() == list(rows)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["append", "add", "replace", "drop"])
def test_memory_does_not_grow_with_the_file(tmp_path, change):
    rows = RNG.standard_normal((16000, 1500), np.float32)  # 96 MB
    columns = {"x": rows, "y": rows[:, :1]}
    path = write_columns(tmp_path / "a.cvc", columns, chunk_rows=10**6)
    blocks = {
        "y": (rows[:, :1] for _ in "a"),
        "x": (rows[i : i + 100] for i in range(0, 16000, 100)),
    }
    values = {"add": {"z": blocks["x"]}, "replace": {"x": blocks["x"]}, "drop": ["y"]}
    tracemalloc.start()
    try:
        if change == "append":
            append(path, blocks)
        else:
            edit_columns(path, **{change: values[change]})
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes / 3
    finally:
        tracemalloc.stop()
