"""Sketches of vectors: the same answers as without one, and refused over other data."""

import os
import shutil
import struct
import warnings

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import embmap
from embmap.codecs import kernels
from embmap.search import exact, preselection, sketch_file
from embmap.search.preselection import Preselection
from tests.kernels import needs_numba

pytestmark = needs_numba
METRICS = ["cosine", "dot", "euclidean"]
RNG = np.random.default_rng(11)
DIM = 20
HEADER = 80


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    """Compiled loops at once, and sketches for small matrices too, in several blocks and spans."""
    monkeypatch.setattr(kernels, "CHOICE", "numba")
    monkeypatch.setattr(preselection, "_FEWEST", 1)
    monkeypatch.setattr(preselection, "_SHARE", 8)
    monkeypatch.setattr(preselection, "_BLOCK", 256)
    monkeypatch.setattr(exact, "_PARALLEL", 1)
    monkeypatch.setattr(preselection, "_COPIED_NBYTES", 1 << 12)
    monkeypatch.setattr(sketch_file, "BLOCK", 1 << 12)
    monkeypatch.setenv("EMBMAP_THREADS", "3")


@pytest.fixture
def settled(monkeypatch):
    """Answers of searches by a sketch: a list of whether each had one."""
    found = []
    answers = Preselection.answers

    def note(self):
        found.append(answers(self))
        return found[-1]

    monkeypatch.setattr(Preselection, "answers", note)
    return found


def write(folder, rows):
    folder.mkdir(exist_ok=True)
    words = [f"w{i}" for i in range(len(rows))]
    return embmap.finalfusion.write(folder / "a.fifu", words, rows)


def pair(tmp_path, rows, backend="mmap"):
    """The same rows twice: with a sketch beside them, and without."""
    sketched, plain = write(tmp_path / "s", rows), write(tmp_path / "p", rows)
    with embmap.open(sketched) as file:
        assert file.build_sketch() == sketched.with_name("a.fifu.sketch")
    return embmap.open(sketched, backend=backend), embmap.open(plain)


def rows_like_words(n, dtype="f4"):
    """Rows with a mean, a large column, ties and rows of zeros."""
    rows = RNG.standard_normal((n, DIM)) * RNG.random((n, 1)) * 9 + 0.5
    rows[:, 3] *= 30
    rows[n // 2 : n // 2 + 60] = rows[7]
    rows[10:15] = 0
    return rows.astype(dtype)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["i1", "i4", "f4", "f8"])
def test_answers_are_those_without_a_sketch(tmp_path, settled, backend, metric, dtype):
    rows = rows_like_words(3000, dtype)
    sketched, plain = pair(tmp_path, rows, backend)
    queries = RNG.standard_normal((3, DIM))
    among = np.sort(RNG.permutation(3000)[:1500])
    for query in ("w7", "w100", ["w7", "w100", "w12"], queries, queries[0], np.zeros(DIM)):
        for n in (1, 10, 99):
            expected = plain.most_similar(query, n, metric)
            assert sketched.most_similar(query, n, metric) == expected
        for some in (among, range(40, 2000)):
            expected = plain.most_similar(query, 10, metric, among=some, exclude=[50, 1600])
            found = sketched.most_similar(query, 10, metric, among=some, exclude=[50, 1600])
            assert found == expected
    assert sketched.analogy("w1", "w2", "w3") == plain.analogy("w1", "w2", "w3")
    assert sum(each is not None for each in settled) > 10


@given(
    rows=arrays(
        np.float32,
        st.tuples(st.integers(8, 60), st.just(3)),
        elements=st.sampled_from(
            [0.0, 1.0, -1.0, 0.5, 3.0, 1e-30, 1e-45, 1e-15, 1e15, 1e30, 3e38, np.inf, np.nan]
        ),
    ),
    query=arrays(np.float64, 3, elements=st.sampled_from([0.0, 1.0, -2.0, 1e-20, 1e20, 1e300])),
    n=st.integers(0, 7),
    metric=st.sampled_from(METRICS),
)
def test_whatever_the_numbers_answers_are_the_same(tmp_path_factory, rows, query, n, metric):
    sketched, plain = pair(tmp_path_factory.mktemp("any"), rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sketched.most_similar(query, n, metric) == plain.most_similar(query, n, metric)
        assert sketched.verify().problems == plain.verify().problems


@pytest.mark.parametrize("scale", [1e-300, 1e-20, 1e20, 1e300])
def test_numbers_at_the_ends_of_float64(tmp_path, scale):
    rows = RNG.standard_normal((2000, DIM))
    rows[::3] *= scale
    sketched, plain = pair(tmp_path, rows)
    for metric in METRICS:
        for query in ("w0", "w1", rows[5] * scale):
            found = sketched.most_similar(query, 9, metric)
            assert found == plain.most_similar(query, 9, metric)


def test_a_sketch_that_leaves_too_many_rows_in_doubt_is_not_used(tmp_path, settled, monkeypatch):
    monkeypatch.setattr("embmap.search.ranking._POOL", 8)
    rows = np.ones((3000, DIM), np.float32)
    rows += RNG.random(rows.shape).astype("f4") * 1e-6
    sketched, plain = pair(tmp_path, rows)
    assert sketched.most_similar("w5", 9) == plain.most_similar("w5", 9)
    assert settled == [None]


def test_numpy_searches_without_the_sketch(tmp_path, settled, monkeypatch):
    sketched, plain = pair(tmp_path, rows_like_words(3000))
    monkeypatch.setattr(kernels, "CHOICE", "numpy")
    assert sketched.most_similar("w5") == plain.most_similar("w5")
    assert sketched.most_similar("w5", dim=4) == plain.most_similar("w5", dim=4)
    assert not settled


@pytest.mark.parametrize("compression", ["fp16", "int8"])
def test_decoded_rows_have_sketches(tmp_path, settled, compression):
    rows = rows_like_words(3000)
    for name in ("a.cvc", "b.cvc"):
        embmap.cvc.write(tmp_path / name, rows, compression=compression, chunk_rows=700)
    with embmap.open(tmp_path / "a.cvc") as sketched, embmap.open(tmp_path / "b.cvc") as plain:
        sketched.build_sketch()
        assert sketched.most_similar(rows[9], 5) == plain.most_similar(rows[9], 5)
        assert sketched.verify().ok
    assert settled[0] is not None


def test_time_steps_have_sketches_of_their_own(tmp_path, settled):
    steps = RNG.integers(-40, 40, (2, 2000, 5), np.int16)
    path = embmap.dwe.write(tmp_path / "a.dwe", steps, scale=0.1, group=100)
    with embmap.open(path) as file:
        expected = file.at(0).most_similar(np.ones(5)), file.most_similar(np.ones(5))
        assert file.at(0).build_sketch() == tmp_path / "a.dwe.0.sketch"
        assert file.build_sketch() == tmp_path / "a.dwe.1.sketch"
    with embmap.open(path) as file:
        assert (file.at(0).most_similar(np.ones(5)), file.most_similar(np.ones(5))) == expected
    assert len(settled) == 2


def test_files_that_cannot_have_a_sketch(tmp_path):
    vectors = RNG.standard_normal((300, 8)).astype("f4")
    quantized = embmap.finalfusion.quantize(vectors, q=2, k=4, seed=1)
    words = [f"w{i}" for i in range(300)]
    path = embmap.finalfusion.write(tmp_path / "q", words, None, quantized=quantized)
    with embmap.open(path) as file, pytest.raises(ValueError, match="need no sketch"):
        file.build_sketch()
    path = write(tmp_path, vectors)
    with embmap.open(path) as file, pytest.raises(ValueError, match="holds the data"):
        file.build_sketch(path)
    assert os.listdir(tmp_path) == ["a.fifu", "q"] or len(os.listdir(tmp_path)) == 2
    path = embmap.finalfusion.write(tmp_path / "e", [], vectors[:0])
    with embmap.open(path) as file, pytest.raises(ValueError, match="no words"):
        file.build_sketch()


# Refusing


def refused(sketched, plain, match):
    """The answers are right, and a warning says why the sketch was not used."""
    with embmap.open(plain) as file:
        expected = file.most_similar("w7")
    with embmap.open(sketched) as file:
        with pytest.warns(embmap.StaleIndexWarning, match=match):
            assert file.most_similar("w7") == expected
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is not tried again
            assert file.most_similar("w7") == expected


def test_a_sketch_of_other_data_is_refused(tmp_path, settled):
    rows = rows_like_words(3000)
    sketched, plain = (file.path for file in pair(tmp_path, rows))
    sketch = sketched.with_name("a.fifu.sketch")
    before = os.stat(sketched)
    changed = sketched.read_bytes().replace(rows[7].tobytes(), rows[8].tobytes())
    for path in (sketched, plain):
        path.write_bytes(changed)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(sketched, plain, "the data changed")
    for other in (rows[:-1], rows[:, :-1]):
        refused(write(sketched.parent, other), write(plain.parent, other), "other data")
    assert not settled
    path = write(sketched.parent, rows)  # the same bytes at another time
    write(plain.parent, rows)
    with embmap.open(path) as file, embmap.open(plain) as other:
        assert file.most_similar("w7") == other.most_similar("w7")
        assert file.verify().ok
    assert len(settled) == 1
    copied = tmp_path / "copied.fifu"
    shutil.copy(path, copied)
    shutil.copy(sketch, f"{copied}.sketch")
    with embmap.open(copied) as file:
        file.most_similar("w7")
    assert len(settled) == 2


def test_data_that_cannot_have_changed_is_not_read_again(tmp_path, settled, monkeypatch):
    sketched, plain = pair(tmp_path, rows_like_words(1000))
    monkeypatch.setattr(sketch_file, "digest", None)
    monkeypatch.setattr(sketch_file, "_TICK_NS", -(10**10))  # as if it was old
    with embmap.open(sketched.path) as file:
        assert file.most_similar("w7") == plain.most_similar("w7")
    assert len(settled) == 1
    os.utime(sketched.path, (0, 0))
    with embmap.open(sketched.path) as file, pytest.raises(TypeError):
        file.most_similar("w7")


def test_a_damaged_sketch_is_refused(tmp_path):
    sketched, plain = (file.path for file in pair(tmp_path, rows_like_words(1000)))
    sketch = sketched.with_name("a.fifu.sketch")
    before = sketch.read_bytes()
    for damaged in (b"", b"hello", before[:-1], before[: len(before) // 2], before + b"\0"):
        sketch.write_bytes(damaged)
        refused(sketched, plain, "sketch ignored")
    places = [*range(HEADER), *range(4096, len(before), len(before) // 40), len(before) - 1]
    for place in places:
        flipped = bytearray(before)
        flipped[place] ^= 1
        sketch.write_bytes(flipped)
        refused(sketched, plain, "sketch ignored")
        with embmap.open(sketched) as file:
            assert [problem.severity for problem in file.verify().problems] == ["warning"]
    sketch.unlink()
    sketch.mkdir()
    refused(sketched, plain, "sketch ignored")


def forge(sketch, change):
    """Change the scales of a sketch of 1000 rows, and correct its checksums."""
    data = bytearray(sketch.read_bytes())
    offsets = sketch_file._Offsets(1000, DIM, 4)
    scales = np.frombuffer(data, "<f4", 1000, offsets.scales)
    scales[...] = change(scales)
    for block in range(offsets.n_blocks):
        start = 4096 + block * sketch_file.BLOCK
        part = data[start : min(start + sketch_file.BLOCK, offsets.sums)]
        struct.pack_into("<Q", data, offsets.sums + 8 * block, xxhash.xxh3_64_intdigest(part))
    sketch.write_bytes(data)


def test_bounds_that_do_not_hold_are_noticed_where_rows_are_compared(tmp_path):
    sketched, plain = (file.path for file in pair(tmp_path, rows_like_words(1000)))
    forge(sketched.with_name("a.fifu.sketch"), lambda scales: scales * 1.5)
    refused(sketched, plain, "bounds in the sketch do not hold")
    with embmap.open(sketched) as file:
        (problem,) = file.verify().problems
        assert "the bounds of row 0 do not hold" in problem.message


def test_hostile_numbers_crash_nothing(tmp_path):
    sketched = pair(tmp_path, rows_like_words(1000))[0].path
    for number in (np.nan, np.inf, -np.inf, -1, 3e38):
        forge(sketched.with_name("a.fifu.sketch"), lambda scales, n=number: np.full_like(scales, n))
        with embmap.open(sketched) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", embmap.StaleIndexWarning)
            warnings.simplefilter("error", RuntimeWarning)
            file.most_similar("w7")
            assert not file.verify().ok or file.verify().problems


def test_a_sketch_that_shrinks_while_it_is_open_is_dropped(tmp_path, backend):
    sketched, plain = pair(tmp_path, rows_like_words(3000), backend)
    expected = plain.most_similar("w7")
    assert sketched.most_similar("w7") == expected
    os.truncate(sketched._beside(".sketch"), 5000)
    with pytest.warns(embmap.StaleIndexWarning, match="shrank"):
        assert sketched.most_similar("w7") == expected
    assert sketched.most_similar("w7") == expected


def test_a_new_sketch_takes_its_place_as_a_whole(tmp_path, monkeypatch):
    sketched, plain = pair(tmp_path, rows_like_words(3000))
    sketch = sketched._beside(".sketch")
    before = sketch.read_bytes()

    def fail(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketched.build_sketch(progress=fail)
    assert sketch.read_bytes() == before
    assert sorted(os.listdir(sketch.parent)) == ["a.fifu", "a.fifu.sketch"]
    elsewhere = sketched.build_sketch(tmp_path / "other")
    assert elsewhere.read_bytes()[HEADER:] == before[HEADER:]
    assert sketched.most_similar("w7") == plain.most_similar("w7")


def test_the_command_writes_each_kind_of_index(command, tmp_path):
    path = write(tmp_path, rows_like_words(300))
    status, printed, _ = command("index", path, "--kind", "sketch")
    sketch = tmp_path / "a.fifu.sketch"
    assert (status, printed) == (0, f"{sketch}: 300 rows, {sketch.stat().st_size} bytes\n")
    assert "300 words" in command("index", path)[1]
    found = {each.name for each in tmp_path.iterdir()}
    assert found == {"a.fifu", "a.fifu.sketch", "a.fifu.embx"}
    np.save(tmp_path / "b.npy", rows_like_words(300))
    assert command("index", tmp_path / "b.npy", "--kind", "sketch")[0] == 0
    assert (tmp_path / "b.npy.sketch").exists()
