"""Bad DWE files: a clear error or the right answer, and nothing else.

tests/judges/dwe.py holds the rule, and holds embmap to it.
"""

import gc
import itertools
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from embmap.codecs import kernels
from tests.judges.damage import REFUSED, attempt, flips
from tests.judges.dwe import (
    KERNELS,
    SMALL,
    Damaged,
    groups_of,
    judge,
    parse,
    steps,
    with_right_size,
    with_u32,
)
from tests.reference import dwe as reference

pytestmark = pytest.mark.slow

MEMORY = 4 << 20
needs_numba = pytest.mark.skipif("numba" not in KERNELS, reason="numba is not installed")


each_small_file = pytest.mark.parametrize("name", SMALL)


# --------------------------------------------------------------------------------- what they answer


@pytest.fixture
def damaged(tmp_path):
    """A file to damage."""
    return Damaged(tmp_path / "file.dwe")


@each_small_file
def test_undamaged_small_files_are_read(damaged, name):
    data = SMALL[name]
    assert len(data) < 300
    assert with_right_size(data) == data
    damaged.judge("nothing", data, every_way=True)
    damaged.check()
    assert damaged.n_read == 1
    with embmap.open(damaged.path) as f:
        assert f.verify().problems == []


# ------------------------------------------------------------------------------- damage everywhere


@each_small_file
def test_every_truncation_is_refused(damaged, name):
    data = SMALL[name]
    for nbytes in range(len(data)):
        assert parse(data[:nbytes]) is None
        damaged.path.write_bytes(data[:nbytes])
        for backend in ("mmap", "read"):
            with pytest.raises(embmap.FormatError):
                embmap.open(damaged.path, format="dwe", backend=backend)


@each_small_file
def test_every_truncation_that_the_header_hides_is_refused(damaged, name):
    data = SMALL[name]
    for nbytes in range(16, len(data)):
        damaged.judge(f"cut to {nbytes}", with_right_size(data[:nbytes]))
    damaged.check()
    assert damaged.n_read == 0


@each_small_file
def test_bytes_behind_the_end_are_refused(damaged, name):
    data = SMALL[name]
    for more in (b"\0", b"\0" * 4, b"\xff" * 4, bytes(4096), data):
        assert parse(data + more) is None
        damaged.judge(f"with {len(more)} more", data + more)
        if len(more) % 4:
            damaged.judge("hidden", with_right_size(data + more))
    damaged.check()
    assert damaged.n_read == 0


@each_small_file
def test_every_flipped_byte_is_refused_or_read_as_the_reference_reads_it(damaged, name):
    data = SMALL[name]
    for what, flipped, _ in flips(data):
        damaged.judge(what, flipped)
    damaged.check()
    assert 0 < damaged.n_read < damaged.n


def hostile_u32(data, place):
    """Values for one place of a file, most of them not allowed there."""
    (old,) = struct.unpack_from("<I", data, place)
    size = len(data) // 4
    values = {0, 1, 2, 3, 12, size - 1, size, 0xFFFF, 0x10000, 2**20, 2**31, 2**32 - 1}
    values |= {old + 1, 2 * old, max(old, 1) - 1}
    return sorted(value for value in values - {old} if value < 2**32)


def tables(name):
    """Where the entries of the tables of a small file are: of time steps, chunks, groups."""
    data = SMALL[name]
    parsed = reference.parse(data)
    n_groups = len(parsed.starts[0])
    if parsed.layout == "stream":
        first, n = parsed.meta_size, 2 * parsed.n_timesteps * n_groups
        return [4 * (first + i) for i in range(n)]
    places = [40 + 4 * t for t in range(parsed.n_timesteps)]
    for t in range(parsed.n_timesteps):
        (address,) = struct.unpack_from("<I", data, 40 + 4 * t)
        table = 2 * address + len(reference.write_model(parsed.models[t])) + 1
        places += [4 * (table // 2 + i) for i in range(n_groups)]
    return places


@each_small_file
def test_hostile_sizes_in_the_header_take_no_memory(damaged, name):
    data = SMALL[name]
    for place in range(4, 40, 4):
        # The small files share the values of a place between them, in pairs.
        for value in hostile_u32(data, place)[list(SMALL).index(name) % 2 :: 2]:
            hostile = with_u32(data, place, value)
            n_steps, n_words, dim = struct.unpack_from("<3I", hostile, 20)
            # The integers of all time steps, and of the groups they are decoded from.
            justified = 4 * n_steps * n_words * dim
            if n_words * dim > reference.MOST_SYMBOLS * (len(data) // 2 + 1):
                justified = 0
            damaged.judge(f"{value:#x} at {place}", hostile, memory=MEMORY + justified)
    damaged.check()
    assert 0 < damaged.n_read < damaged.n


@each_small_file
def test_hostile_entries_in_the_tables_are_refused_or_read(damaged, name):
    data = SMALL[name]
    for n, place in enumerate(tables(name)):
        for value in hostile_u32(data, place)[n % 3 :: 3]:
            damaged.judge(f"{value:#x} at {place}", with_u32(data, place, value))
    damaged.check()


@each_small_file
def test_two_hostile_sizes_at_once_are_refused_or_read(damaged, name):
    data = SMALL[name]
    for first, second in itertools.combinations(range(16, 36, 4), 2):
        for one, other in itertools.product((2, 2**16, 2**32 - 1), repeat=2):
            hostile = with_u32(with_u32(data, first, one), second, other)
            damaged.judge(f"{one} at {first}, {other} at {second}", hostile)
    damaged.check()


PIECES = [b"", b"\0\0", b"\xff\xff", b"\0\0\1\0", b"\2\0", b"\1\0", b"\xff" * 8, bytes(12)]
SPLICES = st.lists(
    st.tuples(
        st.integers(16, 300), st.integers(0, 12), st.sampled_from(PIECES) | st.binary(max_size=12)
    ),
    min_size=1,
    max_size=3,
)


def spliced(data, splices):
    """Bytes with some taken out and others put in, behind the size, which is mended."""
    for place, removed, added in splices:
        place = 16 + (place - 16) % (len(data) - 15)
        data = data[:place] + added + data[place + removed :]
    return with_right_size(data + bytes(-len(data) % 4))


@settings(max_examples=80)
@given(name=st.sampled_from(list(SMALL)), splices=SPLICES)
def test_spliced_bytes_are_refused_or_read(tmp_path_factory, name, splices):
    damaged = Damaged(tmp_path_factory.getbasetemp() / "spliced.dwe")
    damaged.judge("spliced", spliced(SMALL[name], splices))
    damaged.check()


@settings(max_examples=80)
@given(
    name=st.sampled_from(list(SMALL)),
    words=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 65535)), min_size=1, max_size=4),
)
def test_other_words_behind_the_header_are_refused_or_read(tmp_path_factory, name, words):
    data = bytearray(SMALL[name])
    for place, word in words:
        struct.pack_into("<H", data, 40 + 2 * (place % (len(data) // 2 - 20)), word)
    damaged = Damaged(tmp_path_factory.getbasetemp() / "words.dwe")
    damaged.judge(f"{words}", bytes(data))
    damaged.check()


@settings(max_examples=80)
@given(
    data=st.binary(max_size=120),
    sizes=st.tuples(*[st.integers(0, 12)] * 3, st.integers(0, 3), st.integers(0, 3)),
)
def test_any_bytes_behind_a_header_are_refused_or_read(tmp_path_factory, data, sizes):
    address, n_steps, n_words, dim, group = sizes
    address += 10
    header = struct.pack("<4s8If", b"\0dwe", 1, 0, 0, address, n_steps, n_words, dim, group, 1)
    damaged = Damaged(tmp_path_factory.getbasetemp() / "any.dwe")
    damaged.judge("any", with_right_size(header + data + bytes(-len(data) % 4)))
    damaged.check()


# ----------------------------------------------------------------------------- damage of one kind


def refused_only_in(path, parsed, bad):
    """Check that embmap refuses what needs one group of one time step, and reads all the rest."""
    values = groups_of(parsed)
    assert values[bad] is None
    for backend in ("mmap", "read"):
        assert judge(path, backend, parsed, values).problem == ""
    with embmap.open(path) as f:
        t, group = bad
        with pytest.raises(embmap.FormatError, match=f"group {group} of timestep {t} "):
            f.at(t).vectors.quantized[group * parsed.group]
        problems = f.verify().problems
        assert any(f"group {group} of timestep {t} " in each.message for each in problems)
        assert all(0 <= each.offset <= f.info()["nbytes"] for each in problems)


@pytest.mark.parametrize("layout", reference.LAYOUTS)
def test_damage_is_found_where_it_is_and_nowhere_else(tmp_path, layout):
    path = tmp_path / "file.dwe"
    data = reference.encode(steps(5, 9, 4, spread=20), 0.5, 3, layout)
    parsed = reference.parse(data)
    base = 0 if layout == "blocks" else len(data) - 2 * len(parsed.halfwords)
    n_found = 0
    for t in range(5):
        for group in range(3):
            position = base + 2 * parsed.starts[t][group][0]
            flipped = bytearray(data)
            flipped[position] ^= 0x10
            path.write_bytes(flipped)
            found = reference.parse(bytes(flipped))
            if layout == "stream" and group == 2:  # nothing says where a time step ends
                assert judge(path, "mmap", found, groups_of(found)).problem == ""
                with embmap.open(path) as f:
                    assert f.verify().problems
            else:
                refused_only_in(path, found, (t, group))
                n_found += 1
    assert n_found == (15 if layout == "blocks" else 10)


def test_a_step_that_ends_where_no_step_begins_is_warned_of(tmp_path):
    values = steps(4, 6, 3, spread=20)
    data = reference.encode(values, 0.5, 2, "stream")
    path = tmp_path / "file.dwe"
    parsed = reference.parse(data)
    words = len(data) - 2 * len(parsed.halfwords)
    place = words + 2 * parsed.starts[0][2][0]  # the last group of the first step
    for pattern in (1, 2, 0x40):
        flipped = bytearray(data)
        flipped[place] ^= pattern
        found = reference.parse(bytes(flipped))
        assert reference.loose_ends(found) == [0]
        path.write_bytes(flipped)
        with embmap.open(path) as f:
            report = f.verify()
            assert report.ok
            (problem,) = report.problems
            assert problem.severity == "warning"
            assert "timestep 0 does not end where another starts" in problem.message
            expected = reference.decode(bytes(flipped)).quantized
            for t in range(4):
                np.testing.assert_array_equal(np.asarray(f.at(t).vectors.quantized), expected[t])


def test_many_damaged_groups_are_counted_and_not_listed(tmp_path):
    data = bytearray(reference.encode(steps(2, 40, 1, spread=200), 0.5, 1, "blocks"))
    for place in range(4 * struct.unpack_from("<I", data, 16)[0], len(data), 4):
        data[place] ^= 0x01  # the high half of each state
    path = tmp_path / "file.dwe"
    path.write_bytes(data)
    with embmap.open(path) as f:
        report = f.verify()
    assert not report.ok
    assert len(report.problems) <= 2 * 12
    assert any("more groups of timestep 0 are damaged" in each.message for each in report.problems)


@pytest.mark.parametrize("layout", reference.LAYOUTS)
def test_errors_name_the_file_and_what_is_wrong(tmp_path, layout):
    path = tmp_path / "file.dwe"
    data = SMALL[layout]
    for name, place, value in [
        ("magic", 0, 0),
        ("major_version", 4, 2),
        ("file_size", 12, 1),
        ("num_timesteps", 20, 1),
        ("vocab_size", 24, 0),
        ("embedding_dim", 28, 0),
        ("chunk_size or jump_interval", 32, 0),
        ("chunk_size is out of range.*jump_interval is out of range", 32, 2**32 - 1),
        ("jump_table_address is out of range", 16, 2**32 - 1),
        ("cannot encode|out of range", 28, 2**32 - 1),
    ]:
        path.write_bytes(with_u32(data, place, value))
        with pytest.raises(embmap.FormatError, match=name) as caught:
            embmap.open(path, format="dwe")
        assert str(path) in str(caught.value)
        assert caught.value.format == "dwe"
        assert len(str(caught.value)) < 1000
    path.write_bytes(with_u32(data, 4, 2))
    with pytest.raises(embmap.UnsupportedError):
        embmap.open(path)
    path.write_bytes(data[:-4])
    with pytest.raises(embmap.TruncatedError):
        embmap.open(path)


@needs_numba
@pytest.mark.parametrize("name", ["blocks", "stream of a group"])
def test_the_greatest_sizes_the_data_could_hold_take_no_more_than_they_justify(damaged, name):
    data = SMALL[name]
    n_steps, n_words = struct.unpack_from("<2I", data, 20)
    parsed = reference.parse(data)
    most = (reference.MOST_SYMBOLS * (len(parsed.halfwords) + 1) - 1) // n_words
    for dim, justified in ((most, 4 * n_steps * n_words * most), (most + 1, 0)):
        damaged.judge(f"{dim}", with_u32(data, 28, dim), memory=MEMORY + justified)
    damaged.check()
    assert damaged.n_read == 0


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_a_file_that_shrinks_while_open_is_refused(tmp_path, backend):
    path = tmp_path / "file.dwe"
    for data in SMALL.values():
        if backend == "mmap":  # whose first page stays, whatever the size of the file
            data = reference.encode(steps(4, 40, 50, spread=90), 0.5, 20, "stream")
        path.write_bytes(data)
        with embmap.open(path, backend=backend) as f:
            with open(path, "r+b") as handle:
                handle.truncate(len(data) - 4)
            for read in (
                lambda f=f: f[0],
                lambda f=f: f[0:2],
                lambda f=f: f.at(1).vectors[0],
                lambda f=f: np.asarray(f.vectors),
                lambda f=f: f.most_related(0, 0, 1),
            ):
                with pytest.raises(embmap.TruncatedError):
                    read()
            assert not f.verify().ok
        path.unlink()


@needs_numba
def test_a_refused_read_keeps_no_memory(tmp_path, backend, monkeypatch):
    monkeypatch.setattr(kernels, "CHOICE", "numba")
    path = tmp_path / "file.dwe"
    path.write_bytes(with_u32(SMALL["blocks"], 28, 100_000))  # dimensions, of one
    with embmap.open(path, backend=backend) as f:
        reads = [
            lambda: f[range(4)],
            lambda: f[3],
            lambda: np.asarray(f.at(2).vectors),
            lambda: f.at(0).vectors[[1, 3]],
            lambda: f.most_related(0, 1, 1),
            lambda: f.verify().ok or f[0],
        ]
        assert [attempt(read) for read in reads] == [REFUSED] * len(reads)  # and all is loaded
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for read in reads:
                assert attempt(read) is REFUSED
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert kept < 100_000
