"""Bad CVC files: a clear error or the right answer, and nothing else.

tests/judges/cvc.py holds the rule, and holds embmap to it.
"""

import copy
import json
import re
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from tests.judges.cvc import (
    PAGE,
    ROWS,
    SMALL,
    Damaged,
    decode,
    header_of,
    with_header,
    with_new_checksums,
)
from tests.judges.damage import attempt, flips
from tests.reference import cvc as reference

pytestmark = pytest.mark.slow

MEMORY = 4 << 20

each_small_file = pytest.mark.parametrize("name", SMALL)


def padding(name):
    """Whether each byte of a small file is one that nothing reads."""
    data = SMALL[name]
    idle = [False] * len(data)
    if name == "1.0 on pages":
        at, text = header_of(data)
        first = json.loads(text)["chunks"][0]["file_offset"]
        (nbytes,) = struct.unpack_from("<I", data, first)
        idle[at + len(text) : first] = [True] * (first - at - len(text))
        idle[first + 8 + nbytes : 2 * PAGE] = [True] * (2 * PAGE - first - 8 - nbytes)
    return idle


def places(name):
    """Every place of a small file, but of padding only its ends and a few in between."""
    idle = padding(name)
    for place, is_idle in enumerate(idle):
        inside = is_idle and idle[place - 1] and idle[(place + 1) % len(idle)]
        if not inside or place % 256 == 0:
            yield place


# --------------------------------------------------------------------------------- what they answer


@pytest.fixture
def damaged(tmp_path):
    """A file to damage."""
    return Damaged(tmp_path / "file.cvc")


@pytest.fixture
def traced():
    """Memory is counted while the test runs."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@each_small_file
def test_undamaged_small_files_are_read(damaged, name):
    data = SMALL[name]
    assert len(data) < (3 * PAGE if name == "1.0 on pages" else 1000)
    assert reference.decode(data).problems == []
    assert with_header(name, header_of(data)[1]) == data
    damaged.judge("nothing", data)
    damaged.check()
    assert damaged.n_read == 1


# ------------------------------------------------------------------------------- damage everywhere


@each_small_file
def test_every_truncation_is_refused(damaged, name):
    data = SMALL[name]
    for nbytes in places(name):
        assert decode(data[:nbytes]) is None
        damaged.judge(f"cut to {nbytes}", data[:nbytes])
    damaged.check()


@each_small_file
def test_bytes_behind_the_end_are_refused(damaged, name):
    for more in (b"\0", b"\0" * 4, b"\0" * 8, bytes(PAGE), SMALL[name][-16:], SMALL[name]):
        assert decode(SMALL[name] + more) is None
        damaged.judge(f"with {len(more)} more", SMALL[name] + more)
    damaged.check()


@each_small_file
def test_every_flipped_byte_is_refused_or_read_as_the_reference_reads_it(damaged, name):
    data = SMALL[name]
    for what, flipped, backend in flips(data, places(name)):
        damaged.judge(what, flipped, backend)
    damaged.check()
    assert 0 < damaged.n_read < damaged.n


@pytest.mark.parametrize("name", ["1.0 lossless", "1.0 on pages", "2.0"])
def test_every_flipped_byte_under_new_checksums_is_refused_or_read(damaged, name):
    data = SMALL[name]
    with embmap.open(_written(damaged.path, data)) as f:
        records = [(part["offset"] - 8, part["nbytes"]) for part in f.info()["chunks"]]
    assert with_new_checksums(data, records) == data
    for start, nbytes in records:
        for what, flipped, backend in flips(data, range(start + 8, start + 8 + nbytes)):
            damaged.judge(what, with_new_checksums(flipped, records), backend)
    damaged.check()
    assert damaged.n_read


def _written(path, data):
    path.write_bytes(data)
    return path


PIECES = [
    b"",
    b"0",
    b"1",
    b"-",
    b"9" * 30,
    b"null",
    b"true",
    b"NaN",
    b'""',
    b"[]",
    b"{}",
    b"[" * 40,
]
PIECES += [b",", b"]", b"}", b'{"rows":0},', b'"x":1,', b".5", b"e400", b"\0", b"\xff", b"\xc3\xbc"]
SPLICES = st.lists(
    st.tuples(st.integers(0, 600), st.integers(0, 12), st.sampled_from(PIECES) | st.binary()),
    min_size=1,
    max_size=3,
)


def spliced(data, splices):
    """Bytes with some taken out and others put in."""
    for place, removed, added in splices:
        place %= len(data) + 1
        data = data[:place] + added + data[place + removed :]
    return data


@settings(max_examples=100)
@given(name=st.sampled_from(list(SMALL)), splices=SPLICES)
def test_spliced_bytes_are_refused_or_read(tmp_path_factory, name, splices):
    damaged = Damaged(tmp_path_factory.getbasetemp() / "spliced.cvc")
    damaged.judge("spliced", spliced(SMALL[name], splices))
    damaged.check()


@settings(max_examples=100)
@given(name=st.sampled_from(list(SMALL)), splices=SPLICES)
def test_spliced_headers_of_the_right_length_are_refused_or_read(tmp_path_factory, name, splices):
    damaged = Damaged(tmp_path_factory.getbasetemp() / "spliced.cvc")
    damaged.judge("spliced", with_header(name, spliced(header_of(SMALL[name])[1], splices)))
    damaged.check()


@settings(max_examples=80)
@given(data=st.binary(max_size=200), version=st.sampled_from([b"", b"\1\0\0\0", b"\2\0\0\0"]))
def test_any_bytes_behind_the_magic_are_refused_or_read(tmp_path_factory, data, version):
    damaged = Damaged(tmp_path_factory.getbasetemp() / "any.cvc")
    damaged.judge("any", b"CVCF" + version + data)
    damaged.check()


# ----------------------------------------------------------------------------------- hostile values

# Half of them are tried in each place; the campaign tries any value in any place.
HOSTILE = [
    *(None, True, False, 0, -1, 1, 2, 3, 7, 12, 4096, 8192, -(2**63)),
    *(2**31, 2**32, 2**62, 2**63 - 1, 2**63, 10**400, -(10**400)),
    *(10**4000, 0.0, 1.0, 3.0, 0.5, 1e300, float("nan"), float("inf"), float("-inf")),
    *("", "x", "fp16", "int8", "lossless", "none", "float16", "columnar", "\ud800", "\0"),
    *([], [0], {}, {"x": 0}),
]


def paths(value, path=()):
    """Every place of a JSON value."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else parts:
        yield from paths(part, (*path, key))


def replaced(document, path, *value):
    """A copy of a JSON value with another value somewhere, or none there."""
    document = copy.deepcopy(document)
    target = document
    for key in path[:-1]:
        target = target[key]
    if value:
        target[path[-1]] = value[0]
    else:
        del target[path[-1]]
    return document


@each_small_file
def test_hostile_values_everywhere_in_the_header_take_no_memory(damaged, traced, name):
    header = json.loads(header_of(SMALL[name])[1])
    for i, path in enumerate(paths(header)):
        backend = ("mmap", "read")[i % 2]
        damaged.judge(f"no {path}", with_header(name, replaced(header, path)), memory=MEMORY)
        for value in HOSTILE[i % 2 :: 2]:
            data = with_header(name, replaced(header, path, value))
            damaged.judge(f"{path} = {value!r:.40}", data, backend, memory=MEMORY)
    damaged.check()
    assert 0 < damaged.n_read < damaged.n


@each_small_file
def test_integers_of_too_many_digits_are_refused(damaged, name):
    text = header_of(SMALL[name])[1]
    numbers = list(re.finditer(rb"(?<=:)\d+(?=[,}])", text))
    assert len(numbers) >= 4
    for match in numbers:
        for n_digits in (4299, 4301, 100_000):
            hostile = text[: match.start()] + b"9" * n_digits + text[match.end() :]
            damaged.judge(f"{n_digits} digits at {match.start()}", with_header(name, hostile))
    damaged.check()


@each_small_file
def test_every_repeated_key_is_refused(damaged, name):
    text = header_of(SMALL[name])[1]
    for match in re.finditer(rb'(?<=[{,])"[^"]*":', text):
        twice = with_header(name, text[: match.start()] + match[0] + b"0," + text[match.start() :])
        assert decode(twice) is None
        damaged.path.write_bytes(twice)
        for backend in ("mmap", "read"):
            with pytest.raises(embmap.FormatError, match="twice"):
                embmap.open(damaged.path, backend=backend)


@each_small_file
def test_hostile_lengths_everywhere_take_no_memory(damaged, traced, name):
    data = SMALL[name]
    at, text = header_of(data)
    for place in range(4, len(data) - 3):
        if at - 4 < place < at + len(text) or padding(name)[place]:
            continue
        for value in (0, 2, 2**31) if place // 2 % 2 else (1, len(data), 2**32 - 1):
            hostile = data[:place] + struct.pack("<I", value) + data[place + 4 :]
            backend = ("mmap", "read")[place % 2]
            damaged.judge(f"{value:#x} at {place}", hostile, backend, memory=MEMORY)
    damaged.check()


@pytest.mark.parametrize("nbytes", [100, 2**31, 2**32 - 1])
@pytest.mark.parametrize("version", ["0.1", "1.0", "2.0"])
def test_a_header_beyond_the_file_is_refused_unread(damaged, backend, traced, version, nbytes):
    prelude = reference.encode(version, b"", [])[:-4] + struct.pack("<I", nbytes)
    damaged.path.write_bytes(prelude + b"[ " * 40)
    with pytest.raises(embmap.TruncatedError, match=rf"{nbytes} bytes.*80"):
        embmap.open(damaged.path, backend=backend)
    assert tracemalloc.get_traced_memory()[1] < MEMORY


# Rows that would be many, and the sizes and counts that say so.


@pytest.mark.parametrize("dimension", [2**31, 2**59, 2**60, 2**61, 2**62, 2**63 - 1, 2**63])
def test_a_great_dimension_without_rows_takes_no_memory(damaged, traced, dimension):
    for compression in ("fp16", "int8", "lossless"):
        for listed in ([], [("fp16", ROWS[:0])]):
            data = reference.matrix("1.0", listed, default=compression)
            header = json.loads(header_of(data)[1]) | {"dimension": dimension}
            made = reference.encode("1.0", header, [b""] * len(listed))
            damaged.judge(f"{compression} {listed}", made, memory=MEMORY)
    for dtype in reference.DTYPES:
        for listed in ([], [{"rows": 0, "columns": {"x": {"offset": 0, "size": 0}}}]):
            column = {"name": "x", "dimension": dimension, "dtype": dtype, "compression": "none"}
            header = {"format_type": "columnar", "num_vectors": 0, "columns": [column]}
            made = reference.encode("2.0", {**header, "chunks": listed}, [b""] * len(listed))
            damaged.judge(f"{dtype} {listed}", made, memory=MEMORY)
    damaged.check()


@pytest.mark.parametrize("rows", [9, 1000, 2**24, 2**30, 2**31, 2**40, 2**62])
def test_many_rows_in_few_bytes_take_no_memory(damaged, traced, rows):
    planes = reference.stored_as("lossless", ROWS[:1, :1])[1]
    promised = struct.pack("<I", rows % 2**32) + planes[4:]
    for compression, payload in (
        ("fp16", b"\0\0"),
        ("int8", b"\0"),
        ("lossless", planes),
        ("lossless", promised),
        ("lossless", promised[:8]),
        ("lossless", b""),
    ):
        header = {"num_vectors": rows, "dimension": 1, "compression": compression}
        header["chunks"] = [{"rows": rows, "min": 0, "scale": 0}]
        header["sections"] = [{"start_index": 0, "end_index": rows, "metadata": {"s": "a"}}]
        data = reference.encode("1.0", header, [payload])
        assert decode(data) is None
        damaged.judge(f"{compression} {len(payload)}", data, memory=MEMORY)
    damaged.check()


@pytest.mark.parametrize("rows", [1, 2**24, 2**40, 2**62])
def test_rows_of_no_columns_take_no_memory(damaged, traced, rows):
    header = {"format_type": "columnar", "num_vectors": rows, "columns": []}
    header["chunks"] = [{"rows": rows, "columns": {}}]
    header["sections"] = [{"start_index": 0, "end_index": rows, "metadata": {"s": "a"}}]
    damaged.judge("no columns", reference.encode("2.0", header, [b""]), memory=MEMORY)
    header |= {"num_vectors": 0, "chunks": [], "sections": []}
    damaged.judge("no rows either", reference.encode("2.0", header, []), memory=MEMORY)
    damaged.check()


def test_sums_of_rows_that_wrap_are_refused(damaged, traced):
    for listed in ([2**63, 2**63, 3], [2**62] * 4, [2**64 - 1, 4], [2**32, 3], [-1, 4], [4, -1]):
        header = {"num_vectors": 3, "dimension": 2, "compression": "fp16"}
        header["chunks"] = [{"rows": rows} for rows in listed]
        data = reference.encode("0.1", header, [bytes(12)] * len(listed))
        assert decode(data) is None
        damaged.judge(f"{listed}", data, memory=MEMORY)
        header["dimension"] = 0
        data = reference.encode("0.1", header, [b""] * len(listed))
        assert decode(data) is None
        damaged.judge(f"{listed} without dimensions", data, memory=MEMORY)
    damaged.check()


def test_places_of_chunks_are_believed_only_outside_the_header_and_one_another(damaged, traced):
    name = "1.0 on pages"
    data = SMALL[name]
    header = json.loads(header_of(data)[1])
    first, second = (chunk["file_offset"] for chunk in header["chunks"])
    end_of_header = sum(map(len, (header_of(data)[1], b"CVCF", bytes(8))))
    offsets = [0, 4, 8, 12, end_of_header - 1, end_of_header, end_of_header + 1]
    offsets += [
        first - 8,
        first - 1,
        first,
        first + 1,
        first + 4,
        first + 8,
        first + 19,
        first + 20,
    ]
    offsets += [second - 8, second - 1, second, second + 1, second + 8, second + 60]
    offsets += [len(data) - 8, len(data) - 1, len(data), len(data) + 1, 2**31, 2**32, 2**63 - 9]
    for at in offsets:
        for other in (first, second, at):
            for chunk, offset in zip(header["chunks"], (at, other), strict=True):
                chunk["file_offset"] = offset
            damaged.judge(f"{at}, {other}", with_header(name, header), memory=MEMORY)
    damaged.check()


def test_parts_of_a_payload_lie_inside_it(damaged, traced):
    header = json.loads(header_of(SMALL["2.0"])[1])
    part = header["chunks"][0]["columns"]["ü"]
    size = part["offset"] + part["size"]
    for offset in (
        0,
        1,
        part["offset"] + 1,
        size - 24,
        size - 1,
        size,
        size + 1,
        2**32,
        2**63 - 24,
    ):
        for nbytes in (0, 1, 23, 24, 25, size, 2**32, 2**63 - 1):
            part |= {"offset": offset, "size": nbytes}
            damaged.judge(f"{nbytes} at {offset}", with_header("2.0", header), memory=MEMORY)
    damaged.check()
    assert damaged.n_read


# --------------------------------------------------------------------------------------- JSON bombs

NESTED = {
    "lists": (b"[", b"]"),
    "objects": (b'{"a":', b"}"),
    "both": (b'[{"":', b"}]"),
}


@pytest.mark.parametrize("depth", [100, 300, 100_000, 1_000_000])
@pytest.mark.parametrize("kind", NESTED)
def test_deep_nesting_is_refused_or_read(damaged, kind, depth):
    opening, closing = NESTED[kind]
    bombs = [
        opening * depth,
        opening * depth + b"1" + closing * depth,
        opening * depth + b"1" + closing * (depth - 1),
    ]
    text = header_of(SMALL["0.1 mixed"])[1]
    assert text.endswith(b',"x":1}')
    for i, bomb in enumerate(bombs):
        alone = reference.encode("0.1", bomb, [])
        unknown = with_header("0.1 mixed", text[:-2] + bomb + b"}")
        in_section = with_header("0.1 mixed", text.replace(b'{"s":"b"}', b'{"s":%s}' % bomb))
        assert decode(alone) is None
        assert (decode(unknown) is not None) == (decode(in_section) is not None)
        assert (decode(unknown) is not None) == (depth == 100 and i == 1)
        for where, data in (
            ("by itself", alone),
            ("unknown", unknown),
            ("in a section", in_section),
        ):
            damaged.judge(f"{where}, {len(bomb)} bytes", data)
    damaged.check()


BIG = 20_000_000
LONG = {
    "a string": (b'"' + b"x" * BIG + b'"', 4),
    "a wide string": ('"✓🙂'.encode() + b"x" * BIG + b'"', 10),
    "white space": (b" " * BIG + b"1", 4),
    "no JSON": (b"\0" * BIG, 4),
    "no UTF-8": (b'"' + b"x" * BIG + b'\xff"', 4),
    "a number": (b"9" * BIG, 4),
    "no end": (b'"' + b"x" * BIG, 4),
}


@pytest.mark.parametrize("kind", LONG)
def test_a_header_of_20_megabytes_takes_a_small_multiple_of_memory(damaged, traced, kind):
    value, times = LONG[kind]
    text = header_of(SMALL["0.1 mixed"])[1]
    damaged.path.write_bytes(with_header("0.1 mixed", text[:-2] + value + b"}"))
    backend = ("mmap", "read")[len(kind) % 2]
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    if kind in ("a string", "a wide string", "white space"):
        with embmap.open(damaged.path, backend=backend) as f:
            if kind == "white space":
                assert f.metadata == {"x": 1}
            else:
                assert f.metadata["x"].encode() == value[1:-1]
            assert f[0].tolist() == [1, 2]
    else:
        with pytest.raises(embmap.FormatError, match="not JSON") as caught:
            embmap.open(damaged.path, backend=backend)
        assert len(str(caught.value)) < 1000
    assert tracemalloc.get_traced_memory()[1] - before < times * BIG


@pytest.mark.parametrize(
    ("entry", "n", "nbytes_each"),
    [
        (b"0", 200_000, 20),
        (b"[]", 60_000, 150),
        (b"{}", 60_000, 200),
        (b'{"rows":0}', 30_000, 500),
        (b'{"rows":1}', 30_000, 500),
    ],
)
def test_chunks_that_are_listed_and_not_there_are_refused(damaged, traced, entry, n, nbytes_each):
    text = header_of(SMALL["0.1 mixed"])[1]
    chunks = text.index(b'"chunks":[') + len(b'"chunks":[')
    text = text[:chunks] + (entry + b",") * n + text[chunks:]
    damaged.path.write_bytes(with_header("0.1 mixed", text))
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with pytest.raises(embmap.FormatError, match="chunk"):
        embmap.open(damaged.path)
    assert tracemalloc.get_traced_memory()[1] - before < nbytes_each * n + MEMORY


def test_two_million_chunks_are_refused(damaged):
    text = header_of(SMALL["0.1 mixed"])[1]
    text = text.replace(b'"chunks":[', b'"chunks":[' + b"0," * 2_000_000)
    damaged.path.write_bytes(with_header("0.1 mixed", text))
    with pytest.raises(embmap.FormatError, match="chunk 0"):
        embmap.open(damaged.path)


def test_a_long_list_that_nothing_reads_is_read(damaged, traced):
    n = 60_000
    text = header_of(SMALL["0.1 mixed"])[1]
    text = text.replace(b'"x":1', b'"chunk":[%s]' % b",".join([b"{}"] * n))
    damaged.path.write_bytes(with_header("0.1 mixed", text))
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with embmap.open(damaged.path) as f:
        assert len(f.metadata["chunk"]) == n
        assert f[0].tolist() == [1, 2]
    assert tracemalloc.get_traced_memory()[1] - before < 200 * n + MEMORY


def test_many_chunks_without_rows_are_read(damaged, backend):
    n = 8000
    header = {"num_vectors": 2, "dimension": 2, "compression": "fp16"}
    header["chunks"] = [{"rows": 1}, *[{"rows": 0}] * n, {"rows": 1}]
    halves = [struct.pack("<2e", 1, 2), struct.pack("<2e", 3, 4)]
    data = reference.encode("1.0", header, [halves[0], *[b""] * n, halves[1]])
    damaged.path.write_bytes(data)
    with embmap.open(damaged.path, backend=backend) as f:
        assert len(f.chunks) == n + 2
        assert np.asarray(f.vectors).tolist() == [[1, 2], [3, 4]]
        assert f[1].tolist() == [3, 4]
        assert f[[1, 0, 1]].tolist() == [[3, 4], [1, 2], [3, 4]]
        assert f.verify().ok


def test_many_columns_are_read(damaged, backend):
    n = 2000
    columns = {f"c{i}": ("uint8", "none", 1) for i in range(n)}
    data = reference.columnar(columns, [{name: [i % 256] for i, name in enumerate(columns)}])
    damaged.path.write_bytes(data)
    with embmap.open(damaged.path, backend=backend) as f:
        assert list(f.columns) == list(columns)
        assert [matrix[0, 0] for matrix in f.columns.values()] == [i % 256 for i in range(n)]
        assert f.verify().ok


def test_a_file_that_shrinks_while_open_is_refused(damaged):
    for name in SMALL:
        damaged.path.write_bytes(SMALL[name])
        with embmap.open(damaged.path, backend="read") as f:
            damaged.path.write_bytes(SMALL[name][:40])
            for matrix in f.columns.values():
                for read in (
                    lambda m=matrix: m[0],
                    lambda m=matrix: m[0:2],
                    lambda m=matrix: m[[0, 1]],
                    lambda m=matrix: np.asarray(m),
                ):
                    with pytest.raises(embmap.TruncatedError):
                        read()
            assert attempt(lambda f=f: f.verify().ok) is not True
