"""Searches and look-ups from many threads, in forked children and under interrupts."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import embmap
from embmap.finalfusion import Quantized

pytestmark = pytest.mark.slow

GENEROUS = 60  # seconds; what takes longer hangs
RNG = np.random.default_rng(5)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture
def path(tmp_path):
    rows = RNG.standard_normal((6000, 200)).astype("f4")
    return embmap.finalfusion.write(tmp_path / "a.fifu", [f"w{i}" for i in range(6000)], rows)


def output_of(script, *arguments, **environment):
    """What a script prints that neither it nor a child of its may hang."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments), str(GENEROUS)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"} | environment,
        capture_output=True,
        text=True,
        timeout=2 * GENEROUS,
    )
    assert not found.returncode, found.stderr
    return found.stdout


SEARCHING = """
import os, signal, sys, threading
import embmap

with embmap.open(sys.argv[1]) as file:
    queries = file.vectors[: int(sys.argv[2])]
    expected = file.most_similar(queries)
    done = threading.Event()

    def search():
        while not done.is_set():
            file.most_similar(queries)

    threads = [threading.Thread(target=search, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    n_well = 0
    for _ in range(20):
        child = os.fork()
        if not child:
            signal.alarm(int(sys.argv[3]))  # ends it if it hangs
            os._exit(file.most_similar(queries) != expected)
        n_well += os.waitpid(child, 0)[1] == 0
    done.set()
    for thread in threads:
        thread.join()
    print(n_well)
"""


@forks
@pytest.mark.parametrize("m", [1, 16])
def test_children_forked_while_threads_search_search_too(path, m):
    assert output_of(SEARCHING, path, m) == "20\n"


TASKS = """
import os, sys, threading
import numpy as np
import embmap

def n_tasks():
    return len(os.listdir("/proc/self/task"))

os.fork() or os._exit(0)  # BLAS ends its threads to fork, and starts them for large products
os.wait()
before = n_tasks()
most = []
done = threading.Event()

def watch():
    while not done.wait(0.0005):  # threads that BLAS starts do not end
        most.append(n_tasks())

with embmap.open(sys.argv[1]) as file:
    watcher = threading.Thread(target=watch)
    watcher.start()
    for m in (1, 3, 16):
        for _ in range(5):
            file.most_similar(file.vectors[:m])
    done.set()
    watcher.join()
print(before, max(most))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="Linux lists threads there")
@pytest.mark.parametrize("shape", [(6000, 200), (60, 20_000)])
def test_a_search_starts_no_threads_but_ours(tmp_path, shape):
    names = [f"w{i}" for i in range(shape[0])]
    rows = RNG.standard_normal(shape).astype("f4")
    path = embmap.finalfusion.write(tmp_path / "a.fifu", names, rows)
    found = output_of(TASKS, path, EMBMAP_THREADS="1", OPENBLAS_NUM_THREADS="4")
    before, most = map(int, found.split())
    assert most == before + 1  # the one that counts


class Interrupted(BaseException):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signals")
def test_an_interrupt_leaves_no_lock_behind(path):
    words = [f"w{i}" for i in range(5)]

    def interrupt(*_):
        raise Interrupted

    with embmap.open(path) as file:
        expected = file.find(words).tolist()
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for i in range(2000):
                try:
                    signal.setitimer(signal.ITIMER_REAL, (20 + i % 50) * 1e-6)
                    for _ in range(100_000):
                        file.find(words)
                except Interrupted:
                    pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        found = []
        other = threading.Thread(target=lambda: found.extend(file.find(words)), daemon=True)
        other.start()
        other.join(GENEROUS)
        assert found == expected


IMPORTING = """
import os, signal, sys, threading
import embmap

with embmap.open(sys.argv[1]) as file:
    thread = threading.Thread(target=file.most_similar, args=("w0",))
    thread.start()
    while "numba" not in sys.modules:
        pass
    child = os.fork()
    if not child:
        signal.alarm(int(sys.argv[2]))  # ends it if it hangs
        file.most_similar("w1")
        os._exit(0)
    thread.join()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@forks
def test_a_child_forked_while_a_thread_imports_numba_goes_on(tmp_path):
    pytest.importorskip("numba")
    codes = RNG.integers(0, 4, (50, 2), np.uint8)
    quantized = Quantized(codes, RNG.standard_normal((2, 4, 3)).astype("f4"), None, None)
    words = [f"w{i}" for i in range(50)]
    path = embmap.finalfusion.write(tmp_path / "q.fifu", words, None, quantized=quantized)
    assert output_of(IMPORTING, path, EMBMAP_KERNELS="numba") == "0\n"
