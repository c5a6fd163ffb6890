"""Bad EMBD files: a clear error or the right answer, and nothing else.

tests/judges/embd.py holds the rule, and holds embmap to it.
"""

import itertools
import os
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

import embmap
from tests.judges.damage import flips
from tests.judges.embd import SMALL, WORDS, Damaged, content, tensor, with_new_checksums
from tests.reference import embd as reference

pytestmark = pytest.mark.slow

MEMORY = 4 << 20


each_small_file = pytest.mark.parametrize("name", SMALL)


# --------------------------------------------------------------------------------- what they answer


@pytest.fixture
def damaged(tmp_path):
    """A file to damage."""
    return Damaged(tmp_path / "file.weights")


@each_small_file
def test_undamaged_small_files_are_read(damaged, backend, name):
    data = SMALL[name]
    assert len(data) < 1500
    assert reference.decode(data).problems == []
    damaged.judge("nothing", data, backend)
    damaged.check()


# ------------------------------------------------------------------------------- damage everywhere


@each_small_file
def test_every_truncation_is_refused(damaged, name):
    data = SMALL[name]
    for nbytes in range(len(data)):
        with pytest.raises(reference.InvalidFile):
            reference.decode(data[:nbytes])
        damaged.judge(f"cut to {nbytes}", data[:nbytes], ("mmap", "read")[nbytes % 2])
    damaged.check()


@each_small_file
def test_bytes_behind_the_end_are_refused(damaged, backend, name):
    for more in (b"\0", b"\0" * 4, b"DBME\0\0\0\0", SMALL[name][-16:], SMALL[name]):
        with pytest.raises(reference.InvalidFile):
            reference.decode(SMALL[name] + more)
        damaged.judge(f"with {len(more)} more", SMALL[name] + more, backend)
    damaged.check()


@each_small_file
def test_every_flipped_byte_is_refused_or_read_as_the_reference_reads_it(damaged, name):
    for what, data, backend in flips(SMALL[name]):
        damaged.judge(what, data, backend)
    damaged.check()


def test_every_flipped_byte_under_new_checksums_is_refused_or_read(damaged):
    for what, data, backend in flips(SMALL["spec"]):
        damaged.judge(what, with_new_checksums(data), backend)
    damaged.check()


def test_every_flipped_byte_of_the_data_breaks_a_checksum(damaged, backend):
    data = SMALL["spec"]
    (start,), (size,) = struct.unpack_from("<I", data, 36), struct.unpack_from("<Q", data, 40)
    for position in range(start, start + size):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        damaged.path.write_bytes(flipped)
        with embmap.open(damaged.path, backend=backend) as f:
            report = f.verify()
            assert not report.ok
            assert any("checksum" in problem.message for problem in report.problems)


# ----------------------------------------------------------------------------------- hostile fields

COUNTS = (2**31, 2**32 - 1)


def test_hostile_counts_in_every_field_take_no_memory(damaged):
    kinds = [("<I", COUNTS, 1), ("<H", (2**16 - 1,), 3), ("<Q", (2**31, 2**63, 2**64 - 1), 4)]
    tracemalloc.start()
    try:
        for name, data in SMALL.items():
            # Every offset: the fields of some sections follow strings of any length.
            for layout, values, step in kinds:
                for offset in range(4, len(data) - struct.calcsize(layout) + 1, step):
                    turn = offset // step
                    backend, value = ("mmap", "read")[turn // 3 % 2], values[turn % len(values)]
                    hostile = bytearray(data)
                    struct.pack_into(layout, hostile, offset, value)
                    if name == "spec":
                        hostile = with_new_checksums(hostile)
                    tracemalloc.reset_peak()
                    before, _ = tracemalloc.get_traced_memory()
                    damaged.judge(f"{name}, {value:#x} at {offset}", bytes(hostile), backend)
                    _, peak = tracemalloc.get_traced_memory()
                    if peak - before > MEMORY:
                        damaged.wrong.append(f"{name}, {value:#x} at {offset}: {peak} bytes")
    finally:
        tracemalloc.stop()
    damaged.check()


def descriptor(dims, dtype=0, start=0, n_dims=None, name=b"t"):
    """A tensor descriptor."""
    n_dims = len(dims) if n_dims is None else n_dims
    sizes = struct.pack("<IBBH", reference.fnv1a(name), dtype, n_dims, len(name))
    return sizes + struct.pack("<4IQ", *[*dims, 0, 0, 0, 0][:4], start)


def spec_file(descriptors, names, data, *, checksums=True):
    """A spec file of these descriptors, without metadata and vocabulary."""
    flags = reference.CHECKSUM_ENABLED if checksums else 0
    index = b"".join(descriptors) + names
    data_offset = 64 + len(index)
    made = struct.pack("<4sHHI", b"EMBD", 1, 0, flags) + bytes(16)
    made += struct.pack("<III", 64, len(descriptors), data_offset)
    made += struct.pack("<QQII", len(data), data_offset + len(data) + 16, 0, 0)
    made += index + data + struct.pack("<II4sI", 0, 0, b"DBME", 0)
    return with_new_checksums(made) if checksums else made


HUGE = 2**32 - 1
DESCRIBED = {
    "sound": ([descriptor((2, 2))], b"t", 16),
    "sound, gap": ([descriptor((1,), start=12)], b"t", 16),
    "no tensors": ([], b"", 0),
    "empty, at the end": ([descriptor((0,), start=16)], b"t", 16),
    "empty, behind the end": ([descriptor((0,), start=17)], b"t", 16),
    "empty, far behind the end": ([descriptor((0,), start=2**64 - 1)], b"t", 16),
    "empty, huge": ([descriptor((0, HUGE))], b"t", 0),
    "empty, more than arrays have": ([descriptor((0, HUGE, HUGE, HUGE))], b"t", 0),
    "empty, just as many as arrays have": ([descriptor((0, 2**31, 2**30 - 1))], b"t", 0),
    "empty, one more than arrays have": ([descriptor((0, 2**31, 2**30))], b"t", 0),
    "huge": ([descriptor((HUGE, HUGE, HUGE, HUGE))], b"t", 16),
    "product wraps to zero": ([descriptor((2**31, 2**31, 4))], b"t", 16),
    "product wraps to the size": ([descriptor((2**31, 2**31, 1, 1), dtype=2)], b"t", 0),
    "size wraps": ([descriptor((4,), start=2**64 - 16)], b"t", 16),
    "one byte outside": ([descriptor((4,), start=1)], b"t", 16),
    "no dimensions": ([descriptor((), n_dims=0)], b"t", 16),
    "five dimensions": ([descriptor((1, 1, 1, 1), n_dims=5)], b"t", 16),
    "unused dimension": ([descriptor((1, 1), n_dims=1)], b"t", 16),
    "dtype 9": ([descriptor((1,), dtype=9)], b"t", 16),
    "dtype 255": ([descriptor((1,), dtype=255)], b"t", 16),
    "overlap": ([descriptor((3,)), descriptor((2,), start=8, name=b"u")], b"tu", 16),
    "overlap, one inside": ([descriptor((4,)), descriptor((1,), start=4, name=b"u")], b"tu", 16),
    "same place": ([descriptor((4,)), descriptor((4,), name=b"u")], b"tu", 16),
    "side by side": ([descriptor((2,), start=8), descriptor((2,), name=b"u")], b"tu", 16),
    "empty inside": ([descriptor((4,)), descriptor((0,), start=8, name=b"u")], b"tu", 16),
    "same name": ([descriptor((2,)), descriptor((2,), start=8)], b"tt", 16),
    "no name": ([descriptor((4,), name=b"")], b"", 16),
    "name not UTF-8": ([descriptor((4,), name=b"\xff")], b"\xff", 16),
    "name of a surrogate": ([descriptor((4,), name=b"\xed\xa0\x80")], b"\xed\xa0\x80", 16),
    "name into the footer": ([descriptor((0,), name=b"n" * 17)], b"n", 0),
    "name over the data": ([descriptor((0,), name=b"n" * 16)], b"n", 16),
}


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("name", DESCRIBED)
def test_descriptors_are_refused_or_read_as_the_reference_reads_them(
    damaged, backend, name, checksums
):
    descriptors, names, nbytes = DESCRIBED[name]
    data = spec_file(descriptors, names, bytes(nbytes), checksums=checksums)
    damaged.judge(name, data, backend)
    damaged.check()


def flat_file(dims, nbytes, name=b"t", n_tensors=1, n_tokens=0):
    """A flat file of one tensor."""
    made = struct.pack("<4sIII", b"EMBD", 1, n_tensors, len(name)) + name
    made += struct.pack(f"<I{len(dims)}I", len(dims), *dims) + bytes(nbytes)
    return made + struct.pack("<I", n_tokens)


FLAT = {
    "sound": flat_file((2, 2), 16),
    "empty": flat_file((0, 5), 0),
    "empty, huge": flat_file((0, HUGE), 0),
    "empty, more than arrays have": flat_file((HUGE, HUGE, HUGE, 0), 0),
    "product wraps to zero": flat_file((2**31, 2**31, 4), 0),
    "no dimensions": flat_file((), 4),
    "five dimensions": flat_file((1, 1, 1, 1, 1), 4),
    "no tensors": struct.pack("<4sIII", b"EMBD", 1, 0, 0),
    "no tensors, no vocabulary": struct.pack("<4sII", b"EMBD", 1, 0),
    "only the magic": b"EMBD",
    "magic and version": struct.pack("<4sI", b"EMBD", 1),
    "minor version": struct.pack("<4sHHII", b"EMBD", 1, 1, 0, 0),
    "version 2": struct.pack("<4sIII", b"EMBD", 2, 0, 0),
    "name not UTF-8": flat_file((1,), 4, name=b"\xff"),
    "one token too many": flat_file((1,), 4, n_tokens=1),
    "ends like spec": flat_file((1,), 4, n_tokens=1) + struct.pack("<I", 8) + b"DBME\0\0\0\0",
}


@pytest.mark.parametrize("name", FLAT)
def test_flat_files_are_refused_or_read_as_the_reference_reads_them(damaged, backend, name):
    damaged.judge(name, FLAT[name], backend)
    damaged.check()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"EMBD" + bytes(2000), id="zeros"),
        pytest.param(b"EMBD" + b"\xff" * 2000, id="ones"),
        pytest.param(struct.pack("<4sI", b"EMBD", 1) + b"\xff" * 2000, id="version and ones"),
        pytest.param(b"EMBD" + b"the quick brown fox\n" * 99, id="text"),
        pytest.param(struct.pack("<4s7I", b"EMBD", 1, 3, 9, 9, 32, 1, 0), id="32-byte table"),
        pytest.param(struct.pack("<4sIQQ", b"EMBD", 2, 4, 8) + bytes(128), id="vector store"),
    ],
)
def test_what_only_begins_like_it_is_refused(damaged, backend, data):
    damaged.path.write_bytes(data)
    with pytest.raises(embmap.FormatError):
        embmap.open(damaged.path, backend=backend)


@pytest.mark.parametrize("offset", ["relative", "absolute"])
def test_special_tokens_are_found_from_the_file_or_the_section(damaged, backend, offset):
    data = bytearray(SMALL["spec"])
    (vocabulary,) = struct.unpack_from("<I", data, 20)
    (absolute,) = struct.unpack_from("<I", data, vocabulary + 8)
    if offset == "relative":
        struct.pack_into("<I", data, vocabulary + 8, absolute - vocabulary)
    damaged.path.write_bytes(with_new_checksums(data))
    with embmap.open(damaged.path, backend=backend) as f:
        assert f.special_tokens == content("spec").special_tokens
        assert f.verify().ok


@pytest.mark.parametrize(("section", "field"), [("metadata", 12), ("vocabulary", 20)])
def test_another_total_size_of_a_section_is_a_warning(damaged, backend, section, field):
    damaged.path.write_bytes(SMALL["spec"])
    with embmap.open(damaged.path, backend=backend) as f:
        known = f.verify().problems
    data = bytearray(SMALL["spec"])
    (start,) = struct.unpack_from("<I", data, field)
    (total,) = struct.unpack_from("<I", data, start + 4)
    struct.pack_into("<I", data, start + 4, total + 1)
    damaged.path.write_bytes(with_new_checksums(data))
    with embmap.open(damaged.path, backend=backend) as f:
        report = f.verify()
    assert report.ok
    added = [problem for problem in report.problems if problem not in known]
    assert [problem.severity for problem in added] == ["warning"]


def test_a_flag_that_promises_alignment_is_not_believed(damaged, backend):
    made = content("spec")
    made.tensors = {"odd": tensor("uint8", (3,)), **made.tensors}
    data = bytearray(reference.encode(made, align=1))
    data[8] |= reference.TENSORS_ALIGNED
    data = with_new_checksums(data)
    damaged.judge("flag set", data, backend)
    damaged.check()
    with embmap.open(damaged.path, backend=backend) as f:
        report = f.verify()
        assert any("align" in problem.message for problem in report.problems)
        start = f.info()["chunks"][1]["offset"]
        if backend == "mmap" and start % 4:
            assert not f.tensors[WORDS].flags.aligned


SECTIONS = ("metadata", "vocabulary", "index", "data")


def reordered(data, order, gap):
    """A spec file with its sections in another order, and bytes that belong to none between."""
    at = dict(zip(SECTIONS, (12, 20, 28, 36), strict=True))
    start = {name: struct.unpack_from("<I", data, field)[0] for name, field in at.items()}
    stop = {
        "metadata": start["vocabulary"],
        "vocabulary": start["index"],
        "index": start["data"],  # with the padding behind it, which is a gap like any other
        "data": len(data) - reference.FOOTER,
    }
    out = bytearray(data[:64])
    for name in order:
        out += gap
        section = bytearray(data[start[name] : stop[name]])
        struct.pack_into("<I", out, at[name], len(out))
        if name == "vocabulary":
            (special,) = struct.unpack_from("<I", section, 8)
            struct.pack_into("<I", section, 8, special - start[name] + len(out))
        out += section
    out += gap + data[-reference.FOOTER :]
    struct.pack_into("<Q", out, 48, len(out))
    return with_new_checksums(out)


@pytest.mark.parametrize("order", list(itertools.permutations(SECTIONS)), ids=" ".join)
def test_sections_come_in_any_order(damaged, backend, order):
    for gap in (b"", b"\0", b"?" * 7):
        data = reordered(SMALL["spec"], order, gap)
        decoded = reference.decode(data)
        assert decoded.problems == []
        assert decoded.special_tokens == content("spec").special_tokens
        damaged.judge(f"gaps of {len(gap)}", data, backend)
    damaged.check()


# --------------------------------------------------------------------------- telling layouts apart


def polyglot():
    """A file that satisfies both layouts."""
    key = b"key0" + struct.pack("<II", 1, 38)  # to a flat reader: one dimension, of 38
    data = np.arange(29, dtype="<f4").tobytes()
    made = struct.pack("<4sHHI", b"EMBD", 1, 0, reference.VOCAB_EMBEDDED)  # or: one tensor
    made += struct.pack("<7I", 64, 12 + len(key), 0, 0, 88, 1, 124)  # or: a name of 64 bytes
    made += struct.pack("<QQII", len(data), 256, 0, 0)
    made += struct.pack("<IIHH", 1, 4 + len(key), len(key), 0) + key
    made += descriptor((29,), name=b"spec") + b"spec" + data
    return made + struct.pack("<II4sI", 1, 8, b"DBME", 0)  # or: one token of eight bytes


def test_a_file_of_both_layouts_is_spec_unless_told_otherwise(damaged, backend):
    data = polyglot()
    assert len(data) == 256
    as_flat = reference.Decoded()
    reference._read_flat(as_flat, data)  # refuses what is not
    damaged.judge("both", data, backend)
    damaged.check()
    with embmap.open(damaged.path, backend=backend) as f:
        assert (f.layout, list(f.tensors)) == ("spec", ["spec"])
    with embmap.open(damaged.path, backend=backend, layout="flat") as f:
        assert f.layout == "flat"
        assert list(f.tensors) == list(as_flat.tensors)
        assert list(f.vocab) == ["DBME\0\0\0\0"]
    damaged.path.write_bytes(SMALL["flat"])
    with pytest.raises(embmap.FormatError):
        embmap.open(damaged.path, backend=backend, layout="spec")
    damaged.path.write_bytes(SMALL["spec"])
    with pytest.raises(embmap.FormatError):
        embmap.open(damaged.path, backend=backend, layout="flat")
    with pytest.raises(ValueError, match="layout"):
        embmap.open(damaged.path, backend=backend, layout="blocks")


@pytest.mark.parametrize("broken", list(itertools.product([False, True], repeat=3)), ids=str)
def test_signs_of_spec_that_are_broken(damaged, backend, broken):
    for name in ("spec", "spec without checksums"):
        data = bytearray(SMALL[name])
        wrong_sum, wrong_size, wrong_end = broken
        if wrong_size:
            struct.pack_into("<Q", data, 48, len(data) + 5)
        if wrong_end:
            data[-8:-4] = b"dbme"
        struct.pack_into("<I", data, 56, zlib.crc32(data[:56]) ^ wrong_sum)
        damaged.judge(f"{name} {broken}", bytes(data), backend)
        if wrong_size and not wrong_sum:
            announced = rf"{len(data)} bytes.*{len(data) + 5}"
            with pytest.raises(embmap.TruncatedError, match=announced):
                embmap.open(damaged.path, backend=backend)
    damaged.check()


def test_every_flag_that_is_not_known_is_refused(damaged, backend):
    for name in ("spec", "spec without checksums"):
        for bit in range(3, 32):
            data = bytearray(SMALL[name])
            struct.pack_into("<I", data, 8, struct.unpack_from("<I", data, 8)[0] | 1 << bit)
            damaged.path.write_bytes(with_new_checksums(data) if name == "spec" else data)
            with pytest.raises(embmap.UnsupportedError):
                embmap.open(damaged.path, backend=backend)


def test_a_minor_version_is_read_where_it_is_spec(damaged, backend):
    data = bytearray(SMALL["spec"])
    struct.pack_into("<H", data, 6, 7)
    damaged.judge("spec", with_new_checksums(data), backend)
    damaged.check()
    data = bytearray(SMALL["flat"])
    struct.pack_into("<H", data, 6, 7)
    damaged.path.write_bytes(data)
    with pytest.raises(embmap.FormatError):
        embmap.open(damaged.path, backend=backend)


def test_a_file_that_shrinks_while_open_is_refused(damaged):
    data = SMALL["spec"]
    damaged.path.write_bytes(data)
    with embmap.open(damaged.path, backend="read") as f:
        os.truncate(damaged.path, 100)
        with pytest.raises(embmap.EmbmapError):
            f.tensor(WORDS)
        with pytest.raises(embmap.EmbmapError):
            list(f.vocab)
