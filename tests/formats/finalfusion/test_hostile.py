"""Bad finalfusion files and indexes: a clear error or the right answer, and nothing else.

tests/judges/finalfusion.py holds the rule, and holds embmap to it.
"""

import contextlib
import functools
import itertools
import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import embmap
from tests.judges.damage import flips
from tests.judges.finalfusion import (
    LOOKUPS,
    SMALL,
    WORDS,
    Damaged,
    chunks_of,
    content,
    count_fields,
    decoded_or_none,
    with_field,
)
from tests.reference import finalfusion as reference

try:
    import resource
except ImportError:  # Windows
    resource = None

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def little_memory():
    """Let what takes gigabytes fail here instead of filling the machine."""
    if resource is None or sys.platform != "linux":
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**32, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


# ------------------------------------------------------------------------------------ small files


each_small_file = pytest.mark.parametrize("name", SMALL)


# --------------------------------------------------------------------------------- what they answer


@each_small_file
def test_undamaged_small_files_are_read(tmp_path, backend, name):
    damaged = Damaged(tmp_path / "file.fifu", SMALL[name])
    assert decoded_or_none(SMALL[name]) is not None
    damaged.judge("nothing", SMALL[name], backend)
    damaged.check()


# ------------------------------------------------------------------------------- damage everywhere


@pytest.mark.usefixtures("little_memory")
@each_small_file
def test_every_truncation_is_noticed(tmp_path, name):
    data = SMALL[name]
    damaged = Damaged(tmp_path / "file.fifu", data)
    for nbytes in reversed(range(len(data))):
        os.truncate(damaged.path, nbytes)
        damaged.judge(f"cut to {nbytes}", data[:nbytes], ("mmap", "read")[nbytes % 2])
    damaged.check()


@pytest.mark.usefixtures("little_memory")
@each_small_file
def test_every_flipped_byte_is_refused_or_read_as_the_reference_reads_it(tmp_path, name):
    data = SMALL[name]
    damaged = Damaged(tmp_path / "file.fifu", data)
    for what, flipped, backend in flips(data):
        damaged.replaced(what, flipped, backend)
    damaged.check()


def first_of_its_content(seen, path):
    data = path.read_bytes()
    return not (data in seen or seen.add(data))


@pytest.mark.conformance_files(
    "finalfusion/*.fifu",
    "finalfusion/*quantized_storage.bin",
    where=functools.partial(first_of_its_content, set()),
)
def test_truncations_of_real_files_are_noticed(tmp_path, conformance_file):
    data = conformance_file.read_bytes()
    with embmap.open(conformance_file) as f:
        edges = [edge for chunk in f.chunks for edge in (chunk.offset, chunk.end)]
    # Each length near the edge of a chunk, and some others; of small files each has been tried.
    near = {edge + i for edge in [0, *edges] for i in range(-40, 40)}
    lengths = set(range(len(data))) & (near | set(range(0, len(data), 97)))
    with embmap.open(conformance_file) as f:
        lookups = [*(f.vocab or [])[:3], *LOOKUPS]
    damaged = Damaged(tmp_path / "file.fifu", data)
    for nbytes in sorted(lengths, reverse=True):
        os.truncate(damaged.path, nbytes)
        damaged.judge(f"cut to {nbytes}", data[:nbytes], ("mmap", "read")[nbytes % 2], lookups)
    damaged.check()


# ---------------------------------------------------------------------------------- hostile counts

HOSTILE = {4: [2**31, 2**32 - 1], 8: [2**31, 2**32 - 1, 2**63, 2**64 - 1]}


@pytest.mark.usefixtures("little_memory")
@each_small_file
def test_hostile_counts_take_no_memory(tmp_path, name):
    data = SMALL[name]
    damaged = Damaged(tmp_path / "file.fifu", data)
    most = 4 * 2**20 + 4 * len(data)
    tracemalloc.start()
    try:
        for n, (offset, nbytes) in enumerate(count_fields(data)):
            for i, value in enumerate(HOSTILE[nbytes]):
                backend = ("mmap", "read")[(n + i) % 2]
                what = f"{value:#x} in {nbytes} bytes at {offset}"
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                damaged.replaced(what, with_field(data, offset, nbytes, value), backend)
                taken = tracemalloc.get_traced_memory()[1] - before
                if taken > most:
                    damaged.wrong.append(f"{what}, {backend}: took {taken} bytes")
    finally:
        tracemalloc.stop()
    damaged.check()


ROWS_OF_NOTHING = [2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
READ_EVERYTHING = """
import itertools, sys
import numpy as np
import embmap
for path, backend in itertools.product(sys.argv[1:], ("mmap", "read")):
    print(path, backend, flush=True)
    try:
        with embmap.open(path, backend=backend) as f:
            repr(f), f.info(), f.shape, f.get("unknown"), f.find(["unknown"])
            np.asarray(f.vectors)
            f.vectors[-1], f.vectors[:3], f.vectors.take([0, 2])
            f.verify()
    except embmap.EmbmapError as error:
        print(type(error).__name__)
"""


def rows_of_nothing(n_rows, exponent=None):
    """A storage of rows without columns; with an exponent, behind a vocabulary that needs them."""
    storage = struct.pack("<IQQII4x", 2, 20, n_rows, 0, 10)
    if exponent is None:
        return struct.pack("<4sIII", b"FiFu", 0, 1, 2) + storage
    words = struct.pack("<IQQIIII1s", 3, 25, 1, 3, 6, exponent, 1, b"a")
    return struct.pack("<4sIIII", b"FiFu", 0, 2, 3, 2) + words + storage


def test_any_number_of_rows_without_columns_is_answered_at_once(tmp_path):
    made = {f"{n:#x} rows": rows_of_nothing(n) for n in ROWS_OF_NOTHING}
    for exponent in (31, 40, 62, 63):
        made[f"2**{exponent} buckets"] = rows_of_nothing(1 + 2**exponent, exponent)
    paths = [tmp_path / name for name in made]
    for path, data in zip(paths, made.values(), strict=True):
        path.write_bytes(data)
    # In a process of its own, because it might never end.
    command = [sys.executable, "-c", READ_EVERYTHING, *map(str, paths)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as never:
        pytest.fail(f"never ended: {never.stdout.decode().splitlines()[-1]}")
    assert done.stderr == ""
    assert done.returncode == 0


# ------------------------------------------------------------------------------- chunks and header


STATED_LENGTHS = ["simple", "explicit, wrong length", "floret", "pq norms", "v0 explicit"]
STATED_LENGTHS += ["draft pq", "unknown chunk", "bare bucket"]


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", STATED_LENGTHS)
def test_any_stated_length_of_a_chunk_is_refused_or_harmless(tmp_path, name):
    data = SMALL[name]
    damaged = Damaged(tmp_path / "file.fifu", data)
    for _, offset in chunks_of(data):
        for stated in range(len(data) - offset + 8):
            damaged.replaced(
                f"length {stated} at {offset}", with_field(data, offset + 4, 8, stated)
            )
    damaged.check()


@each_small_file
def test_a_chunk_that_comes_twice_is_refused(tmp_path, backend, name):
    data = SMALL[name]
    if name == "explicit, wrong length":
        data = SMALL["explicit"]
    offsets = [offset for _, offset in chunks_of(data)]
    for (id, offset), end in zip(chunks_of(data), [*offsets[1:], len(data)], strict=True):
        path = tmp_path / "file.fifu"
        path.write_bytes(data + data[offset:end])
        if id == 77:  # of a kind that nobody knows
            embmap.open(path, backend=backend).close()
        else:
            with pytest.raises(embmap.FormatError):
                embmap.open(path, backend=backend)


@each_small_file
def test_chunks_in_another_order_are_refused_or_read_as_the_reference_reads_them(tmp_path, name):
    data = SMALL[name]
    if name == "explicit, wrong length":
        data = SMALL["explicit"]
    offsets = [offset for _, offset in chunks_of(data)]
    head, *chunks = [data[start:end] for start, end in itertools.pairwise([0, *offsets, len(data)])]
    damaged = Damaged(tmp_path / "file.fifu", data)
    for order in itertools.permutations(range(len(chunks))):
        moved = head + b"".join(chunks[i] for i in order)
        # Padding goes by position, so what moved may not be what it was: the decoder decides.
        damaged.original = moved
        damaged.replaced(f"order {order}", moved)
    damaged.check()


@pytest.mark.parametrize("name", ["simple", "unlisted norms", "bucket", "pq", "v0 explicit"])
def test_the_list_of_chunks_in_the_header_is_only_a_hint(tmp_path, backend, name):
    data = SMALL[name]
    (n_listed,) = struct.unpack_from("<I", data, 8)
    body = data[12 + 4 * n_listed :]
    n_chunks = len(list(chunks_of(data)))
    damaged = Damaged(tmp_path / "file.fifu", data)
    for n in range(1, n_chunks + 1):
        for ids in ([0] * n, [6] * n, [2**32 - 1] * n, list(range(n, 0, -1))):
            lying = struct.pack(f"<4sII{n}I", b"FiFu", 0, n, *ids) + body
            damaged.replaced(f"ids {ids}", lying, backend)
            with embmap.open(damaged.path, backend=backend) as f:
                assert f.verify().ok
    damaged.check()


@pytest.mark.parametrize("name", ["simple", "unlisted norms", "bucket", "pq", "v0 explicit"])
def test_a_header_that_lists_more_than_there_is_is_refused(tmp_path, backend, name):
    data = SMALL[name]
    (n_listed,) = struct.unpack_from("<I", data, 8)
    body = data[12 + 4 * n_listed :]
    path = tmp_path / "file.fifu"
    for n in (len(list(chunks_of(data))) + 1, 1000):
        path.write_bytes(struct.pack(f"<4sII{n}I", b"FiFu", 0, n, *[1] * n) + body)
        with pytest.raises(embmap.TruncatedError):
            embmap.open(path, backend=backend)
    path.write_bytes(struct.pack("<4sII", b"FiFu", 0, 0))
    with pytest.raises(embmap.FormatError):
        embmap.open(path, backend=backend)
    path.write_bytes(with_field(data, 4, 4, 1))
    with pytest.raises(embmap.UnsupportedError, match="version"):
        embmap.open(path, backend=backend)


@pytest.mark.usefixtures("little_memory")
def test_a_long_word_and_n_grams_of_any_length_take_no_memory(tmp_path):
    path = tmp_path / "file.fifu"
    path.write_bytes(reference.encode(content("explicit", max_n=2**32 - 1)))
    with embmap.open(path) as f:
        assert "x" * 3000 not in f
        with contextlib.suppress(ValueError):  # 4.5 million n-grams, 1000 letters each
            f.get("x" * 3000)


# ------------------------------------------------------------------------------------ hostile words


def file_of_words(path, words):
    """Write words given as bytes, each with a row that holds its number."""
    strings = b"".join(struct.pack("<I", len(word)) + word for word in words)
    vocabulary = struct.pack("<IQQ", 1, 8 + len(strings), len(words)) + strings
    rows = np.arange(len(words), dtype="<f4").tobytes()
    storage = struct.pack("<IQQII", 2, 16 + 4 + len(rows), len(words), 1, 10) + bytes(4) + rows
    head = struct.pack("<4sIIII", b"FiFu", 0, 2, 1, 2)
    path.write_bytes(head + vocabulary + storage)
    return path


NOT_UTF8 = [b"\xff", b"ab\x80", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"]


@pytest.mark.parametrize("wrong", NOT_UTF8, ids=repr)
@pytest.mark.parametrize("n_words", [3, 40_000], ids=["few words", "many words"])
def test_a_word_that_is_not_utf8_hurts_no_other(tmp_path, backend, wrong, n_words):
    words = [b"word %d" % row for row in range(n_words)]
    words[1] = wrong
    path = file_of_words(tmp_path / "file.fifu", words)
    with embmap.open(path, backend=backend) as f:
        last = f"word {n_words - 1}"
        assert f[last].tolist() == [n_words - 1]
        assert f.find([last, "word 0", "word 1", "nor this", "nor that"]).tolist() == [
            n_words - 1,
            0,
            -1,
            -1,
            -1,
        ]
        for damaged in (wrong.decode("utf-8", "replace"), wrong.decode("utf-8", "surrogateescape")):
            assert damaged not in f
            assert f.get(damaged) is None
        assert f.vectors[1].tolist() == [1]
        assert f.vocab[0] == "word 0"
        assert f.vocab[2:3] == ["word 2"]
        for read in (lambda: f.vocab[1], lambda: list(f.vocab), lambda: f.vocab[:2]):
            with pytest.raises(embmap.FormatError, match="not UTF-8") as caught:
                read()
            assert caught.value.field == "word 1"
            at = path.read_bytes().index(b"word 0") + len(b"word 0") + 4
            assert at <= caught.value.offset < at + len(wrong)
        report = f.verify()
        assert not report.ok
        assert [problem for problem in report.problems if "UTF-8" in problem.message]


@pytest.mark.parametrize("indexed", [False, True])
def test_words_of_a_megabyte_and_of_nul_are_found(tmp_path, backend, indexed):
    words = [b"a", b"x" * 2**20, b"\0" * 2**20, b"\0", b"", b"\0\0\0\0", "ü".encode() * 2**19, b"z"]
    path = file_of_words(tmp_path / "file.fifu", words)
    with embmap.open(path, backend=backend) as f:
        if indexed:
            f.build_index()
        assert f.verify().ok
    texts = [word.decode() for word in words]
    absent = ["x" * (2**20 - 1), "x" * (2**20 + 1), "\0\0", "\0" * (2**20 + 1), "y" * 2**22]
    with embmap.open(path, backend=backend, index="require" if indexed else "memory") as f:
        assert list(f.vocab) == texts
        assert [f[word].tolist() for word in texts] == [[row] for row in range(len(words))]
        assert f.find(texts).tolist() == list(range(len(words)))
        assert f.find(absent).tolist() == [-1] * len(absent)
        assert not any(word in f for word in absent)


@pytest.mark.parametrize("n_words", [5, 300, 40_000])
def test_a_broken_chain_of_lengths_is_found_wherever_it_breaks(tmp_path, backend, n_words):
    words = [b"word %d" % row for row in range(n_words)]
    path = file_of_words(tmp_path / "file.fifu", words)
    data = path.read_bytes()
    for row in {0, 1, n_words // 2, n_words - 1}:
        at = 40 + sum(4 + len(word) for word in words[:row])
        for length in (0, 3, len(words[row]) + 1, 255, 256, 2**31, 2**32 - 1):
            path.write_bytes(with_field(data, at, 4, length))
            with embmap.open(path, backend=backend) as f:
                for read in (lambda: list(f.vocab), lambda: f.find(["a", "b"]), lambda: f["a"]):
                    with pytest.raises(embmap.FormatError):
                        read()
                assert not f.verify().ok
                assert f.vectors[n_words - 1].tolist() == [n_words - 1]


@pytest.mark.parametrize("name", ["simple", "bucket", "explicit", "bare explicit", "v0 bucket"])
def test_verify_reports_broken_words_and_does_not_raise(tmp_path, backend, name):
    data = SMALL[name]
    path = tmp_path / "file.fifu"
    path.write_bytes(with_field(data, data.index(b"\2\0\0\0ab"), 4, 200))
    with embmap.open(path, backend=backend) as f:
        report = f.verify()
        assert not report.ok
        assert report.problems[0].offset is not None


def test_verify_reports_broken_n_grams_and_does_not_raise(tmp_path, backend):
    data = SMALL["explicit"]
    path = tmp_path / "file.fifu"
    path.write_bytes(with_field(data, data.index(b"\1\0\0\0<"), 4, 200))
    with embmap.open(path, backend=backend) as f:
        assert not f.verify().ok
        assert list(f.vocab) == WORDS
        with pytest.raises(embmap.FormatError):
            f["absent"]


@pytest.mark.parametrize("wrong", [b"\xff\xff\xff", b"a = ", b"a = 1\na = 2"])
def test_metadata_that_cannot_be_read_hurt_nothing_else(tmp_path, backend, wrong):
    made = content(metadata=True)
    made.metadata = "x" * len(wrong)
    data = reference.encode(made)
    path = tmp_path / "file.fifu"
    path.write_bytes(data.replace(b"x" * len(wrong), wrong))
    with embmap.open(path, backend=backend) as f:
        with pytest.raises(embmap.FormatError, match=r"TOML|UTF-8"):
            f.metadata  # noqa: B018
        assert list(f.vocab) == WORDS
        assert f["c"].tobytes() == made.matrix[1].tobytes()
        assert not f.verify().ok


@pytest.mark.parametrize("storage", ["pq", "pq projection norms"])
def test_a_code_without_a_centroid_hurts_its_row_alone(tmp_path, backend, storage):
    made = content(storage=storage, norms=False)
    data = reference.encode(made)
    expected = reference.decode(data).matrix
    path = tmp_path / "file.fifu"
    path.write_bytes(data[:-1] + b"\3")  # of the last row; there are centroids 0 to 2
    with embmap.open(path, backend=backend) as f:
        np.testing.assert_allclose(f.batch(WORDS[:2]), expected[:2], rtol=1e-6)
        for read in (
            lambda: f[WORDS[2]],
            lambda: f.batch(WORDS),
            lambda: f.vectors[2],
            lambda: np.asarray(f.vectors),
            lambda: f.vectors.take([2]),
        ):
            with pytest.raises(embmap.FormatError, match="centroids"):
                read()
        assert not f.verify().ok


# ----------------------------------------------------------------------------------- other files


def test_an_empty_file_is_refused(tmp_path, backend):
    path = tmp_path / "empty.fifu"
    path.touch()
    with pytest.raises(embmap.FormatError, match="empty"):
        embmap.open(path, backend=backend)
    with pytest.raises(embmap.FormatError):
        embmap.open(path, backend=backend, format="finalfusion")


@pytest.mark.parametrize("layout", [None, "reference", "v0", "draft", "bare"])
@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"FiFu",
        b"FiFu\0\0\0",
        b"the quick brown fox\njumps over the lazy dog\n" * 9,
        b"7 10\none 3 1 0 0 0 0 2 2 4 3\n",
        bytes(100),
        b"\xff" * 100,
        b"\x01" + bytes(11),
        b"\x01" + bytes(99),
        b"fifu" + bytes(100),
    ],
)
def test_what_is_no_finalfusion_file_is_refused(tmp_path, backend, data, layout):
    path = tmp_path / "text.fifu"
    path.write_bytes(data)
    for format in (None, "finalfusion"):
        with pytest.raises(embmap.FormatError) as caught:
            embmap.open(path, backend=backend, format=format, layout=layout)
        assert caught.value.path == str(path)


def test_a_folder_is_refused(tmp_path, backend):
    with pytest.raises(IsADirectoryError, match="folder"):
        embmap.open(tmp_path, backend=backend)


def test_a_missing_file_is_missing(tmp_path, backend):
    with pytest.raises(FileNotFoundError):
        embmap.open(tmp_path / "missing.fifu", backend=backend)
    with pytest.raises(FileNotFoundError):
        embmap.open(tmp_path / "no folder" / "missing.fifu", backend=backend)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to this user"
)
def test_a_file_without_permission_is_refused(tmp_path, backend):
    path = tmp_path / "secret.fifu"
    path.write_bytes(SMALL["simple"])
    path.chmod(0)
    with pytest.raises(PermissionError):
        embmap.open(path, backend=backend)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, backend):
    path = tmp_path / "pipe.fifu"
    os.mkfifo(path)
    with pytest.raises(embmap.UnsupportedError, match="regular"):
        embmap.open(path, backend=backend)
