"""Read leases: nobody shrinks a file between begin and end, and nobody waits longer than that."""

import gc
import os
import signal
import subprocess
import sys
import threading

import pytest

from embmap.errors import UnsupportedError
from embmap.io import leases

HANGS = 30  # seconds; the system itself takes a lease away after 45

TRUNCATE = "import os, sys; os.truncate(sys.argv[1], 10)"
OPEN_FOR_WRITING = "import sys; open(sys.argv[1], 'r+b').close()"


@pytest.fixture
def leased(tmp_path, monkeypatch):
    """A lease on a file, the path of the file, and a list that holds whether it is unchanged."""
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(10_000))
    descriptor = os.open(path, os.O_RDONLY)
    unchanged = [True]
    monkeypatch.setattr(leases, "_REFUSED_FOR", 0.0)
    try:
        lease = leases.Lease([descriptor], lambda: unchanged[0])
        if not lease.begin():
            pytest.skip("the system gives no lease here")
        lease.end()
        yield lease, path, unchanged
    except UnsupportedError as error:
        pytest.skip(str(error))
    finally:
        os.close(descriptor)


@pytest.fixture
def asked(leased):
    """An event that is set when somebody asks for a lease; nothing gives it back by itself."""
    event = threading.Event()
    before = signal.signal(leases.SIGNAL, lambda *_: event.set())
    yield event
    signal.signal(leases.SIGNAL, before)


def start(program, path):
    return subprocess.Popen([sys.executable, "-c", program, str(path)])


@pytest.mark.parametrize("program", [TRUNCATE, OPEN_FOR_WRITING])
@pytest.mark.parametrize("in_thread", [False, True])
def test_others_wait_until_the_reader_is_out(leased, asked, program, in_thread):
    lease, path, _ = leased
    descriptor = os.open(path, os.O_RDONLY)
    if in_thread:  # which ends before the signal comes
        lease.close()
        lease = leases.Lease([descriptor], lambda: True)
        thread = threading.Thread(target=lambda: lease.begin() and lease.end())
        thread.start()
        thread.join()
    assert lease.begin()
    with start(program, path) as process:
        assert asked.wait(HANGS)
        lease.give_back()  # somebody still reads
        assert process.poll() is None
        assert path.stat().st_size == 10_000
        assert not lease.begin()  # nobody begins any longer
        lease.end()
        assert process.wait(HANGS) == 0
    os.close(descriptor)


def test_a_lease_that_nobody_uses_is_given_back_at_once(leased, asked):
    lease, path, _ = leased
    with start(TRUNCATE, path) as process:
        assert asked.wait(HANGS)
        lease.give_back()
        assert process.wait(HANGS) == 0


def test_a_lease_is_taken_again_if_the_file_is_as_it_was(leased, asked):
    lease, path, unchanged = leased
    for is_unchanged in (True, True, False):
        unchanged[0] = is_unchanged
        with start(OPEN_FOR_WRITING, path) as process:
            assert asked.wait(HANGS)
            lease.give_back()
            assert process.wait(HANGS) == 0
        asked.clear()
        with open(path, "r+b"):
            assert not lease.begin()
        assert lease.begin() == is_unchanged
        if is_unchanged:
            lease.end()
    unchanged[0] = True
    assert not lease.begin()  # the pages that were mapped may be gone


def test_a_closed_lease_is_not_taken_again(leased):
    lease, path, _ = leased
    assert lease.begin()
    lease.close()  # at the end of the reader
    assert not lease.begin()
    lease.end()
    with open(path, "r+b"):  # would wait for a lease that is held
        pass
    assert not lease.begin()


def test_a_lease_ends_with_its_file(leased):
    lease, path, _ = leased
    descriptor = os.open(path, os.O_RDONLY)
    other = leases.Lease([descriptor], lambda: True)
    lease.close()
    assert other.begin()
    os.close(descriptor)
    del other
    gc.collect()
    with open(path, "r+b"):
        pass


def test_file_systems_that_others_write_to_have_no_leases(tmp_path, monkeypatch):
    path = tmp_path / "data.bin"
    path.write_bytes(b"abc")
    with open(path, "rb") as file:
        monkeypatch.setattr(leases, "_LOCAL", set())
        with pytest.raises(UnsupportedError):
            leases.Lease([file.fileno()], lambda: True)
    with open("/dev/null", "rb") as pipe:
        monkeypatch.undo()
        lease = None
        try:
            lease = leases.Lease([pipe.fileno()], lambda: True)
        except UnsupportedError:
            return
        assert not lease.begin()
