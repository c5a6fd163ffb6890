"""Bad DWE files: a clear error or the right answer, and nothing else.

The rule, for any bytes at all (`judge` holds embmap to it):

- Opening or reading raises an :class:`embmap.EmbmapError` or gives an answer; no other exception,
  no warning, and no more memory than the sizes in the header justify, if the data could hold them.
- Where the reference reads the bytes, embmap opens them, every answer is the reference's, and
  ``verify()`` finds an error exactly where the reference found a problem.
- Where the reference finds some groups damaged, embmap refuses to open the file, or refuses what
  needs these groups, answers all the rest as the reference does, and ``verify()`` finds an error.
- Where the reference refuses a file before it decodes anything, embmap refuses to open it, or some
  time step, all trajectories together, and ``verify()`` finds an error.

Not all damage can be told from other data: another symbol in a model, another word of the last
group of a time step in a stream. Then the reference reads it, and so does embmap.
"""

import gc
import importlib.util
import itertools
import json
import struct
import traceback
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embmap
from embmap.codecs import kernels
from tests.reference import dwe as reference

MEMORY = 4 << 20
KERNELS = ["numpy", "numba"] if importlib.util.find_spec("numba") else ["numpy"]
needs_numba = pytest.mark.skipif("numba" not in KERNELS, reason="numba is not installed")
REFUSED = "refused"  # any EmbmapError


def steps(*shape, spread=3, seed=1):
    """Steps that differ little from each other."""
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.integers(-spread, spread + 1, shape), axis=0).astype(np.int16)


SMALL = {
    "blocks": reference.encode(steps(4, 4, 1), 0.5, 2, "blocks"),
    "blocks with gaps": reference.encode(
        steps(3, 2, 2, spread=900), -0.5, 1, "blocks", gap=1, order=[1, 0, 2], minor=7
    ),
    "stream": reference.encode(steps(3, 3, 2), 0.5, 2, "stream"),
    "stream of a group": reference.encode(steps(3, 2, 3, spread=900), 0.5, 2, "stream"),
    "stream of states": reference.encode(np.full((2, 5, 1), 7, np.int16), 0.5, 2, "stream"),
}
each_small_file = pytest.mark.parametrize("name", SMALL)


# --------------------------------------------------------------------------------- what they answer


def parse(data):
    """What the reference makes of all but the symbols; None where it refuses."""
    try:
        return reference.parse(data)
    except reference.InvalidFile:
        return None


def groups_of(parsed):
    """The values of each group at each time step; None where a symbol they need is damaged."""
    residuals = {}
    for t, starts in enumerate(parsed.starts):
        for group in range(len(starts)):
            try:
                symbols, _ = reference.decode_group(parsed, t, group)
            except reference.InvalidFile:
                residuals[t, group] = None
            else:
                residuals[t, group] = np.array(symbols, np.int16).reshape(-1, parsed.dim)
    values = dict(residuals)
    for left, t, right in reference.tree(parsed.n_timesteps):
        for group in range(len(parsed.starts[t])):
            parts = [values[left, group], residuals[t, group], values[right, group]]
            values[t, group] = None
            if not any(part is None for part in parts):
                mean = reference.predict(parts[0], parts[2])
                values[t, group] = reference.wrap_i16(parts[1] + mean).astype(np.int16)
    return values


def bits(array):
    """Dtype, shape and bits of an array, every NaN made the same."""
    if array.dtype.kind == "f":
        array = np.array(array, order="C")
        array[np.isnan(array)] = np.nan
    return array.dtype.str, array.shape, array.tobytes()


def numbers(integers, scale):
    """What embmap makes of integers."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bits(integers.astype(np.float32) * scale)


def attempt(read):
    """Read, or say that it was refused; any other exception is a failure of the test."""
    try:
        return read()
    except embmap.EmbmapError:
        return REFUSED


def answers(f):
    """Everything an open file says by part: values, or REFUSED."""
    n_steps, n_words, dim = f.shape
    few = range(n_words if n_words < 20 else 0)
    found = {
        "layout": f.layout,
        "shape": (n_steps, n_words, dim),
        "scale": bits(np.array([f.scale], np.float32)),
        "info": (f.info()["version"], f.info()["group"]),
        "last": attempt(lambda: bits(np.asarray(f.vectors))),
        "trajectories": attempt(lambda: bits(f.trajectories(range(n_words)))),
    }
    for t in range(n_steps):
        step = f.timestep(t).quantized
        found["step", t] = attempt(lambda step=step: bits(np.asarray(step)))
        for row in few:
            found["row", t, row] = attempt(lambda step=step, row=row: bits(step[row]))
    for row in few:
        found["word", row] = attempt(lambda row=row: bits(f[row]))
    for row in few[1:2]:
        found["similar"] = attempt(lambda row=row: bits(f.similarity([0], [row])))
        found["related"] = attempt(lambda: [each.row for each in f.most_related(0, 1, 1)])
        found["changed"] = attempt(lambda: [each.row for each in f.largest_changes(0, 1)])
    found["sound"] = attempt(lambda: f.verify().ok)
    json.dumps(f.info(), allow_nan=False)
    repr(f)
    return found


def expected_answers(parsed, values):
    """The same from what the reference decodes."""
    scale, shape = parsed.scale, (parsed.n_timesteps, parsed.vocab_size, parsed.dim)
    few = range(parsed.vocab_size if parsed.vocab_size < 20 else 0)
    n_groups = len(parsed.starts[0])
    whole = [[values[t, group] for group in range(n_groups)] for t in range(parsed.n_timesteps)]
    whole = [None if any(g is None for g in step) else np.concatenate(step) for step in whole]
    damaged = any(step is None for step in whole)
    everything = None if damaged else np.stack(whole)
    found = {
        "layout": parsed.layout,
        "shape": shape,
        "scale": bits(scale.reshape(1)),
        "info": (f"1.{parsed.minor}", parsed.group),
        "last": REFUSED if whole[-1] is None else numbers(whole[-1], scale),
        "trajectories": REFUSED if damaged else numbers(everything.swapaxes(0, 1), scale),
        "sound": not damaged and bool(np.isfinite(scale)) and scale != 0,
    }
    for row in few:
        group, place = divmod(row, parsed.group)
        parts = [values[t, group] for t in range(parsed.n_timesteps)]
        for t, part in enumerate(parts):
            found["row", t, row] = REFUSED if part is None else bits(part[place])
        refused = any(part is None for part in parts)
        trajectory = None if refused else np.stack([part[place] for part in parts])
        found["word", row] = REFUSED if refused else numbers(trajectory, scale)
    for t, step in enumerate(whole):
        found["step", t] = REFUSED if step is None else bits(step)
    if few[1:] and not damaged:
        with np.errstate(over="ignore", invalid="ignore"):
            found["similar"] = bits(reference.similarity(everything, scale, [0], [1]))
        found["related"] = reference.most_related(everything, 1, 0, 1)
        found["changed"] = reference.largest_changes(everything, 0, 1)
    return found


def judge(path, backend, parsed, values):
    """Return what is wrong with what embmap makes of a file; "" when nothing is."""
    damaged = parsed is None or any(part is None for part in values.values())
    try:
        try:
            f = embmap.open(path, format="dwe", backend=backend)
        except embmap.EmbmapError as error:
            return "" if damaged else f"refused, though it is sound: {error}"
        with f:
            found = answers(f)
    except Exception as error:  # the point of all this
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} from {place.filename}:{place.lineno}: {error!s:.200}"
    if parsed is None:
        if found["sound"] is True:
            return "verify finds nothing wrong, but the reference refuses the bytes"
        if found["trajectories"] is not REFUSED:
            return "trajectories are read, but the reference refuses the bytes"
        refused = any(found["step", t] is REFUSED for t in range(found["shape"][0]))
        return "" if refused else "all time steps are read, but the reference refuses the bytes"
    wrong = []
    for part, answer in expected_answers(parsed, values).items():
        if found.get(part, "nothing") != answer:
            wrong.append(f"{part} is {found.get(part, 'nothing')!r:.80} and not {answer!r:.80}")
    return "; ".join(wrong)


class Damaged:
    """A file that is damaged again and again, and all that went wrong with it.

    Each damage is judged by one back end and one kind of kernel, taking turns.
    """

    def __init__(self, path):
        self.path = path
        self.wrong = []
        self.n = 0
        self.n_read = 0
        self.ways = itertools.cycle(itertools.product(("mmap", "read"), KERNELS))

    def judge(self, what, data, *, memory=None, every_way=False):
        """Judge bytes, and where a limit is given the memory it takes."""
        parsed = parse(data)
        values = {} if parsed is None else groups_of(parsed)
        self.n += 1
        self.n_read += parsed is not None and not any(v is None for v in values.values())
        self.path.write_bytes(data)
        for _ in range(2 * len(KERNELS) if every_way else 1):
            backend, kernel = next(self.ways)
            if len(data) >= 36 and np.prod(struct.unpack_from("<2I", data, 24), dtype=float) > 1e4:
                kernel = KERNELS[-1]  # numpy would decode position after position
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kernels, "CHOICE", kernel)
                patch.setattr(kernels, "_jit", None)
                if memory is not None:
                    kernels.jit_for(1)
                    tracemalloc.start()
                problem = judge(self.path, backend, parsed, values)
                if memory is not None:
                    used = tracemalloc.get_traced_memory()[1]
                    tracemalloc.stop()
                    if used > memory:
                        self.wrong.append(f"{what}, {backend}: {used} bytes of memory")
            if problem:
                self.wrong.append(f"{what}, {backend}, {kernel}: {problem}"[:400])

    def check(self):
        assert self.n
        shown = "\n".join(self.wrong[:12])
        assert not self.wrong, f"{len(self.wrong)} of {self.n} damages:\n{shown}"


@pytest.fixture
def damaged(tmp_path):
    """A file to damage."""
    return Damaged(tmp_path / "file.dwe")


def with_u32(data, place, value):
    """Bytes with another u32 in one place."""
    return data[:place] + struct.pack("<I", value) + data[place + 4 :]


def with_right_size(data):
    """Bytes whose header says how many they are, if they are whole words."""
    return data if len(data) < 16 else with_u32(data, 12, len(data) // 4)


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
    for place, old in enumerate(data):
        for new in {old ^ 0x01, old ^ 0x80, old ^ 0xFF, 0} - {old}:
            flipped = data[:place] + bytes([new]) + data[place + 1 :]
            damaged.judge(f"byte {place} {old:#x} to {new:#x}", flipped)
    damaged.check()
    assert 0 < damaged.n_read < damaged.n


def hostile_u32(data, place):
    """What might stand in one place of a file, and most likely must not."""
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
        for value in hostile_u32(data, place):
            hostile = with_u32(data, place, value)
            n_steps, n_words, dim = struct.unpack_from("<3I", hostile, 20)
            # Integers at all time steps, and those of the groups they come from.
            justified = 4 * n_steps * n_words * dim
            if n_words * dim > reference.MOST_SYMBOLS * (len(data) // 2 + 1):
                justified = 0
            damaged.judge(f"{value:#x} at {place}", hostile, memory=MEMORY + justified)
    damaged.check()
    assert 0 < damaged.n_read < damaged.n


@each_small_file
def test_hostile_entries_in_the_tables_are_refused_or_read(damaged, name):
    data = SMALL[name]
    for place in tables(name):
        for value in hostile_u32(data, place):
            damaged.judge(f"{value:#x} at {place}", with_u32(data, place, value))
    damaged.check()


@each_small_file
def test_two_hostile_sizes_at_once_are_refused_or_read(damaged, name):
    data = SMALL[name]
    for first, second in itertools.combinations(range(16, 36, 4), 2):
        for one, other in itertools.product((1, 2, 12, 2**16, 2**32 - 1), repeat=2):
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


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(list(SMALL)), splices=SPLICES)
def test_spliced_bytes_are_refused_or_read(tmp_path_factory, name, splices):
    damaged = Damaged(tmp_path_factory.getbasetemp() / "spliced.dwe")
    damaged.judge("spliced", spliced(SMALL[name], splices))
    damaged.check()


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=100, deadline=None)
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
        assert judge(path, backend, parsed, values) == ""
    with embmap.open(path) as f:
        t, group = bad
        with pytest.raises(embmap.FormatError, match=f"group {group} of timestep {t} "):
            f.timestep(t).quantized[group * parsed.group]
        problems = f.verify().problems
        assert any(f"group {group} of timestep {t} " in each.message for each in problems)
        assert all(0 <= each.offset <= f.info()["nbytes"] for each in problems)


@pytest.mark.parametrize("layout", reference.LAYOUTS)
def test_damage_is_found_where_it_is_and_nowhere_else(tmp_path, layout):
    path = tmp_path / "file.dwe"
    data = reference.encode(steps(5, 9, 4, spread=20), 0.5, 3, layout)
    parsed = reference.parse(data)
    base = 0 if layout == "blocks" else len(data) - 2 * len(parsed.words)
    n_found = 0
    for t in range(5):
        for group in range(3):
            position = base + 2 * parsed.starts[t][group][0]
            flipped = bytearray(data)
            flipped[position] ^= 0x10
            path.write_bytes(flipped)
            found = reference.parse(bytes(flipped))
            if layout == "stream" and group == 2:  # nothing says where a time step ends
                assert judge(path, "mmap", found, groups_of(found)) == ""
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
    words = len(data) - 2 * len(parsed.words)
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
            assert "timestep 0 does not end where another begins" in problem.message
            expected = reference.decode(bytes(flipped)).quantized
            for t in range(4):
                np.testing.assert_array_equal(np.asarray(f.timestep(t).quantized), expected[t])


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
        ("cannot come from|out of range", 28, 2**32 - 1),
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
    most = (reference.MOST_SYMBOLS * (len(parsed.words) + 1) - 1) // n_words
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
                lambda f=f: f.timestep(1)[0],
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
            lambda: f.trajectories(range(4)),
            lambda: f[3],
            lambda: np.asarray(f.timestep(2)),
            lambda: f.timestep(0)[[1, 3]],
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
