"""Reads from a finalfusion file that shrinks while it is open raise; they neither kill nor lie."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import embmap
from tests.judges.finalfusion import (
    content,
)
from tests.reference import finalfusion as reference

try:
    import resource
except ImportError:  # Windows
    resource = None

pytestmark = pytest.mark.slow


# ------------------------------------------------------------------- files that shrink while open

ROOT = Path(__file__).resolve().parents[3]
N_SHRINKING = 3000
SHRINKING = [f"word {row}" for row in range(N_SHRINKING)]
ABSENT = [f"absent {row}" for row in range(9)]


def raise_problem(f):
    """Verify a file; that it shrank may be raised or reported."""
    problem = f.verify().problems[0].message
    if "shrank" in problem:
        raise embmap.TruncatedError(problem)


SHRUNK_READS = {
    "batch": lambda f: f.batch(SHRINKING),
    "batch with unknown words": lambda f: f.batch([*SHRINKING[-9:], *ABSENT]),
    "take": lambda f: f.vectors.take([0, N_SHRINKING - 1]),
    "slice": lambda f: f.vectors[1000:],
    "asarray": lambda f: np.asarray(f.vectors).sum(),
    "blocks": lambda f: [block.sum() for _, block in f.vectors.blocks()],
    "find": lambda f: f.find(SHRINKING),
    "find a few": lambda f: f.find(SHRINKING[-2:]),
    "unknown word": lambda f: f["absent"],
    "words": lambda f: list(f.vocab),
    "norms": lambda f: f.norms.sum(),
    "metadata": lambda f: f.metadata,
    "verify": raise_problem,
    "build_index": lambda f: f.build_index(),
}
WARM = [False, True]


def shrinking_file(path, storage):
    """Write a file that spans many pages, metadata and words included."""
    made = content("bucket", storage, words=SHRINKING)
    made.metadata = "".join(f'key{i} = "{"x" * 80}"\n' for i in range(150))
    path.write_bytes(reference.encode(made))
    return path


def shrink(path, backend, warm, nbytes):
    """Open a file, let it shrink, and return it still open."""
    f = embmap.open(path, backend=backend, index="memory")
    if warm:
        f.batch([*SHRINKING, *ABSENT])
    os.truncate(path, nbytes)
    return f


@pytest.mark.parametrize("warm", WARM, ids=["first look-up", "later look-up"])
@pytest.mark.parametrize("read", SHRUNK_READS)
@pytest.mark.parametrize("storage", ["ndarray", "pq norms"])
def test_reads_from_a_file_that_shrank_raise(tmp_path, read, storage, warm):
    f = shrink(shrinking_file(tmp_path / "file.fifu", storage), "read", warm, 100)
    with pytest.raises(embmap.TruncatedError, match="shrank"):
        SHRUNK_READS[read](f)


@pytest.mark.parametrize("warm", WARM, ids=["first look-up", "later look-up"])
def test_reads_from_what_is_left_of_a_file_are_right_or_raise(tmp_path, warm):
    path = shrinking_file(tmp_path / "file.fifu", "ndarray")
    rows = reference.decode(path.read_bytes()).matrix
    with embmap.open(path) as f:
        (storage,) = (chunk for chunk in f.chunks if chunk.name == "ndarray")
    f = shrink(path, "read", warm, storage.data_offset + 1000)
    assert f.vectors[5].tolist() == rows[5].tolist()
    with pytest.raises(embmap.TruncatedError):
        f.vectors[N_SHRINKING - 1]
    with pytest.raises(embmap.TruncatedError):
        f.batch(SHRINKING)
    for row, word in ((5, SHRINKING[5]), (N_SHRINKING - 1, SHRINKING[-1])):
        try:
            vector = f[word]
        except embmap.TruncatedError:
            continue
        assert row == 5
        assert vector.tolist() == rows[5].tolist()


SHRUNK_CASES = [
    f"{read}/{storage}/{warm}"
    for read in SHRUNK_READS
    for storage in ("ndarray", "pq norms")
    for warm in WARM
]


def outcome(path, case):
    """Shrink a mapped file, read from it, and say what happened."""
    read, storage, warm = case.split("/")
    f = shrink(shrinking_file(path, storage), "mmap", warm == "True", 100)
    try:
        found = SHRUNK_READS[read](f)
    except Exception as error:
        return type(error).__name__
    return f"answered {str(found)[:60]}"


def outcomes(folder):
    """Print the outcome of every case, each in a child: what touches a lost page is killed."""
    found = {}
    for number, case in enumerate(SHRUNK_CASES):
        path = Path(folder) / f"{number}.fifu"
        child = os.fork()
        if not child:
            path.with_suffix(".txt").write_text(outcome(path, case))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status < 0:
            found[case] = f"killed by {signal.Signals(-status).name}"
        elif status:
            found[case] = f"exit status {status}"
        else:
            found[case] = path.with_suffix(".txt").read_text()
        path.unlink()
    print(json.dumps(found))  # noqa: T201


@pytest.fixture(scope="module")
def shrunk_outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shrunk")
    program = (
        "import sys\n"
        "from tests.formats.finalfusion.test_shrinking import outcomes\n"
        "outcomes(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="mapped files cannot shrink here")
@pytest.mark.parametrize("case", SHRUNK_CASES)
def test_reads_from_a_mapped_file_that_shrank_raise_instead_of_killing(shrunk_outcomes, case):
    assert shrunk_outcomes[case] == "TruncatedError"
