"""When compiled loops replace numpy's, and that loading them harms neither exit nor fork."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from embmap.codecs import kernels
from embmap.codecs.half import decode_half
from tests.kernels import needs_numba

GENEROUS = 60  # seconds; what takes longer hangs
HALVES = np.arange(1 << 16, dtype=np.uint16)
EXAMPLES = HALVES, np.empty(1 << 16, np.uint32)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing is loaded, and nothing has been counted."""
    monkeypatch.setattr(kernels, "CHOICE", "")
    monkeypatch.setattr(kernels, "_seconds", 0.0)
    for name in ("_ready", "_loading"):
        monkeypatch.setattr(kernels, name, {})
    for name in ("_given_up", "_hurried"):
        monkeypatch.setattr(kernels, name, False)


def test_nothing_is_loaded_before_numpy_has_taken_a_while():
    assert kernels.find("decode_half", *EXAMPLES) is None
    assert kernels._loading == {}


def test_only_the_time_in_numpy_counts(monkeypatch):
    monkeypatch.setattr(kernels, "thread_time", iter([1.0, 1.0 + 2**-8, 7.0, 7.0 + 2**-7]).__next__)
    decode_half(HALVES)
    assert kernels._seconds == 2**-8
    decode_half(HALVES)
    assert kernels._seconds == 2**-8 + 2**-7


@needs_numba
def test_a_thread_loads_what_pays_and_numpy_goes_on_meanwhile(monkeypatch):
    held = threading.Event()
    load = kernels._import

    def load_later():
        assert held.wait(GENEROUS)
        return load()

    monkeypatch.setattr(kernels, "_import", load_later)
    monkeypatch.setattr(kernels, "_seconds", kernels._WORTH_LOADING)
    expected = HALVES.view(np.float16).astype(np.float32).view(np.uint32)
    finite = np.isfinite(HALVES.view(np.float16))
    assert np.array_equal(decode_half(HALVES).view(np.uint32)[finite], expected[finite])
    loading = kernels._loading["decode_half"]
    assert kernels._ready == {}
    held.set()
    loading._thread.join(GENEROUS)
    assert list(kernels._ready) == ["decode_half"]
    assert kernels.find("decode_half", *EXAMPLES) is kernels._ready["decode_half"]
    assert len(kernels._ready["decode_half"].signatures) >= 1


@needs_numba
@pytest.mark.parametrize("spent", ["long", "holds the lock", "hurried"])
def test_a_call_waits_if_that_has_paid(monkeypatch, spent):
    monkeypatch.setattr(kernels, "_PATIENCE", GENEROUS)
    seconds = kernels._WORTH_WAITING if spent == "long" else kernels._WORTH_LOADING
    monkeypatch.setattr(kernels, "_seconds", seconds)
    if spent == "hurried":
        kernels.hurry()
    found = kernels.find("decode_half", *EXAMPLES, holds_lock=spent == "holds the lock")
    assert found is not None


@pytest.mark.parametrize("error", [ImportError, OSError("no shared library"), RuntimeError])
def test_numpy_goes_on_if_numba_cannot_be_loaded(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(kernels, "_import", fail)
    monkeypatch.setattr(kernels, "_seconds", kernels._WORTH_WAITING)
    for _ in range(2):
        assert kernels.find("decode_half", *EXAMPLES) is None
    assert kernels._given_up
    assert not any(isinstance(finder, kernels._Loading) for finder in sys.meta_path)


def test_a_system_without_threads_keeps_numpy(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(kernels, "_seconds", kernels._WORTH_WAITING)
    assert kernels.find("decode_half", *EXAMPLES) is None


def test_a_kernel_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "CHOICE", "fortran")
    with pytest.raises(ValueError, match="fortran"):
        kernels.find("decode_half")


def test_insisting_on_numba_without_it_names_the_extra(monkeypatch):
    monkeypatch.setattr(kernels, "CHOICE", "numba")
    monkeypatch.setitem(sys.modules, "embmap.codecs.jit", None)
    monkeypatch.delattr("embmap.codecs.jit", raising=False)
    with pytest.raises(ImportError, match=r"embmap\[jit\]"):
        kernels.find("decode_half")


@needs_numba
def test_kernels_compile_where_no_cache_can_be_written(monkeypatch):
    import numba

    from embmap.codecs import jit_support

    whole = numba.njit

    def refuse(function, *, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return whole(function, **options)

    monkeypatch.setattr(numba, "njit", refuse)
    assert jit_support.compiled(lambda x: x + 1)(2) == 3


# Processes that end, fork or are interrupted while a thread loads

BEGIN = """
import atexit, os, signal, sys, threading, time
import numpy as np
from embmap.codecs import kernels
from embmap.codecs.half import decode_half

halves = np.arange(1 << 16, dtype=np.uint16)

def decode():
    return decode_half(halves).view(np.uint32)

kernels._seconds = kernels._WORTH_LOADING
"""
LOAD = """
expected = decode()  # a thread begins to load
time.sleep(float(sys.argv[1]))
"""
DELAYS = [0, 0.05, 0.2, 0.4]  # seconds: spread over the import


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script, *map(str, arguments)],
        env=os.environ | {"EMBMAP_KERNELS": ""},
        capture_output=True,
        text=True,
        timeout=GENEROUS,
    )


@pytest.mark.slow
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("end", ["", "sys.exit()", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_process_that_ends_while_a_thread_loads_ends_as_otherwise(end, delay):
    found = run(LOAD + end, delay)
    if "kill" in end:
        assert found.stderr.endswith("KeyboardInterrupt\n")
    else:
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


ENDING = """
class Waits:
    def find_spec(self, name, *_):
        if name == "numba":
            threading.main_thread().join()

sys.meta_path.insert(0, Waits())
decode()
atexit.register(lambda: print("numba" in sys.modules, kernels._ready))
"""


@pytest.mark.slow
@needs_numba
def test_the_end_of_the_main_thread_stops_the_import():
    found = run(ENDING)
    assert (found.returncode, found.stdout, found.stderr) == (0, "False {}\n", "")


FORKING = """
import warnings
warnings.simplefilter("error")
child = os.fork()
if not child:
    signal.alarm(60)  # ends it if it hangs
    kernels._seconds = kernels._WORTH_WAITING
    same = all((decode() == expected).all() for _ in range(3))
    import numba
    os._exit(0 if same else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@forks
@needs_numba
@pytest.mark.parametrize("delay", DELAYS)
def test_a_child_forked_while_a_thread_loads_goes_on_and_loads_too(delay):
    found = run(LOAD + FORKING, delay)
    assert (found.stdout, found.stderr) == ("0\n", "")


INTERRUPTED = """
signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
kernels._seconds = kernels._WORTH_WAITING
signal.setitimer(signal.ITIMER_REAL, 0.05)
n = 0
while "decode_half" not in kernels._ready:
    try:
        assert (decode() == expected).all()
    except ZeroDivisionError:
        n += 1
assert (decode() == expected).all()
print(n <= 1)
"""


@pytest.mark.slow
@needs_numba
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signals")
def test_an_interrupt_of_a_call_does_not_interrupt_the_import():
    found = run(LOAD + INTERRUPTED, 0)
    assert (found.stdout, found.stderr) == ("True\n", "")
