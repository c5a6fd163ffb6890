"""Files that replace others: the old ones or the whole new ones, wherever the process is killed."""

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import embmap

pytestmark = pytest.mark.slow

KILLS = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is killed by halves here")
UNIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes and links")
FORMATS = ("npy", "safetensors", "cvc", "dwe")
N = 40
OLD_WORDS = [f"old{i:060}" for i in range(N)]  # more bytes than the vectors
NEW_WORDS = [f"new{i:060}" for i in range(N)]
OLD = np.arange(N * 2, dtype=np.float32).reshape(N, 2) % 97
NEW = OLD[::-1].copy()
SIDES = {"old": (OLD_WORDS, OLD), "new": (NEW_WORDS, NEW)}


def convert(folder, side, format, words=True):
    """Put vectors of one side, with or without their words, where the other's may be."""
    source, target = folder.parent / f"{side}.npy", folder / f"out.{format}"
    listed, vectors = SIDES[side]
    if not source.exists():
        np.save(source, vectors)
    vocab = listed if words else None
    inputs = [source, source] if format == "dwe" else source
    return embmap.convert(inputs, target, vocab=vocab)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let nothing wait for the disk; no test takes its power away."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def prepare(folder, format, before):
    """Old vectors, with words of embmap, with words that somebody wrote, or without any."""
    folder.mkdir(parents=True)
    if before == "nothing":
        return
    convert(folder, "old", format, words=before == "words")
    if before == "words by hand":
        (folder / f"out.{format}.words.txt").write_text("\n".join(OLD_WORDS) + "\n")


def found(folder, format):
    """What a conversion takes from a folder: "old", "new", either with words, or why nothing."""
    path = folder / f"out.{format}"
    if not path.exists():
        return "nothing"
    options = {"timestep": 0} if format == "dwe" else {}
    try:
        report = embmap.convert(path, folder.parent / "back.npy", **options)
    except embmap.ChecksumError:
        return "refused"
    vectors = np.load(report.path)
    words = None
    if report.words_path is not None:
        words = report.words_path.read_text("utf-8").split()
    for side, (listed, rows) in SIDES.items():
        if vectors.shape == rows.shape and np.abs(vectors - rows).max() < 0.5:
            return side if words is None else f"{side} words" if words == listed else "mixed"
    return "mixed"


def start(*arguments):
    """Call a function of this file in a process of its own."""
    root = Path(embmap.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-W", "ignore", __file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def killed(step, *arguments):
    """Replace the files in a process that is killed at a step; whether it was."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -signal.SIGKILL)
        return status != 0
    steps = itertools.count()

    def killing(function):
        def call(*arguments, **options):
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    os.fsync = abs  # the memory of the system outlives the process
    for name in ("replace", "rename", "link", "unlink", "fsync"):
        setattr(os, name, killing(getattr(os, name)))
    status = 1
    try:
        convert(*arguments)
        status = 0
    finally:
        os._exit(status)


def kill_at_every_step(folder, format):
    """Replace copies of files in processes that are killed at later and later steps."""
    for before, after in itertools.product(BEFORE, AFTER):
        case = folder / f"{before}, {after}"
        prepare(case / "files", format, before)
        for step in itertools.count():
            place = case / str(step)
            shutil.copytree(case / "files", place)
            if not killed(step, place, "new", format, after == "words"):
                break


BEFORE = ("words", "words by hand", "none", "nothing")
AFTER = ("words", "none")
STATES = {"words": "new words", "none": "new"}


@KILLS
@pytest.mark.parametrize("format", FORMATS)
def test_killed_at_any_step_vectors_never_get_words_of_others(tmp_path, format):
    done = start("kill_at_every_step", tmp_path, format)
    assert done.returncode == 0, done.stderr
    for before, after in itertools.product(BEFORE, AFTER):
        case = tmp_path / f"{before}, {after}"
        places = sorted((int(place.name), place) for place in case.glob("[0-9]*"))
        states = [found(place, format) for _, place in places]
        old = {"none": "old", "nothing": "nothing"}.get(before, "old words")
        assert set(states) <= {old, "refused", STATES[after]}, (before, after, states)
        assert states[0] == old
        assert states[-1] == STATES[after]


@KILLS
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("format", FORMATS)
def test_where_there_is_no_room_the_old_files_stay(tmp_path, format, after):
    import resource

    place = tmp_path / "files"
    prepare(place, format, "words")
    np.save(tmp_path / "new.npy", NEW)  # where nothing can be written, it cannot
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Either the words are too large, or the vectors, or the digests of both.
    for limit in (0, 1, *sorted(len(data) - 1 for data in before.values()), 10**6):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
        try:
            convert(place, "new", format, after == "words")
        except OSError as error:
            outcome = error.errno
        else:
            outcome = None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        if outcome is None:
            break
        assert outcome == errno.EFBIG
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        assert found(place, format) == "old words"
    assert limit > 1
    assert found(place, format) == STATES[after]


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="temporary files have names here")
@pytest.mark.parametrize("format", FORMATS)
def test_where_there_is_no_room_for_names_the_old_files_stay(tmp_path, monkeypatch, format):
    """A folder has to grow for the names of files that had none while they were written."""
    link = os.link
    room = float("inf")

    def full(*arguments, **options):
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return link(*arguments, **options)

    monkeypatch.setattr(os, "link", full)
    seen = set()
    for n in itertools.count():
        folder = tmp_path / str(n) / "out"
        prepare(folder, format, "words")
        room = n
        try:
            convert(folder, "new", format)
            refused = None
        except OSError as error:
            refused = error.errno
        left, room = room, float("inf")
        # Where there was no room to try, a file has a name from the beginning.
        seen.add((refused, found(folder, format)))
        if left >= 0:
            break
    assert seen == {(None, "new words"), (errno.ENOSPC, "old words")}


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="temporary files have names here")
def test_an_interrupt_leaves_no_temporary_file_that_has_just_got_its_name(tmp_path, monkeypatch):
    place = tmp_path / "files"
    prepare(place, "npy", "words")
    before = set(os.listdir(place))
    link, left = os.link, 0

    def interrupted(*arguments, **options):
        nonlocal left
        link(*arguments, **options)
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupted)
    n_interrupts = 0
    while left < 0 or not n_interrupts:
        left = n_interrupts
        try:
            convert(place, "new", "npy")
        except KeyboardInterrupt:
            n_interrupts += 1
        assert set(os.listdir(place)) == before
    assert n_interrupts > 3


@pytest.mark.parametrize("format", FORMATS)
def test_a_conversion_without_words_leaves_no_words_of_others(tmp_path, format):
    place = tmp_path / "files"
    prepare(place, format, "words")
    assert convert(place, "new", format, words=False).words_path is None
    assert [path.name for path in place.iterdir()] == [f"out.{format}"]
    assert found(place, format) == "new"


def test_tokens_without_words_leave_no_words_of_others(tmp_path):
    np.save(tmp_path / "a.npy", OLD)
    (tmp_path / "out.weights.words.txt").write_text("\n".join(OLD_WORDS))
    embmap.convert(tmp_path / "a.npy", tmp_path / "out.weights")
    assert embmap.convert(tmp_path / "out.weights", tmp_path / "b.npy").words_path is None


@pytest.mark.parametrize("format", FORMATS)
def test_words_that_were_written_with_other_vectors_are_refused(tmp_path, format):
    place, other = tmp_path / "files", tmp_path / "other"
    prepare(place, format, "words")
    assert found(place, format) == "old words"
    other.mkdir()
    convert(other, "new", format)
    words = place / f"out.{format}.words.txt"
    for name in (f"out.{format}", f"out.{format}.words.txt"):
        kept = (place / name).read_bytes()
        (place / name).write_bytes((other / name).read_bytes())
        options = {"timestep": 0} if format == "dwe" else {}
        with pytest.raises(embmap.ChecksumError, match=r"delete out\.\w+\.words\.json"):
            embmap.convert(place / f"out.{format}", tmp_path / "b.txt", **options)
        if format in ("cvc", "dwe"):
            with pytest.raises(embmap.ChecksumError):
                embmap.open(place / f"out.{format}", vocab=words)
            # Words of another name are those that the caller wants.
            elsewhere = tmp_path / "words.txt"
            elsewhere.write_bytes(words.read_bytes())
            with embmap.open(place / f"out.{format}", vocab=elsewhere) as file:
                assert len(file.vocab) == N
        (place / name).write_bytes(kept)
    words.unlink()
    assert found(place, format) == "refused"
    words.write_text("\n".join(NEW_WORDS))
    assert found(place, format) == "refused"
    (place / f"out.{format}.words.json").unlink()
    assert found(place, format) == "mixed"  # somebody says that they belong together
    words.unlink()
    assert found(place, format) == "old"


def test_large_vectors_are_told_apart_by_samples(tmp_path):
    rows = np.zeros((100_000, 4), np.float32)
    np.save(tmp_path / "a.npy", rows)
    words = [f"w{i}" for i in range(len(rows))]
    out = tmp_path / "out.npy"
    embmap.convert(tmp_path / "a.npy", out, vocab=words)
    assert embmap.convert(out, tmp_path / "b.npy").n_words == len(rows)
    rows[50_000:51_000] = 1  # as many bytes as lie between the starts of two samples
    np.save(out, rows)
    with pytest.raises(embmap.ChecksumError):
        embmap.convert(out, tmp_path / "b.npy")


def kill_while_writing(folder):
    """Be killed when the file is about half written."""

    def progress(what, done, total):
        if done:
            os.kill(os.getpid(), signal.SIGKILL)

    np.save(Path(folder).parent / "a.npy", OLD)
    embmap.convert(
        Path(folder).parent / "a.npy", Path(folder) / "out.npy", vocab=OLD_WORDS, progress=progress
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="every file has a name here")
def test_a_process_that_is_killed_leaves_no_temporary_file(tmp_path):
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        pytest.skip("every file has a name on this file system")
    place = tmp_path / "files"
    place.mkdir()
    assert start("kill_while_writing", place).returncode == -signal.SIGKILL
    assert list(place.iterdir()) == []


@pytest.fixture(params=["nameless", "named"])
def temporaries(request, monkeypatch):
    """Temporary files as Linux has them, and as other systems do."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


@UNIX
def test_what_replaces_a_private_file_is_private(tmp_path, temporaries):
    path = tmp_path / "private"
    path.touch()
    path.chmod(0o600)
    modes = []

    def words():
        for i in range(N):
            modes.extend(each.stat().st_mode & 0o777 for each in tmp_path.iterdir())
            yield f"w{i}"

    embmap.finalfusion.write(path, words(), OLD)
    assert set(modes) == {0o600}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["private"]
    path.chmod(0o444)
    assert embmap.finalfusion.write(path, OLD_WORDS, OLD).stat().st_mode & 0o777 == 0o444


@UNIX
def test_pairs_are_written_through_links(tmp_path, temporaries):
    real, place = tmp_path / "real", tmp_path / "files"
    prepare(place, "npy", "nothing")
    real.touch()
    (place / "out.npy").symlink_to(real)
    convert(place, "old", "npy")
    convert(place, "new", "npy")
    assert (place / "out.npy").is_symlink()
    assert np.load(real).tolist() == NEW.tolist()
    assert found(place, "npy") == "new words"


@UNIX
def test_a_loop_of_links_is_no_target(tmp_path):
    (tmp_path / "a.npy").symlink_to("b.npy")
    (tmp_path / "b.npy").symlink_to("a.npy")
    np.save(tmp_path / "c.npy", OLD)
    for write in (
        lambda path: embmap.finalfusion.write(path, OLD_WORDS, OLD),
        lambda path: embmap.dwe.write(path, iter([np.ones((2, 2), "i2")] * 2), scale=1),
        lambda path: embmap.convert(tmp_path / "c.npy", path),
    ):
        with pytest.raises(OSError, match=r"a\.npy") as caught:
            write(tmp_path / "a.npy")
        assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "a.npy").is_symlink()


def terminated(folder, nameless):
    """Run a command that gets SIGTERM when its output is written and not yet in place."""
    from embmap.cli import run

    if nameless != "nameless":
        vars(os).pop("O_TMPFILE", None)
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGTERM)
    np.save(folder.parent / "new.npy", NEW)
    os._exit(run(["convert", str(folder.parent / "new.npy"), str(folder / "out.npy")]))


@UNIX
@pytest.mark.parametrize("nameless", ["nameless", "named"])
def test_a_command_that_gets_sigterm_cleans_up(tmp_path, nameless):
    pytest.importorskip("typer", reason="typer is not installed")
    place = tmp_path / "files"
    prepare(place, "npy", "words")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    done = start("terminated", place, nameless)
    assert (done.returncode, done.stderr) == (143, "embmap: terminated\n")
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
