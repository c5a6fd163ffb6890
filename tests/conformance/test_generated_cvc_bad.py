"""CVC files with one thing wrong are refused by what is wrong."""

import json
import re
import struct

import numpy as np
import pytest

import embmap
from tests.conformance.generated_cvc import reads_like_the_reference, same, section, vectors
from tests.reference import cvc as reference

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
    "only the magic": (b"CVCF", "header length"),
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
            assert f.verify().ok  # version 0.1 has no checksums
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
