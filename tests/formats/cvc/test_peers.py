"""What decompressed writes we read, and what we write it reads."""

import json

import numpy as np
import pytest

import embmap
from tests.judges.cvc import header_of

decompressed = pytest.importorskip("decompressed", reason="decompressed is not installed")

from decompressed.mmap_loader import MMapCVCLoader  # noqa: E402

# It warns about every file of version 0.1.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Loading legacy:DeprecationWarning"),
]

VECTORS = np.random.default_rng(0).standard_normal((250, 16)).astype(np.float32)


def loaded(path):
    return decompressed.load_cvc(str(path), device="cpu", framework="numpy")


@pytest.mark.parametrize("backend", ["mmap", "read"])
@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_their_files_give_us_what_they_give_them(tmp_path, compression, backend):
    path = tmp_path / "theirs.cvc"
    decompressed.pack_cvc(VECTORS, str(path), compression=compression, chunk_size=100)
    with embmap.open(path, backend=backend) as file:
        assert file.layout == "1.0"
        assert np.array_equal(np.asarray(file.vectors), loaded(path))
        assert np.array_equal(file[[249, 0]], loaded(path)[[249, 0]])
        assert file.verify().ok


@pytest.mark.parametrize("version", ["0.1", "1.0"])
@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_our_files_give_them_what_they_give_us(tmp_path, compression, version):
    if (compression, version) == ("lossless", "0.1"):
        pytest.skip("version 0.1 has no lossless")
    path = embmap.cvc.write(
        tmp_path / "ours.cvc", VECTORS, compression=compression, chunk_rows=100, layout=version
    )
    with embmap.open(path) as file:
        assert np.array_equal(loaded(path), np.asarray(file.vectors))


@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_our_payloads_are_theirs_byte_for_byte(tmp_path, compression):
    theirs = tmp_path / "theirs.cvc"
    decompressed.pack_cvc(VECTORS, str(theirs), compression=compression, chunk_size=100)
    ours = embmap.cvc.write(
        tmp_path / "ours.cvc", VECTORS, compression=compression, chunk_rows=100, layout="1.0"
    )
    with embmap.open(theirs) as one, embmap.open(ours) as other:
        for a, b in zip(one.chunks, other.chunks, strict=True):
            assert a.raw.tobytes() == b.raw.tobytes()


SECTIONS = [(0, 130, "wiki"), (130, 140, "arxiv"), (140, 250, "github")]


def sections():
    return [
        {"start": start, "stop": stop, "metadata": {"source": source, "n": stop}}
        for start, stop, source in SECTIONS
    ]


def test_they_select_the_sections_that_we_write(tmp_path):
    path = embmap.cvc.write(
        tmp_path / "ours.cvc", VECTORS, chunk_rows=100, layout="1.0", sections=sections()
    )
    whole = loaded(path)
    for start, stop, source in SECTIONS:
        found = decompressed.load_cvc_range(
            str(path), device="cpu", section_key="source", section_value=source
        )
        assert np.array_equal(found, whole[start:stop])


def test_chunk_metadata_select_the_same_rows_in_both(tmp_path):
    about = [{"source": "wiki", "n": 1}, {"source": "arxiv"}, {"source": "wiki", "n": 2}]
    theirs = tmp_path / "theirs.cvc"
    decompressed.pack_cvc(VECTORS, str(theirs), chunk_size=100, chunk_metadata=about)
    ours = embmap.cvc.write(
        tmp_path / "ours.cvc", VECTORS, chunk_rows=100, layout="1.0", chunk_metadata=about
    )
    for path in (ours, theirs):
        with embmap.open(path) as file:
            for key, value in (("source", "wiki"), ("source", "arxiv"), ("n", 2)):
                found = decompressed.load_cvc_range(
                    str(path), device="cpu", metadata_key=key, metadata_value=value
                )
                assert np.array_equal(file[file.section(**{key: value})], found)


def test_they_select_the_sections_of_columns_that_we_write(tmp_path):
    path = embmap.cvc.write_columns(
        tmp_path / "ours.cvc",
        {"text": VECTORS},
        compression="fp16",
        chunk_rows=100,
        sections=sections(),
    )
    whole = decompressed.load_cvc_columns(str(path))["text"]
    for start, stop, source in SECTIONS:
        found = decompressed.load_cvc_columns(str(path), section_key="source", section_value=source)
        assert np.array_equal(found["text"], whole[start:stop])


def test_the_sections_of_chunks_are_theirs(tmp_path):
    ours, theirs = tmp_path / "ours.cvc", tmp_path / "theirs.cvc"
    decompressed.pack_cvc_sections(
        [(VECTORS[each["start"] : each["stop"]], each["metadata"]) for each in sections()],
        str(theirs),
        chunk_size=100,
    )
    embmap.cvc.write(ours, VECTORS, chunk_rows=100, layout="1.0", sections=sections())
    a, b = header_of(ours.read_bytes()), header_of(theirs.read_bytes())
    assert json.loads(a[1]) == json.loads(b[1])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("compression", ["fp16", "int8"])
def test_their_compressed_integers_are_float32_as_they_read_them(tmp_path, compression, dtype):
    path = tmp_path / "theirs.cvc"
    ids = np.arange(-50, 200).clip(*((0, 127) if dtype != "int64" else (-50, 200))).astype(dtype)
    columns = {"id": ids, "text": VECTORS}
    decompressed.pack_cvc_columns(columns, str(path), {"id": compression}, chunk_size=100)
    theirs = decompressed.load_cvc_columns(str(path))
    with embmap.open(path) as file:
        assert file.columns["id"].dtype == np.float32
        assert np.array_equal(np.asarray(file.columns["id"])[:, 0], theirs["id"])
        assert np.array_equal(np.asarray(file.columns["text"]), theirs["text"])
        assert file.verify().ok


@pytest.mark.parametrize("compression", ["fp16", "int8"])
def test_their_mapping_loader_reads_our_files_optimized_for_it(tmp_path, compression):
    path = embmap.cvc.write(
        tmp_path / "ours.cvc",
        VECTORS,
        compression=compression,
        chunk_rows=100,
        layout="1.0",
        mmap_optimized=True,
    )
    with MMapCVCLoader(str(path)) as theirs, embmap.open(path) as file:
        assert theirs.is_mmap_optimized
        assert np.array_equal(theirs.load(framework="numpy"), np.asarray(file.vectors))


@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_they_read_the_rows_that_we_append_and_select_them(tmp_path, compression):
    path = tmp_path / "a.cvc"
    theirs = [(VECTORS[each["start"] : each["stop"]], each["metadata"]) for each in sections()]
    decompressed.pack_cvc_sections(theirs, str(path), compression=compression, chunk_size=100)
    old = loaded(path)
    embmap.cvc.append(path, VECTORS[:70], section={"source": "more"}, chunk_rows=30)
    whole = loaded(path)
    assert np.array_equal(whole[:250], old)
    with embmap.open(path) as file:
        assert np.array_equal(np.asarray(file.vectors), whole)
    for start, stop, source in (*SECTIONS, (250, 320, "more")):
        found = decompressed.load_cvc_range(
            str(path), device="cpu", section_key="source", section_value=source
        )
        assert np.array_equal(found, whole[start:stop])
    assert decompressed.validate_cvc_integrity(str(path))["valid"]


def test_they_select_appended_chunks_by_their_metadata(tmp_path):
    path = tmp_path / "a.cvc"
    about = [{"n": i} for i in range(3)]
    decompressed.pack_cvc(VECTORS, str(path), chunk_size=100, chunk_metadata=about)
    embmap.cvc.append(path, VECTORS[:50], chunk_metadata=[{"n": 9}])
    for n, rows in ((0, slice(100)), (2, slice(200, 250)), (9, slice(250, 300))):
        found = decompressed.load_cvc_range(
            str(path), device="cpu", metadata_key="n", metadata_value=n
        )
        assert np.array_equal(found, loaded(path)[rows])


def test_they_read_the_columns_that_we_change_as_those_that_they_change(tmp_path):
    ours, theirs = tmp_path / "ours.cvc", tmp_path / "theirs.cvc"
    columns = {"text": VECTORS, "image": VECTORS[:, :4], "id": np.arange(250, dtype=np.int32)}
    kinds = {"text": "fp16", "image": "int8", "id": "none", "new": "int8"}
    for path in (ours, theirs):
        decompressed.pack_cvc_sections_columnar(
            [
                ({name: rows[part] for name, rows in columns.items()}, {"s": i})
                for i, part in enumerate((slice(90), slice(90, None)))
            ],
            str(path),
            {name: kinds[name] for name in columns},
            chunk_size=60,
        )
    new = VECTORS[:, 3:9].copy()
    decompressed.add_column(str(theirs), "new", new, "int8")
    decompressed.update_column(str(theirs), "text", new)
    decompressed.delete_column(str(theirs), "image")
    decompressed.rename_column(str(theirs), "id", "number")
    embmap.cvc.edit_columns(
        ours,
        add={"new": new},
        replace={"text": new},
        drop=["image"],
        rename={"id": "number"},
        compression={"new": "int8"},
    )
    found, expected = map(decompressed.load_cvc_columns, (str(ours), str(theirs)))
    assert found.keys() == expected.keys() == {"text", "number", "new"}
    assert np.array_equal(found["text"], expected["text"])
    # Each of their changes stores integers as floats, which they then read as integers.
    assert found["number"].tolist() == list(range(250))
    assert np.allclose(found["new"], expected["new"], atol=0.05)  # they make one chunk of all
    with embmap.open(ours) as file:
        for name, values in found.items():
            assert np.array_equal(np.asarray(file.columns[name]).reshape(values.shape), values)
    part = decompressed.load_cvc_columns(str(ours), section_key="s", section_value=1)
    assert np.array_equal(part["text"], found["text"][90:])
    embmap.cvc.append(ours, {"text": new[:5], "number": np.arange(5, dtype="i4"), "new": new[:5]})
    assert decompressed.load_cvc_columns(str(ours))["number"][-5:].tolist() == list(range(5))
